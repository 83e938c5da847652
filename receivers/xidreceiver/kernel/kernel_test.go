package kernel

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/rules"
)

func tables(t testing.TB) *rules.Tables {
	t.Helper()
	r, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestARecordIsReadInAllItsForms(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     Record
		ok       bool
	}{
		{"plain", "4,1227,437812449,-;text", Record{4, 1227, 437812449, []byte("text")}, true},
		{"a fragment flag", "4,1227,437812449,c;text", Record{4, 1227, 437812449, []byte("text")}, true},
		{"fields of the future", "4,1227,437812449,-,caller=T1946,x=1;text", Record{4, 1227, 437812449, []byte("text")}, true},
		{"no flags", "4,1,2;text", Record{4, 1, 2, []byte("text")}, true},
		{"continuation lines", "6,1,2,-;text\n SUBSYSTEM=pci\n DEVICE=+pci:0000:01:00.0\n", Record{6, 1, 2, []byte("text")}, true},
		{"a semicolon in the text", "6,1,2,-;a;b", Record{6, 1, 2, []byte("a;b")}, true},
		{"no text", "6,1,2,-;", Record{6, 1, 2, []byte("")}, true},
		{"no record", "NVRM: Xid (PCI:0000:01:00): 79, x", Record{}, false},
		{"an empty number", "6,,2,-;x", Record{}, false},
		{"a negative number", "6,-1,2,-;x", Record{}, false},
		{"a number beyond measure", "6,99999999999999999999999,2,-;x", Record{}, false},
		{"nothing", "", Record{}, false},
	} {
		got, ok := ParseRecord([]byte(c.in))
		if ok != c.ok || got.Prio != c.want.Prio || got.Seq != c.want.Seq || got.Usec != c.want.Usec || !bytes.Equal(got.Text, c.want.Text) {
			t.Errorf("%s: %+v %v", c.name, got, ok)
		}
	}
}

func TestEscapesAreUndone(t *testing.T) {
	for in, want := range map[string]string{
		`plain`: "plain", `a\x0ab`: "a\nb", `\x5cx41`: `\x41`, `a\x4`: `a\x4`, `a\`: `a\`, `\xzz`: `\xzz`, `\xC3\xa9`: "é",
	} {
		if got := Unescape(nil, []byte(in)); string(got) != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// one parses a single line of a log file.
func one(t *testing.T, line string) (Event, Result) {
	t.Helper()
	var p Parser
	var e Event
	r := p.ParseLogLine([]byte(line), &e)
	return e, r
}

// The forms that other readers miss: gpud's expression the first four, DCGM the MIG suffix and the missing "PCI:".
func TestFormsThatOthersMissAreRead(t *testing.T) {
	for _, c := range []struct {
		name, line, pci, mig string
		code                 int
	}{
		{"MIG instance", "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained", "0000:01:00", "5", 94},
		{"MIG compute instance", "NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:02): 94, pid=7194, Contained", "0000:01:00", "5/2", 94},
		{"no comma", "NVRM: Xid (PCI:0000:01:00): 46", "0000:01:00", "", 46},
		{"truncated", "NVRM: Xid (PCI:0000:01:00): 154 (", "0000:01:00", "", 154},
		{"a function", "NVRM: Xid (PCI:0000:01:00.0): 79, gone", "0000:01:00", "", 79},
		{"no PCI:", "NVRM: Xid (0000:03:00): 14, Channel 00000001", "0000:03:00", "", 14},
		{"upper case", "NVRM: Xid (PCI:0000:C1:00): 79, gone", "0000:c1:00", "", 79},
		{"a wide domain", "NVRM: Xid (PCI:10000:01:00): 79, gone", "10000:01:00", "", 79},
		{"a localised month", "kwi 15 07:56:59 testowy kernel: NVRM: Xid (PCI:0000:07:00): 38, pid=326, name=modprobe, x", "0000:07:00", "", 38},
		{"a thread id", "[ 130.456250] [ T1946] NVRM: Xid (PCI:0000:2b:00): 31, pid=1942, x", "0000:2b:00", "", 31},
		{"Talos", "192.168.11.119: kern: warning: [2026-04-22T21:30:51.870495804Z]: NVRM: Xid (PCI:0000:0b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "0000:0b:00", "", 154},
		{"decoded by dmesg", "kern  :warn  : 2025-01-21T04:41:44,287197+00:00 NVRM: Xid (PCI:0000:38:00): 43, pid=1, x", "0000:38:00", "", 43},
		{"a level before it", "<3>NVRM: Xid (PCI:0000:01:00): 79, x", "0000:01:00", "", 79},
		{"RFC 5424", "<6>1 2026-11-20T10:00:00Z host kernel - - - NVRM: Xid (PCI:0000:01:00): 79, x", "0000:01:00", "", 79},
		{"journalctl -o export", "MESSAGE=NVRM: Xid (PCI:0000:01:00): 79, x", "0000:01:00", "", 79},
		{"a colon after the code", "NVRM: Xid (PCI:0000:01:00): 79: x", "0000:01:00", "", 79},
		{"a carriage return", "4,1,2,-;NVRM: Xid (PCI:0000:01:00): 79\r", "0000:01:00", "", 79},
		{"no host", "Sep 18 20:07:01 NVRM: Xid (PCI:0000:02:00): 109, pid=8494,   name=RenderThread, x", "0000:02:00", "", 109},
	} {
		e, r := one(t, c.line)
		if r != IsEvent || e.Kind != Xid || e.Code != c.code || e.PCI.String() != c.pci || e.MIG() != c.mig {
			t.Errorf("%s: %v %+v mig %q", c.name, r, e, e.MIG())
		}
	}
}

func TestPidAndNameAreReadAsTheyCome(t *testing.T) {
	for _, c := range []struct {
		rest string
		pid  int
		name string
	}{
		{"pid=7, name=python3, Ch 1", 7, "python3"},
		{"pid='<unknown>', name=<unknown>, GPU has fallen off the bus", -1, ""},
		{"pid=<unknown>, name=<unknown>, x", -1, ""},
		{"pid=1582259, name=nvc:[driver], Timeout", 1582259, "nvc:[driver]"},
		{"pid=9, name=a b c, x", 9, "a b c"},
		{"pid=9, name=a,b, x", 9, "a,b"},
		{"pid=9, name=idle_timeout", 9, "idle_timeout"},
		{"pid=1659,", 1659, ""},
		{"pid=0, GPU has fallen off the bus.", 0, ""},
		{"pid=99999999999999999999, name=x, y", -1, "x"},
		{"pid=", -1, ""},
		{"Ch 00000003", -1, ""},
	} {
		e, r := one(t, "NVRM: Xid (PCI:0000:01:00): 31, "+c.rest)
		if r != IsEvent || e.PID != c.pid || string(e.Process) != c.name {
			t.Errorf("%s: %v pid %d name %q", c.rest, r, e.PID, e.Process)
		}
	}
}

func TestLookAlikesAreNothing(t *testing.T) {
	for _, line := range []string{
		"NVRM: Xid PCI:0000:01:00: 43, pid=1814139, name=cuda_assert_64b, Ch 00000018",
		"kernel: NVRM: Xid (PCI:...): 137, RLW_RXPIPE interrupt hit on link 11 on GPU0: PRIV Error",
		"NVRM: Xid (PCI:0000:01:00): seventy-nine",
		"NVRM: Xid (PCI:0000:01:00): 79abc",
		"NVRM: Xid (PCI:0000:01:00): 79000000000",
		"NVRM: Xid (PCI:0000:01:00 GPU-I:): 79, x",
		"NVRM: GPU Board Serial Number: 1653723052734",
		"NVRM: GPU 0000:91:00.0: GPU serial number is 1653723052734.",
		"NVRM: A GPU crash dump has been created. If possible, please run",
		"6,3964,206764307,-;nvidia-nvswitch2: open (major=510)",
		"mlx5_core 0000:4b:00.0 enp75s0np0: Link up",
		"pcieport 0000:00:1c.0: AER: enabled with IRQ 24",
		"pcieport 0000:00:03.1: AER: device recovery successful",
		"pcieport 0000:00:03.1:   device [1022:1453] error status/mask=00001000/00006000",
		"[74889.542184] pcieport 0000:00:02.0:    [ 5] Surprise Down Error    (First)",
		"see <that> NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus",
		"and -> NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus",
		"we saw NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus",
	} {
		if e, r := one(t, line); r == IsEvent {
			t.Errorf("%s: taken for %+v", line, e)
		}
	}
}

func TestSXidSeverityAndDataLinesAreDetailsOfTheEvent(t *testing.T) {
	e, r := one(t, "[1.0] nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt")
	if r != IsEvent || e.Kind != SXid || e.Code != 22013 || e.Word != NonFatal || e.Link != 44 || e.PCI.String() != "0000:04:00" {
		t.Errorf("%v %+v", r, e)
	}
	e, r = one(t, "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up")
	if r != IsEvent || e.Word != Fatal || e.Link != 48 {
		t.Errorf("%v %+v", r, e)
	}
	for _, line := range []string{
		"nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Data {0x0000002b, 0x0000002b}",
		"nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 12028, Severity 0 Engine instance 62 Sub-engine instance 00",
	} {
		if _, r := one(t, line); r != Detail {
			t.Errorf("%s: %v", line, r)
		}
	}
}

func TestTheDriversVerdictIsTheLastBracket(t *testing.T) {
	ts := tables(t)
	for _, c := range []struct {
		text     string
		action   string
		severity rules.Severity
		advice   rules.Advice
		clears   int
	}{
		{"GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "GPU Reset Required", rules.Critical, rules.ResetGPU, 0},
		{"GPU recovery action changed from 0x1 (GPU Reset Required) to 0x2 (Node Reboot Required)", "Node Reboot Required", rules.Fatal, rules.RebootNode, 0},
		{"GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "None", rules.Info, rules.None, 154},
		{"GPU recovery action changed from 0x0 (None) to 0x9 (Pray)", "Pray", rules.Critical, rules.ContactSupport, 0},
		{"GPU recovery", "", rules.Warning, rules.None, 0},
	} {
		e, _ := one(t, "NVRM: Xid (PCI:0008:01:00): 154, "+c.text)
		v := judge(ts, &e, "")
		if string(e.Action) != c.action || v.Severity != c.severity || v.Advice != c.advice || v.Clears != c.clears {
			t.Errorf("%s: %q %+v", c.text, e.Action, v)
		}
	}
}

// gpud once merged sub-codes and turned non-fatal cases into fatal ones.
func TestAHarmlessNVLinkSubCodeStaysHarmless(t *testing.T) {
	ts := tables(t)
	for _, c := range []struct {
		text     string
		severity rules.Severity
		word     Word
		link     int
	}{
		{"145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x0 0x0 0x0 0x0)", rules.Warning, NonFatal, 12},
		{"145, RLW_SRC_TRACK Fatal XC1 i0 Link 12 (0x040988e2 0x00000001 0x0 0x0 0x0 0x0)", rules.Fatal, Fatal, 12},
		{"149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001 0x0 0x0 0x0 0x0)", rules.Warning, NonFatal, 3},
		{"149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x0 0x0 0x0 0x0)", rules.Critical, Fatal, 9},
		{"149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x0 0x0 0x0 0x0)", rules.Critical, Fatal, -1},
		{"145, RLW_REMAP Nonfatal XC0 i0 Link 02", rules.Warning, NonFatal, 2},
		{"145, RLW_NEW_UNIT Fatal XC0 i0 Link 02 (0x1 0x2)", rules.Critical, Fatal, 2},
	} {
		e, r := one(t, "NVRM: Xid (PCI:0019:01:00): "+c.text)
		if v := judge(ts, &e, ""); r != IsEvent || v.Severity != c.severity || e.Word != c.word || e.Link != c.link {
			t.Errorf("%s: %v %+v %+v", c.text, r, v, e)
		}
	}
}

func TestTheLogTeachesUUIDsAndTheDriverVersion(t *testing.T) {
	var p Parser
	var e Event
	for _, text := range []string{
		"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (builder)  Thu",
		"NVRM: GPU at PCI:0000:01:00: GPU-aeab3757-56a6-7e30-3f7c-1f322454bde2",
		"NVRM: GPU at PCI:0000:02:00: GPU-not-a-uuid-at-all-but-just-as-long-as-one",
	} {
		p.Parse([]byte(text), &e)
	}
	a, _ := ParseAddress("0000:01:00.0")
	if p.UUID(a) != "GPU-aeab3757-56a6-7e30-3f7c-1f322454bde2" || len(p.UUIDs()) != 1 || p.Driver() != "570.86.15" {
		t.Errorf("%v driver %s", p.UUIDs(), p.Driver())
	}
	for i := range 100000 {
		p.Parse(fmt.Appendf(nil, "NVRM: GPU at PCI:%04x:%02x:00: GPU-aeab3757-56a6-7e30-3f7c-1f322454bde2", i>>8, i&255), &e)
	}
	if len(p.UUIDs()) > maxUUIDs {
		t.Errorf("%d addresses remembered", len(p.UUIDs()))
	}
}

func TestSignalsWithoutACodeAreToldApart(t *testing.T) {
	ts := tables(t)
	for _, c := range []struct {
		line, pci string
		kind      Kind
		severity  rules.Severity
	}{
		{"[  903.609564] NVRM: RmInitAdapter: Cannot initialize GSP firmware RM", "", GPUInit, rules.Fatal},
		{"NVRM: GPU 0000:98:00.0: rm_init_adapter failed, device minor number 0", "0000:98:00", GPUInit, rules.Fatal},
		{"NVRM: GPU6 _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP", "", GSP, rules.Critical},
		{"NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).", "0000:9b:00", GSP, rules.Critical},
		{"pcieport 0000:00:03.1: AER: Correctable error message received from 0000:00:00.0", "0000:00:03", AER, rules.Info},
		{"pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer", "0000:00:02", AER, rules.Critical},
		{"pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=x", "0000:00:02", AER, rules.Warning},
		{"nvidia 0000:03:00.0: AER: can't recover (no error_detected callback)", "0000:03:00", AER, rules.Critical},
		{"mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).", "0000:5c:00", MLX5, rules.Warning},
		{"mlx5_cmd_out_err:838:(pid 1441871): ACCESS_REG(0x805) op_mod(0x1) failed, status bad resource(0x5), syndrome (0x305684), err(-22)", "", MLX5, rules.Info},
	} {
		e, r := one(t, c.line)
		if r != IsEvent || e.Kind != c.kind || e.PCI.String() != c.pci {
			t.Errorf("%s: %v %+v", c.line, r, e)
			continue
		}
		if v := judge(ts, &e, ""); v.Severity != c.severity || v.Name == "" {
			t.Errorf("%s: %+v", c.line, v)
		}
	}
}

func TestEveryCaseOfASignalHasARow(t *testing.T) {
	rows := map[string]bool{}
	for _, r := range tables(t).Signals() {
		rows[r.Kind+"/"+r.Name] = true
	}
	cases := []phrase{{is: "fallen off the bus", kind: GPULost}}
	for _, list := range [][]phrase{nvrmPhrases, aerPhrases, mlx5Phrases} {
		cases = append(cases, list...)
	}
	for _, ph := range cases {
		if !rows[string(ph.kind)+"/"+ph.is] {
			t.Errorf("rules/signals.tsv has no row for %s %q", ph.kind, ph.is)
		}
	}
}

func TestAnAddressFromLongAgoIsNotTheLostGPUs(t *testing.T) {
	var p Parser
	var e Event
	p.Parse([]byte("NVRM: The NVIDIA GPU 0000:0a:00.0"), &e)
	for range 20 {
		p.Parse([]byte("some other line"), &e)
	}
	if r := p.Parse([]byte("NVRM: fallen off the bus and is not responding to commands."), &e); r != IsEvent || e.PCI.Valid {
		t.Errorf("%v %+v", r, e)
	}
}

func TestParsingAllocatesNothing(t *testing.T) {
	lines := [][]byte{
		[]byte("4,1227,437812449,-;NVRM: Xid (PCI:0000:01:00): 43, pid=1814139, name=cuda_assert_64b, Ch 00000018"),
		[]byte("6,1228,437812450,-;usb 1-1: new high-speed USB device number 2 using xhci_hcd"),
		[]byte("3,1229,437812451,-;NVRM: Xid (PCI:0000:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x0)"),
		[]byte("3,1229,437812451,-;NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)"),
		[]byte("3,1229,437812451,-;nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion"),
	}
	var p Parser
	var e Event
	if n := testing.AllocsPerRun(100, func() {
		for _, l := range lines {
			if rec, ok := ParseRecord(l); ok {
				p.Parse(rec.Text, &e)
			}
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzKernelRecord(f *testing.F) {
	f.Add([]byte(`4,1227,437812449,c;NVRM: Xid (PCI:0000:01:00): 43\x0aNVRM: fallen off the bus` + "\n SUBSYSTEM=pci\n"))
	f.Add([]byte("6,,,;"))
	f.Add([]byte(`6,1,2,-;\x`))
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, ok := ParseRecord(b)
		if !ok {
			return
		}
		if bytes.IndexByte(rec.Text, '\n') >= 0 || len(rec.Text) >= len(b) {
			t.Fatalf("text %q of %q", rec.Text, b)
		}
		if out := Unescape(nil, rec.Text); len(out) > len(rec.Text) {
			t.Fatalf("unescaped %q to more: %q", rec.Text, out)
		}
	})
}

func FuzzXidText(f *testing.F) {
	f.Add("NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:01): 94, pid=7194, name=a:[b] c, Contained caused by previous Xid 149")
	f.Add("NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000)")
	f.Add("[1.0] nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 x")
	f.Add("NVRM: Xid (PCI:0008:01:00): 154, from 0x1 (GPU Reset Required) to 0x0 (None)")
	f.Add("pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrected (Fatal)")
	f.Add("AER: ")
	ts := tables(f)
	f.Fuzz(func(t *testing.T, line string) {
		var p Parser
		folder := NewFolder(func(r *Report) {
			if r.Line != strings.ToValidUTF8(r.Line, "?") {
				t.Fatalf("%q is not UTF-8", r.Line)
			}
		})
		for range 2 {
			for _, parse := range []func([]byte, *Event) Result{p.ParseLogLine, p.Parse} {
				var e Event
				if parse([]byte(line), &e) != IsEvent {
					continue
				}
				v := judge(ts, &e, p.Driver())
				if v.Severity.Rank() < 0 || v.Advice == "" || e.Kind == "" {
					t.Fatalf("%q: %+v %+v", line, e, v)
				}
				folder.Add(&e, Stamp{})
			}
		}
		folder.Flush()
	})
}
