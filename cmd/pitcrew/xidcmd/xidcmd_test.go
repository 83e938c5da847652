package xidcmd

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// run executes the command and returns what it prints.
func run(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	out, err := try(stdin, args...)
	if err != nil {
		t.Fatalf("xid %v: %v", args, err)
	}
	return out
}

func try(stdin string, args ...string) (string, error) {
	out, _, err := tryBoth(stdin, args...)
	return out, err
}

func tryBoth(stdin string, args ...string) (stdout, stderr string, err error) {
	c := Command()
	var out, errs bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&errs)
	c.SetIn(strings.NewReader(stdin))
	c.SetArgs(args)
	err = c.Execute()
	return out.String(), errs.String(), err
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (run with -update)", err)
	}
	if got != string(want) {
		t.Errorf("%s differs (run with -update and read the diff)\ngot:\n%s", name, got)
	}
}

func records(t *testing.T, out string) []record {
	t.Helper()
	var all []record
	for line := range strings.Lines(out) {
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, r)
	}
	return all
}

func TestParseFindsEveryEventOfTheKnownLinesAndNoOther(t *testing.T) {
	out := run(t, "", "parse", "testdata/kernel-lines.tsv", "-o", "json")
	golden(t, "kernel-lines.golden.jsonl", out)
	n := map[string]int{}
	for _, r := range records(t, out) {
		n[string(r.Kind)]++
	}
	// 68 Xid and 6 SXid lines are events; the redacted address, the line without
	// brackets, and the Severity and Data lines are not.
	want := map[string]int{"xid": 68, "sxid": 6}
	for kind, count := range want {
		if n[kind] != count {
			t.Errorf("%d events of kind %s, want %d", n[kind], kind, count)
		}
	}
}

func TestParseReadsStdinInInputOrder(t *testing.T) {
	in := "[1.0] NVRM: Xid (PCI:0000:02:00): 31, pid=7, name=a b: [c], MMU Fault\n" +
		"noise\n" +
		"4,9,2000000,-;NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:02): 94, Contained\n"
	got := records(t, run(t, in, "parse", "-", "-o", "json"))
	if len(got) != 2 || *got[0].Code != 31 || *got[1].Code != 94 {
		t.Fatalf("%+v", got)
	}
	if *got[0].PID != 7 || *got[0].Process != "a b: [c]" || got[0].MIG != nil {
		t.Errorf("first: %+v", got[0])
	}
	if *got[1].MIG != "5/2" || *got[1].PCI != "0000:01:00" || got[1].PID != nil {
		t.Errorf("second: %+v", got[1])
	}
}

func TestParseTellsTheThreeLineLossItsAddress(t *testing.T) {
	for name, in := range map[string]string{
		"three lines":           "NVRM: The NVIDIA GPU 0000:0a:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\nNVRM: fallen off the bus and is not responding to commands.\n",
		"one record":            `3,7,9,-;NVRM: The NVIDIA GPU 0000:0a:00.0\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has\x0aNVRM: fallen off the bus and is not responding to commands.` + "\n",
		"one line":              "NVRM: The NVIDIA GPU 0000:0a:00.0 (PCI ID: 10de:26b5) installed in this system has fallen off the bus and is not responding to commands.\n",
		"the open driver's way": "NVRM: GPU 0000:0a:00.0: GPU has fallen off the bus.\n",
	} {
		got := records(t, run(t, in, "parse", "-", "-o", "json"))
		if len(got) != 1 || got[0].Kind != "gpu_lost" || got[0].PCI == nil || *got[0].PCI != "0000:0a:00" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestBurstsFoldAStormUnderItsCause(t *testing.T) {
	var in strings.Builder
	in.WriteString("[100.000001] NVRM: Xid (PCI:0000:dc:00): 48, pid='<unknown>', name=<unknown>, DBE\n")
	in.WriteString("[100.1] NVRM: Xid (PCI:0000:dc:00): 63, Row Remapper\n")
	for range 1000 {
		in.WriteString("[100.2] NVRM: Xid (PCI:0000:dc:00): 45, pid=9, name=python3, Ch 00000001\n")
	}
	in.WriteString("[101.0] NVRM: Xid (PCI:0000:dc:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)\n")
	in.WriteString("[900.0] NVRM: Xid (PCI:0000:dc:00): 31, pid=9, name=python3, MMU\n")
	got := records(t, run(t, in.String(), "parse", "--bursts", "-o", "json"))
	if len(got) != 2 {
		t.Fatalf("%d bursts, want 2: %+v", len(got), got)
	}
	first := got[0]
	if *first.Code != 48 || first.Action == nil || *first.Action != "GPU Reset Required" || len(first.Echoes) != 3 {
		t.Errorf("first burst: %+v %+v", first, first.Burst)
	}
	for _, e := range first.Echoes {
		if *e.Code == 45 && (e.Count != 1000 || !e.Echo) {
			t.Errorf("45: %+v", e)
		}
	}
	if *got[1].Code != 31 {
		t.Errorf("second burst: %+v", got[1])
	}
}

// Two faults three days apart, or on either side of a boot, are two bursts,
// whichever way the log tells the time.
func TestBurstsReadTheTimeAsEachLogWritesIt(t *testing.T) {
	const xid = "NVRM: Xid (PCI:0000:01:00): 48, x"
	for name, in := range map[string][]string{
		"journalctl -k":                    {"Nov 20 10:00:00 host kernel: " + xid, "Nov 20 10:00:30 host kernel: " + xid, "Nov 23 10:00:00 host kernel: " + xid},
		"a day of one digit":               {"Nov  2 10:00:00 host kernel: " + xid, "Nov  2 10:00:30 host kernel: " + xid, "Nov  5 10:00:00 host kernel: " + xid},
		"journalctl -o short-iso":          {"2026-11-20T10:00:00+0000 host kernel: " + xid, "2026-11-20T10:00:30+0000 host kernel: " + xid, "2026-11-23T10:00:00+0000 host kernel: " + xid},
		"journalctl -o short-full":         {"Fri 2026-11-20 10:00:00 UTC host kernel: " + xid, "Fri 2026-11-20 10:00:30 UTC host kernel: " + xid, "Mon 2026-11-23 10:00:00 UTC host kernel: " + xid},
		"journalctl -o short-unix":         {"1795000000.123456 host kernel: " + xid, "1795000030.123456 host kernel: " + xid, "1795250000.123456 host kernel: " + xid},
		"journalctl -o short-monotonic":    {"[ 100.000001] host kernel: " + xid, "[ 130.000001] host kernel: " + xid, "[259300.000001] host kernel: " + xid},
		"rsyslog, a boot in between":       {"2026-11-20T10:00:00.123456+00:00 host kernel: [900000.1] " + xid, "2026-11-20T10:00:30.123456+00:00 host kernel: [900030.1] " + xid, "2026-11-20T10:20:00.123456+00:00 host kernel: [   22.1] " + xid},
		"dmesg -T":                         {"[Fri Nov 20 10:00:00 2026] " + xid, "[Fri Nov 20 10:00:30 2026] " + xid, "[Mon Nov 23 10:00:00 2026] " + xid},
		"dmesg -e":                         {"[Nov20 10:00] " + xid, "[ +30.000000] " + xid, "[  +0.000007] noise", "[Nov23 10:00] " + xid},
		"dmesg --time-format iso, decoded": {"kern  :warn  : 2026-11-20T10:00:00,287197+00:00 " + xid, "kern  :warn  : 2026-11-20T10:00:30,287197+00:00 " + xid, "kern  :warn  : 2026-11-23T10:00:00,287197+00:00 " + xid},
		"records of two boots":             {"3,900,900000000,-;" + xid, "3,901,930000000,-;" + xid, "3,20,22000000,-;" + xid},
		"Talos":                            {"10.0.0.1: kern: warning: [2026-11-20T10:00:00.870495804Z]: " + xid, "10.0.0.1: kern: warning: [2026-11-20T10:00:30.870495804Z]: " + xid, "10.0.0.1: kern: warning: [2026-11-23T10:00:00.870495804Z]: " + xid},
	} {
		got := records(t, run(t, strings.Join(in, "\n")+"\n", "parse", "--bursts", "-o", "json"))
		if len(got) != 2 || got[0].Count != 2 || got[0].Seconds != 30 || got[1].Count != 1 {
			t.Errorf("%s: %d bursts", name, len(got))
			for _, r := range got {
				t.Logf("  %d in %v s", r.Count, r.Seconds)
			}
		}
	}
}

func TestWhatBeginsLikeAnXidAndCannotBeReadIsTold(t *testing.T) {
	out, errs, err := tryBoth("NVRM: Xid (PCI:0000:01:00): 79, x\nNVRM: Xid (PCI:...): 137, redacted\nNVRM: Xid PCI:0000:01:00: 43, x\n", "parse", "-o", "json")
	if err != nil || strings.Count(out, "\n") != 1 {
		t.Errorf("%v, output:\n%s", err, out)
	}
	if !strings.Contains(errs, "lines that begin like an Xid and cannot be read: 2") || !strings.Contains(errs, "NVRM: Xid (PCI:...): 137, redacted") {
		t.Errorf("on stderr: %q", errs)
	}
	if _, errs, _ := tryBoth("NVRM: Xid (PCI:0000:01:00): 79, x\n", "parse", "--bursts"); errs != "" {
		t.Errorf("nothing to tell, and told %q", errs)
	}
}

func TestALineOfAMegabyteDoesNotStopTheParser(t *testing.T) {
	in := "NVRM: Xid (PCI:0000:01:00): 13, " + strings.Repeat("x", 1<<20) + "\nNVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus\n"
	got := records(t, run(t, in, "parse", "-o", "json"))
	if len(got) != 2 || *got[0].Code != 13 || *got[1].Code != 79 {
		t.Fatalf("%d records", len(got))
	}
	if len(got[0].Line) > maxLine {
		t.Errorf("the line kept is %d bytes", len(got[0].Line))
	}
}

func TestExplainSaysWhatACodeMeans(t *testing.T) {
	golden(t, "explain-79.golden.txt", run(t, "", "explain", "79"))
	for arg, want := range map[string]string{
		"79":         `"code": 79`,
		"xid/79":     `"advice": "reboot-node"`,
		"sxid/20034": `"name": "LTSSM Fault Up"`,
		"20034":      `"kind": "sxid"`,
		"154":        `"recovery_actions"`,
		"149":        `"subcodes"`,
		"999":        `"known": false`,
	} {
		if out := run(t, "", "explain", arg, "-o", "json"); !strings.Contains(out, want) {
			t.Errorf("explain %s lacks %s:\n%s", arg, want, out)
		}
	}
	for _, bad := range []string{"eleven", "-4", ""} {
		if _, err := try("", "explain", "--", bad); err == nil {
			t.Errorf("explain %q was taken", bad)
		}
	}
}

func TestListHasEveryCode(t *testing.T) {
	if n := strings.Count(run(t, "", "list"), "\n"); n != 177 {
		t.Errorf("%d lines, want 176 codes and a head", n)
	}
	if n := strings.Count(run(t, "", "list", "--sxid"), "\n"); n != 421 {
		t.Errorf("%d lines, want 420 codes and a head", n)
	}
	var all struct {
		XID  []any `json:"xid"`
		SXid []any `json:"sxid"`
	}
	if err := json.Unmarshal([]byte(run(t, "", "list", "-o", "json")), &all); err != nil || len(all.XID) != 176 || len(all.SXid) != 420 {
		t.Errorf("json list: %d %d %v", len(all.XID), len(all.SXid), err)
	}
}

func TestARulesFileChangesWhatIsSaid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "site.yaml")
	if err := os.WriteFile(path, []byte("xid:\n- {code: 31, severity: fatal, advice: drain-and-rma}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got := records(t, run(t, "NVRM: Xid (PCI:0000:02:00): 31, x\n", "parse", "-o", "json", "--rules", path))
	if len(got) != 1 || got[0].Severity != "fatal" || got[0].Advice != "drain-and-rma" {
		t.Errorf("%+v", got)
	}
	if _, err := try("", "list", "-o", "yaml"); err == nil {
		t.Error("an unknown output format was taken")
	}
	if _, err := try("", "parse", "/no/such/file"); err == nil {
		t.Error("a missing file was taken")
	}
}

func TestALogWithoutAFaultIsSaidToHaveNone(t *testing.T) {
	const quiet, loud = "[1.0] usb 1-1: new device\n", "[1.0] NVRM: Xid (PCI:0000:1a:00): 79, pid=1, GPU has fallen off the bus.\n"
	for _, args := range [][]string{{"parse"}, {"parse", "--bursts"}} {
		if out, errs, err := tryBoth(quiet, args...); err != nil || out != "" || errs != "no GPU fault in this log\n" {
			t.Errorf("%v: %q, %q, %v", args, out, errs, err)
		}
		if out, errs, err := tryBoth(quiet, append(args, "-o", "json")...); err != nil || out != "" || errs != "" {
			t.Errorf("%v as JSON: %q, %q, %v", args, out, errs, err)
		}
		if out, errs, err := tryBoth(loud, args...); err != nil || out == "" || errs != "" {
			t.Errorf("%v of a fault: %q, %q, %v", args, out, errs, err)
		}
	}
}

func TestABurstLeadsWithItsWorst(t *testing.T) {
	for name, c := range map[string]struct{ log, want string }{
		"a remap, then the GPU is gone 49 s later": {
			"[  100.0] NVRM: Xid (PCI:0000:01:00): 63, pid=1, Row Remapper: New row\n[  149.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.\n",
			"xid/79 0000:01:00 fatal reboot-node with xid/63"},
		"an application fault, then the GPU is gone": {
			"[  100.0] NVRM: Xid (PCI:0000:01:00): 13, Graphics Exception\n[  149.0] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n",
			"xid/79 0000:01:00 fatal reboot-node with xid/13"},
		"a cause and its echoes": {
			"[  100.0] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n[  100.1] NVRM: Xid (PCI:0000:01:00): 45, Ch 1\n",
			"xid/79 0000:01:00 fatal reboot-node with xid/45"},
		"the driver's recovery action is worse than the cause": {
			"[  100.0] NVRM: Xid (PCI:0000:01:00): 48, DBE\n[  100.1] NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)\n",
			"xid/48 0000:01:00 fatal reboot-node with xid/154"},
	} {
		out, err := try(c.log, "parse", "--bursts", "-")
		if err != nil {
			t.Fatal(err)
		}
		rows := strings.Split(strings.TrimSpace(out), "\n")
		if len(rows) != 2 {
			t.Errorf("%s: %d rows\n%s", name, len(rows)-1, out)
			continue
		}
		f := strings.Fields(rows[1])
		_, with, _ := strings.Cut(rows[1], "; with ")
		code, _, _ := strings.Cut(with, " ")
		if got := strings.Join([]string{f[0], f[1], f[5], f[6], "with", code}, " "); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, c.want)
		}
	}
}
