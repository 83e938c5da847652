package kernel

import (
	"testing"

	"github.com/pitcrew/pitcrew/rules"
)

// The registers of a line, the driver's bracket and a switch's own word say more than a table. An operator's row says most.
func TestAnOperatorsRowHasTheLastWord(t *testing.T) {
	const (
		registers = "NVRM: Xid (PCI:0019:01:00): 145, RLW_SRC_TRACK Fatal XC1 i0 Link 12 (0x040988e2 0x00000001 0x0 0x0 0x0 0x0)"
		reset     = "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
		always    = "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 12020, Fatal, Link 48 x"
		atRest    = "pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"
		newCode   = "NVRM: Xid (PCI:0000:06:00): 900, ours"
	)
	for _, c := range []struct {
		name, yaml, line string
		severity         rules.Severity
		advice           rules.Advice
	}{
		{"the code that registers decode", "xid:\n- {code: 145, severity: info, advice: none}\n", registers, rules.Info, rules.None},
		{"the decode rule itself",
			`nvlink5: [{xid: 145, unit: RLW_SRC_TRACK, intrinfo_before_575: "------000000----------0011100010", error_status: "0x00000001", resolution: IGNORE, investigate: IGNORE}]`,
			registers, rules.Info, rules.None},
		{"the driver's action", "recovery:\n- {action: GPU Reset Required, severity: warning, advice: contact-support}\n", reset, rules.Warning, rules.ContactSupport},
		{"an NVSwitch code", "sxid:\n- {code: 12020, fatality: by-line, advice: contact-support}\n", always, rules.Fatal, rules.ContactSupport},
		{"a line without a code", "signal:\n- {kind: aer, name: uncorrected fatal, severity: info, advice: none}\n", atRest, rules.Info, rules.None},
		{"a code of one's own", "xid:\n- {code: 900, name: ours, class: firmware, severity: fatal, advice: reboot-node}\n", newCode, rules.Fatal, rules.RebootNode},
	} {
		mine, err := tables(t).Override("site.yaml", []byte(c.yaml))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		e, r := one(t, c.line)
		was := judge(tables(t), &e, "")
		if v := judge(mine, &e, ""); r != IsEvent || v.Severity != c.severity || v.Advice != c.advice || v == was {
			t.Errorf("%s: %v severity %s, advice %s; without the file %s, %s", c.name, r, v.Severity, v.Advice, was.Severity, was.Advice)
		}
	}
}

// A name that differs from its opposite by one word must not be read as it.
func TestEachWordOfAPCIeErrorHasItsSeverity(t *testing.T) {
	said := map[rules.Severity][]string{
		rules.Info: {"PCIe Bus Error: severity=Corrected, type=Physical Layer", "PCIe Bus Error: severity=Correctable, type=x", "AER: Corrected error message received from 0000:00:00.0",
			"AER: Multiple Correctable error message received from 0000:00:00.0"},
		rules.Warning: {"PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=x", "PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=x",
			"AER: Uncorrected (Non-Fatal) error message received from 0000:00:00.0", "AER: Uncorrectable (Non-Fatal) error message received from 0000:00:00.0"},
		rules.Critical: {"PCIe Bus Error: severity=Uncorrected (Fatal), type=x", "PCIe Bus Error: severity=Uncorrectable (Fatal), type=x",
			"AER: Uncorrected (Fatal) error message received from 0000:00:00.0", "AER: Uncorrectable (Fatal) error message received from 0000:00:00.0",
			"AER: can't recover (no error_detected callback)", "AER: device recovery failed"},
	}
	for severity, lines := range said {
		for _, line := range lines {
			e, r := one(t, "pcieport 0000:00:02.0: "+line)
			if v := judge(tables(t), &e, ""); r != IsEvent || e.Kind != AER || v.Severity != severity {
				t.Errorf("%s: %v %s %q, want %s", line, r, v.Severity, e.Case, severity)
			}
		}
	}
}
