package kernel

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/rules"
)

// lineOf is a line of the driver as it prints a case of NVLink 5.
func lineOf(r rules.NVLink5, unit string, register, status uint32) string {
	word := map[bool]string{true: "Fatal", false: "Nonfatal"}[r.Fatality != rules.NonFatal]
	return fmt.Sprintf("NVRM: Xid (PCI:0018:01:00): %d, %s  %-8s XC0 i0 Link 09 (0x%08x 0x%08x 0x00000000 0x00000000 0x00000000 0x00000000)", r.XID, unit, word, register, status)
}

// branches are a driver before 575 and one from it, with the register's pattern of each.
var branches = []struct {
	module  string
	pattern func(rules.NVLink5) rules.BitPattern
}{
	{"570.86.15", func(r rules.NVLink5) rules.BitPattern { return r.Before575 }},
	{"580.65.06", func(r rules.NVLink5) rules.BitPattern { return r.From575 }},
}

func TestEveryRowOfTheNVLink5TableIsReadFromItsLineOnBothDriverBranches(t *testing.T) {
	tables := tables(t)
	rows := 0
	for xid := rules.FirstNVLink5; xid <= rules.LastNVLink5; xid++ {
		for _, r := range tables.NVLink5Rules(xid) {
			rows++
			for _, b := range branches {
				p := b.pattern(r)
				for _, register := range []uint32{p.Value, p.Value | ^p.Mask} { // bits that do not count are all 0, then all 1
					for _, unit := range strings.Split(r.Unit, "/") {
						statuses := []uint32{r.ErrorStatus}
						if r.AnyStatus {
							statuses = []uint32{0, 1, 0x80000000, 0xffffffff}
						}
						for _, status := range statuses {
							line := lineOf(r, unit, register, status)
							var parser Parser
							var e Event
							parser.ParseLogLine([]byte("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  "+b.module+"  Mon Jan 1"), &e)
							if got := parser.ParseLogLine([]byte(line), &e); got != IsEvent || e.Code != r.XID || string(e.Unit) != unit || e.Link != 9 || e.Regs != 2 {
								t.Fatalf("%s: %v %+v", line, got, e)
							}
							v := judge(tables, &e, parser.Driver())
							severity, advice := r.Judge()
							if v.Severity != severity || v.Advice != advice || v.Investigate != r.Investigate {
								t.Errorf("driver %s: %s: %s %s %q, want %s %s %q", b.module, line, v.Severity, v.Advice, v.Investigate, severity, advice, r.Investigate)
							}
						}
					}
				}
			}
		}
	}
	if rows < 99 {
		t.Errorf("%d rows", rows)
	}
}

func TestEveryRowOfTheXidTableIsReadFromItsLine(t *testing.T) {
	tables := tables(t)
	for _, driver := range []string{"570.86.15", "580.65.06"} {
		for _, r := range tables.XIDs() {
			for _, format := range []string{"NVRM: Xid (PCI:0000:01:00): %d, pid=7194, name=python, text", "NVRM: Xid (PCI:0000:01:00.0): %d, text", "NVRM: Xid (0000:01:00): %d"} {
				line := fmt.Sprintf(format, r.Code)
				var parser Parser
				var e Event
				if got := parser.ParseLogLine([]byte(line), &e); got != IsEvent || e.Code != r.Code || e.PCI.String() != "0000:01:00" {
					t.Fatalf("%s: %v %+v", line, got, e)
				}
				if v := judge(tables, &e, driver); v.Name != r.Name || !v.Known || (r.Code < rules.FirstNVLink5 || r.Code > rules.LastNVLink5) && (v.Severity != r.Severity || v.Advice != r.Advice) {
					t.Errorf("%s: %+v, want %s %s %s", line, v, r.Name, r.Severity, r.Advice)
				}
			}
		}
	}
}

func TestEveryRowOfTheSXidTableIsReadFromItsLine(t *testing.T) {
	tables := tables(t)
	for _, r := range tables.SXids() {
		for word, fatal := range map[string]bool{"Fatal": true, "Non-fatal": false} {
			line := fmt.Sprintf("nvidia-nvswitch3: SXid (PCI:0000:04:00.0): %d, %s, Link 44 text", r.Code, word)
			var parser Parser
			var e Event
			if got := parser.ParseLogLine([]byte(line), &e); got != IsEvent || e.Kind != SXid || e.Code != r.Code || e.Link != 44 {
				t.Fatalf("%s: %v %+v", line, got, e)
			}
			severity, advice := r.Judge(fatal, true)
			if v := judge(tables, &e, "570.1"); v.Name != r.Name || v.Severity != severity || v.Advice != advice {
				t.Errorf("%s: %+v, want %s %s", line, v, severity, advice)
			}
		}
	}
}

func TestEveryRecoveryActionIsReadFromItsLineHoweverMuchWasCutOff(t *testing.T) {
	tables := tables(t)
	actions := tables.Recoveries()
	for _, from := range actions {
		for _, to := range actions {
			line := fmt.Sprintf("NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x%x (%s) to 0x%x (%s)", from.Value, from.Action, to.Value, to.Action)
			begin := strings.Index(line, "154") + 3
			for n := begin; n <= len(line); n++ {
				var parser Parser
				var e Event
				if got := parser.ParseLogLine([]byte(line[:n]), &e); got != IsEvent || e.Code != 154 {
					t.Fatalf("%s: %v %+v", line[:n], got, e)
				}
				v := judge(tables, &e, "570.1")
				if v.Clears != 0 && to.Value != 0 {
					t.Fatalf("%s: clears, though the driver went to %s", line[:n], to.Action)
				}
				if valued := strings.Contains(line[:n], fmt.Sprintf(" to 0x%x ", to.Value)); valued && (v.Severity != to.Severity || v.Advice != to.Advice || (v.Clears != 0) != (to.Value == 0)) {
					t.Fatalf("%s: %+v, want %s", line[:n], v, to.Action)
				}
			}
		}
	}
}

func TestLinesThatOtherToolsReadAreRead(t *testing.T) {
	tables := tables(t)
	for line, want := range map[string]string{
		"NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)": "xid critical reset-gpu 0018:01:00",
		"NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reb":                                               "xid fatal reboot-node 0008:01:00",
		"NVRM: Xid (PCI:0008:01:00): 150, MSE Degraded  Fatal   XC0 i0 Link -1 (0x00000000 0xffffffff 0x00000000 0x00000000)":                         "xid fatal reset-gpu 0008:01:00",
		"NVRM: GPU 18:00.0: GPU has fallen off the bus.":                                                                                              "gpu_lost fatal reboot-node 0000:18:00",
		"NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.":                                                                                         "gpu_lost fatal reboot-node 0000:18:00",
		"NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!":                                                         "gsp critical reset-gpu ",
		"NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!":                                                        "gsp critical reset-gpu ",
		"NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer7 postRxDetLinkMask failed!":                                                          "gsp critical reset-gpu ",
		"NVRM: knvlinkDiscoverPostRxDetLinks_GB100: Getting peer1's postRxDetLinkMask failed!":                                                        "gsp critical reset-gpu ",
	} {
		var parser Parser
		var e Event
		if got := parser.ParseLogLine([]byte(line), &e); got != IsEvent {
			t.Errorf("%s: not read (%v)", line, got)
			continue
		}
		v := judge(tables, &e, "570.1")
		if got := fmt.Sprintf("%s %s %s %s", e.Kind, v.Severity, v.Advice, e.PCI); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
	for _, line := range []string{"NVRM: GPU 18:00: is fine", "NVRM: GPU 18:00.9: GPU has fallen off the bus.", "NVRM: knvlinkCoreUpdate: done"} {
		var parser Parser
		var e Event
		if got := parser.ParseLogLine([]byte(line), &e); got == IsEvent {
			t.Errorf("%s: read as %+v", line, e)
		}
	}
}
