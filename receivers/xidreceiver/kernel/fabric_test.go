package kernel

import (
	"strings"
	"testing"
	"time"
)

// Lines as users and other tools' tests have them, of a driver of 2022 (NodeId) and of 2024 (fid).
const (
	fabricFatal    = "[Jul 23 2024 07:53:55] [ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33"
	fabricNonFatal = "[Jul 09 2024 18:14:07] [ERROR] [tid 12727] detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 61"
	fabricNodeID   = "[Mar 03 2022 18:39:57] [ERROR] [tid 5183] detected NVSwitch non-fatal error 22013 on NodeId 0 on NVSwitch pci bus id 00000000:08:00.0 physical id 3 port 60"
)

func TestFabricLinesAreRead(t *testing.T) {
	for _, c := range []struct {
		line string
		code int
		word Word
		pci  string
		link int
		at   string
	}{
		{fabricFatal, 20034, Fatal, "0000:86:00", 33, "2024-07-23T07:53:55Z"},
		{fabricNonFatal, 12028, NonFatal, "0000:86:00", 61, "2024-07-09T18:14:07Z"},
		{fabricNodeID, 22013, NonFatal, "0000:08:00", 60, "2022-03-03T18:39:57Z"},
		{strings.Replace(fabricFatal, "[tid 841] ", "", 1), 20034, Fatal, "0000:86:00", 33, "2024-07-23T07:53:55Z"},
		{strings.TrimSuffix(fabricFatal, " physical id 3 port 33"), 20034, Fatal, "0000:86:00", -1, "2024-07-23T07:53:55Z"},
	} {
		var e Event
		at, result := ParseFabric([]byte(c.line), &e)
		if result != IsEvent || e.Kind != SXid || e.Code != c.code || e.Word != c.word || e.PCI.String() != c.pci || e.Link != c.link ||
			e.PID != -1 || string(e.Text) != c.line || at.Format(time.RFC3339) != c.at {
			t.Errorf("%s\n%v %+v at %v", c.line, result, e, at)
		}
	}
}

func TestOtherFabricLinesAreNoEvents(t *testing.T) {
	replaced := func(old, new string) string { return strings.Replace(fabricFatal, old, new, 1) }
	for _, c := range []struct {
		line string
		want Result
	}{
		{"", Nothing},
		{"[", Nothing},
		{"[] [] [] ", Nothing},
		{"[Feb 25 2025 13:59:45] [INFO] [tid 1803] Received an inband message", Nothing},
		{"[ERROR] [tid 99999] detected number of NVSwitches don't match with any supported system topology, aborting fabric manager", Nothing},
		{replaced("detected", "the log has: detected"), Nothing},
		{"job " + fabricFatal, Nothing},
		{replaced("[ERROR] ", "[ERROR] [tid 1] "), Nothing}, // a second thread is a quoted line
		{replaced("20034", "99999999999999999999"), Malformed},
		{replaced("20034", "-1"), Malformed},
		{replaced("20034", "0"), Malformed},
		{replaced("20034", "20034x"), Malformed},
		{replaced("00000000:86:00.0", "0:86:00.0"), Malformed},
		{replaced("00000000:86:00.0", "00000000:86:00.0x"), Malformed},
		{replaced("Jul 23", "Feb 31"), Malformed},
		{fabricFatal[:75], Malformed},
		{replaced("fid 0", "fid "+strings.Repeat("9", 4096)), Malformed},
	} {
		var e Event
		if _, got := ParseFabric([]byte(c.line), &e); got != c.want {
			t.Errorf("%.200s\n%v, want %v (%+v)", c.line, got, c.want, e)
		}
	}
}

func FuzzFabricLine(f *testing.F) {
	f.Add([]byte(fabricFatal))
	f.Add([]byte(fabricNonFatal))
	f.Fuzz(func(t *testing.T, line []byte) {
		var e Event
		if at, result := ParseFabric(line, &e); result == IsEvent && (e.Code <= 0 || !e.PCI.Valid || at.IsZero()) {
			t.Errorf("%q: %+v", line, e)
		}
	})
}

// Of one SXid, one link's error is fatal and another's is not.
func TestAFatalSXidDoesNotWaitBehindANonFatalOne(t *testing.T) {
	var got []Word
	f := NewFolder(func(r *Report) { got = append(got, r.Event.Word) })
	for n, text := range []string{"Non-fatal, Link 1 a", "Non-fatal, Link 1 a", "Fatal, Link 2 b"} {
		var e Event
		var p Parser
		if p.Parse([]byte("nvidia-nvswitch0: SXid (PCI:0000:86:00.0): 20034, "+text), &e) != IsEvent {
			t.Fatal(text)
		}
		f.Add(&e, Stamp{At: time.Second + time.Duration(n), Seq: uint64(n)})
	}
	if len(got) < 2 || got[len(got)-1] != Fatal {
		t.Errorf("reported: %v", got)
	}
}
