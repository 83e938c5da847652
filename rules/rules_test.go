package rules

import (
	"strings"
	"testing"
)

func builtin(t *testing.T) *Tables {
	t.Helper()
	tables, err := Builtin()
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

func TestTheTablesCompiledInLoadWhole(t *testing.T) {
	tables := builtin(t)
	if n := len(tables.XIDs()); n != 176 {
		t.Errorf("%d xid rows, want 176", n)
	}
	if n := len(tables.SXids()); n != 420 {
		t.Errorf("%d sxid rows, want 420", n)
	}
	n := 0
	for xid := 144; xid <= 150; xid++ {
		n += len(tables.NVLink5Rules(xid))
	}
	if n != 99 {
		t.Errorf("%d nvlink5 rules, want 99", n)
	}
	if len(tables.Recoveries()) != 6 {
		t.Errorf("recovery actions: %v", tables.Recoveries())
	}
}

func TestKnownCodesSayWhatTheFieldSays(t *testing.T) {
	tables := builtin(t)
	for _, c := range []struct {
		code     int
		severity Severity
		advice   Advice
		role     Role
	}{
		{79, Fatal, RebootNode, Cause},
		{13, Warning, RestartApp, Cause},
		{45, Info, None, Echo},
		{63, Warning, None, Cause},
		{64, Fatal, DrainAndRMA, Cause},
		{94, Critical, RestartApp, Cause},
		{95, Fatal, ResetGPU, Cause},
		{154, Warning, None, Verdict},
		{162, Info, None, Clear},
	} {
		r := tables.XID(c.code)
		if !r.Known || r.Severity != c.severity || r.Advice != c.advice || r.Role != c.role {
			t.Errorf("xid %d: %+v", c.code, r)
		}
	}
	if c := tables.XID(162).Clears; c != 163 {
		t.Errorf("162 clears %d, want 163", c)
	}
}

func TestAnUnknownCodeIsReportedAndNeverDropped(t *testing.T) {
	tables := builtin(t)
	if r := tables.XID(999); r.Known || r.Code != 999 || r.Name != "unknown" || r.Severity != Warning || r.Advice != ContactSupport {
		t.Errorf("xid 999: %+v", r)
	}
	r := tables.SXid(99999)
	if r.Known || r.Code != 99999 {
		t.Errorf("sxid 99999: %+v", r)
	}
	if s, a := r.Judge(true, true); s != Fatal || a != ContactSupport {
		t.Errorf("unknown sxid on a line that says Fatal: %s %s", s, a)
	}
	if r := tables.Recovery("Reseat The GPU"); r.Known || r.Severity != Critical {
		t.Errorf("unknown recovery action: %+v", r)
	}
}

func TestTheLineDecidesWhetherAnSXidIsFatal(t *testing.T) {
	tables := builtin(t)
	for _, c := range []struct {
		name        string
		code        int
		fatal, said bool
		severity    Severity
		advice      Advice
	}{
		{"potentially fatal, line says Fatal", 20034, true, true, Fatal, CheckFabric},
		{"potentially fatal, line says Non-fatal", 20034, false, true, Warning, CheckFabric},
		{"left to the line, Fatal", 10000, true, true, Fatal, CheckFabric},
		{"left to the line, Non-fatal", 10000, false, true, Warning, None},
		{"always fatal whatever the line says", 23001, false, true, Fatal, RebootNode},
		{"non-fatal, line silent", 22013, false, false, Warning, None},
		{"left to the line, line silent", 10000, false, false, Critical, CheckFabric},
	} {
		if s, a := tables.SXid(c.code).Judge(c.fatal, c.said); s != c.severity || a != c.advice {
			t.Errorf("%s: %s %s, want %s %s", c.name, s, a, c.severity, c.advice)
		}
	}
}

func TestNVLink5SubCodesAreDecodedByBranchAndNeverMerged(t *testing.T) {
	tables := builtin(t)
	for _, c := range []struct {
		name               string
		xid                int
		unit               string
		intrinfo, status   uint32
		driver             int
		severity           Severity
		advice             Advice
		wantUnit, wantInfo string
	}{
		{"link down with a peer to look at, old branch", 149, "NETIR_LINK_EVT", 0x025525c6, 0, 570, Critical, ResetGPU, "NETIR_LINK_EVT/NETIR_LINK_DOWN", "INVESTIGATE_PEER_DEVICE"},
		{"link down, signal integrity", 149, "NETIR_LINK_EVT", 0x004505c6, 0, 0, Critical, ResetGPU, "NETIR_LINK_EVT/NETIR_LINK_DOWN", "INVESTIGATE_LINK_SI"},
		{"link down, new branch", 149, "NETIR_LINK_EVT/NETIR_LINK_DOWN", 0x02500011, 0, 575, Critical, ResetGPU, "NETIR_LINK_EVT/NETIR_LINK_DOWN", "INVESTIGATE_PEER_DEVICE"},
		{"bit errors only", 149, "NETIR_BER_EVENT", 0x00086226, 1, 0, Warning, None, "NETIR_BER_EVENT", "INVESTIGATE_LINK_SI_AND_CABLES"},
		{"left to xid 154", 145, "RLW_SRC_TRACK", 0x040988e2, 8, 0, Warning, None, "RLW_SRC_TRACK", "IGNORE"},
		{"same unit, fatal case", 145, "RLW_SRC_TRACK", 0x040988e2, 1, 0, Fatal, ResetGPU, "RLW_SRC_TRACK", "CONTACT_SUPPORT"},
		{"same unit, harmless case", 145, "RLW_SRC_TRACK", 0x040988e2, 2, 0, Info, None, "RLW_SRC_TRACK", "IGNORE"},
	} {
		r, ok := tables.NVLink5(c.xid, c.unit, c.intrinfo, c.status, c.driver)
		s, a := r.Judge()
		if !ok || s != c.severity || a != c.advice || r.Unit != c.wantUnit || r.Investigate != c.wantInfo {
			t.Errorf("%s: %v %s %s %+v", c.name, ok, s, a, r)
		}
	}
	if _, ok := tables.NVLink5(149, "NETIR_LINK_EVT", 0x004505c6, 0, 580); ok {
		t.Error("a register of the old branch was decoded with the new branch's pattern")
	}
	if _, ok := tables.NVLink5(149, "NO_SUCH_UNIT", 0x004505c6, 0, 0); ok {
		t.Error("a unit that no rule names was decoded")
	}
}

func TestATableWithNonsenseDoesNotLoad(t *testing.T) {
	const head = "code\tname\tmnemonic\tclass\tseverity\tadvice\tapp_caused\trole\tclears\tofficial\tofficial_followup\tnote\tsources\n"
	key := func(r XID) int { return r.Code }
	for _, c := range []struct{ name, data, want string }{
		{"unknown severity", head + "1\ta\t\tapp\tdeadly\tnone\tno\tcause\t\t\t\t\t\n", `t.tsv:2: severity: "deadly" is none of info`},
		{"unknown advice", head + "1\ta\t\tapp\tinfo\tpray\tno\tcause\t\t\t\t\t\n", `t.tsv:2: advice: "pray"`},
		{"the same code twice", head + "1\ta\t\tapp\tinfo\tnone\tno\tcause\t\t\t\t\t\n1\tb\t\tapp\tinfo\tnone\tno\tcause\t\t\t\t\t\n", "t.tsv:3: 1 is there twice"},
		{"a code that is no number", head + "x\ta\t\tapp\tinfo\tnone\tno\tcause\t\t\t\t\t\n", `t.tsv:2: code: "x" is not a code`},
		{"a missing column", head + "1\ta\n", "t.tsv:2: 2 columns where 13"},
		{"an empty name", head + "1\t\t\tapp\tinfo\tnone\tno\tcause\t\t\t\t\t\n", "t.tsv:2: name is empty"},
		{"a renamed column", strings.Replace(head, "advice", "bucket", 1), `t.tsv:1: column 6 is "bucket"`},
	} {
		if _, err := readTable("t.tsv", c.data, xidColumns, key); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestAnOperatorMayOverrideAnyRow(t *testing.T) {
	tables := builtin(t)
	mine, err := tables.Override("site.yaml", []byte(`
xid:
- code: 31
  severity: critical
  advice: reset-gpu
  note: |
    Bad risers here:
    ask the hall's staff.
- code: 900
  name: our own code
  class: firmware
  severity: fatal
  advice: reboot-node
sxid:
- {code: 20034, advice: reboot-node}
recovery:
- {action: Drain P2P, severity: info}
nvlink5:
- {xid: 145, unit: RLW_REMAP, intrinfo_before_575: "------000000----------0010000010", error_status: "0x00000001", resolution: RESET_GPU, fatality: fatal}
signal:
- {kind: mlx5, name: link down, severity: info}
`))
	if err != nil {
		t.Fatal(err)
	}
	if r := mine.XID(31); r.Severity != Critical || r.Advice != ResetGPU || r.Name != "MMU page fault" || !r.Overridden || r.Note != "Bad risers here:\nask the hall's staff.\n" {
		t.Errorf("xid 31: %+v", r)
	}
	if r := mine.XID(900); !r.Known || r.Severity != Fatal || r.Role != Cause {
		t.Errorf("xid 900: %+v", r)
	}
	if r := mine.SXid(20034); r.Advice != RebootNode || r.Fatality != PotentiallyFatal {
		t.Errorf("sxid 20034: %+v", r)
	}
	if r := mine.Recovery("Drain P2P"); r.Severity != Info || r.Advice != CheckFabric {
		t.Errorf("recovery: %+v", r)
	}
	if r, ok := mine.NVLink5(145, "RLW_REMAP", 0x82, 1, 570); !ok || r.Resolution != ResolveReset {
		t.Errorf("nvlink5: %v %+v", ok, r)
	}
	if r := mine.Signal("mlx5", "link down"); r.Severity != Info || r.Advice != CheckFabric {
		t.Errorf("signal: %+v", r)
	}
	if r := tables.XID(31); r.Severity != Warning || r.Overridden {
		t.Errorf("the built-in row changed: %+v", r)
	}
}

func TestAnOverrideWithNonsenseIsRefusedWithItsPlace(t *testing.T) {
	tables := builtin(t)
	any32 := `"` + strings.Repeat("-", 32) + `"`
	for _, c := range []struct{ name, yaml, want string }{
		{"unknown table", "gpu:\n- {code: 1}\n", `site.yaml:1:1: unknown table "gpu"`},
		{"unknown column", "xid:\n- {code: 31, colour: red}\n", `site.yaml:2:14: unknown column "colour"`},
		{"unknown severity", "xid:\n- {code: 31, severity: deadly}\n", `site.yaml:2:24: severity: "deadly"`},
		{"no code", "xid:\n- {severity: info}\n", "a row needs code"},
		{"a code twice", "xid:\n- {code: 31, severity: info}\n- {code: 31, severity: fatal}\n", "31 is there twice"},
		{"a new row without advice", "xid:\n- {code: 901, name: n, class: app, severity: info}\n", "901 is not in the table: a new row needs advice"},
		{"not a list", "xid: 31\n", "a list of rows is wanted"},
		{"a list for a value", "xid:\n- {code: 31, note: [a]}\n", "note: one value is wanted"},
		{"an empty name", "xid:\n- {code: 31, name: \"\"}\n", "name is empty"},
		{"clears without its role", "xid:\n- {code: 31, clears: 13}\n", "role clear and a code in clears go together"},
		{"no yaml at all", "xid: [", "site.yaml"},
		{"an anchor", "xid:\n- {code: 31, note: &a x}\n", "site.yaml:2:20: note: one value is wanted"},
		{"an alias", "xid:\n- {code: 31, note: x}\n- {code: 32, note: *a}\n", "site.yaml:3:20: note: one value is wanted"},
		{"a code twice, in two documents", "xid:\n- {code: 31, severity: info}\n---\nxid:\n- {code: 31, severity: fatal}\n", "site.yaml:5:3: 31 is there twice"},
		{"a column twice", "xid:\n- {code: 31, severity: info, severity: fatal}\n", `mapping key "severity" already defined`},
		{"a value of two actions", "recovery:\n- {action: Drain P2P, value: 0}\n", `recovery "None": 0 is the value of "Drain P2P"`},
		{"registers that no line has", "nvlink5:\n- {xid: 13, unit: U, intrinfo_before_575: " + any32 + ", intrinfo_from_575: " + any32 + ", error_status: 0x1, resolution: IGNORE, fatality: fatal}\n",
			"nvlink5 U: only lines of xid 144 to 150 are decoded, not of 13"},
		{"a signal that no line is known by", "signal:\n- {kind: mlx5, name: lnk down, severity: info, advice: none}\n", "site.yaml:2:3: {mlx5 lnk down} is not in the table, and no line would be known by it"},
	} {
		if _, err := tables.Override("site.yaml", []byte(c.yaml)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if _, err := tables.Override("empty.yaml", nil); err != nil {
		t.Errorf("an empty file: %v", err)
	}
}
