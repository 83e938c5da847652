package kernel

import (
	"slices"

	"github.com/pitcrew/pitcrew/detector/verdict"
	"github.com/pitcrew/pitcrew/rules"
)

// judge has the detector judge an event, so that the tests go from a line to what is known about it.
func judge(t *rules.Tables, e *Event, driver string) verdict.Verdict {
	l := verdict.Line{
		Kind: string(e.Kind), Case: e.Case, Code: e.Code, PCI: e.PCI.String(), MIG: e.MIG(), Action: string(e.Action), CausedBy: e.CausedBy,
		Unit: string(e.Unit), Registers: slices.Clone(e.Reg[:e.Regs]), Driver: Major(driver),
		Word: map[Word]verdict.Word{NonFatal: verdict.NonFatal, Fatal: verdict.Fatal}[e.Word],
	}
	if e.ActionValue >= 0 {
		l.ActionValue = &e.ActionValue
	}
	return verdict.Judge(t, &l)
}
