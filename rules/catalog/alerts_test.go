package catalog

import (
	"testing"
	"time"

	"github.com/prometheus/prometheus/rules"
)

func shippedRecords(t testing.TB) []Record {
	t.Helper()
	all, err := Shipped()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func tested(t testing.TB) (out []Record) {
	for _, r := range shippedRecords(t) {
		if r.Test != nil {
			out = append(out, r)
		}
	}
	return out
}

// stores gives the timeline in which the fault comes and goes, and the one that stays just below it.
func (r *Record) stores(t testing.TB) (fault, below *stored) {
	t.Helper()
	step := time.Duration(r.Test.Step)
	fault, err := store(step, r.Test.Fires)
	if err != nil {
		t.Fatalf("%s:%d: %s: %v", r.File, r.Line, r.Alert, err)
	}
	if below, err = store(step, r.Test.Fires, r.Test.Below); err != nil {
		t.Fatalf("%s:%d: %s: %v", r.File, r.Line, r.Alert, err)
	}
	return fault, below
}

func TestEachAlertFiresOnItsFaultClearsAndIsQuietJustBelow(t *testing.T) {
	for _, r := range tested(t) {
		t.Run(r.Alert, func(t *testing.T) {
			t.Parallel()
			step := time.Duration(r.Test.Step)
			fault, below := r.stores(t)
			at := firing(t, alertingRule(t, &r, r.condition(), r.notes()), rules.EngineQueryFunc(engine, fault), step, fault.end, nil)
			from, until, ok := span(at, step)
			if !ok || from != time.Duration(r.Test.At) || until != time.Duration(r.Test.Until) {
				t.Errorf("%s:%d: fires from %s until %s (%d evaluations), want from %s until %s", r.File, r.Line, Duration(from), Duration(until), len(at), r.Test.At, r.Test.Until)
			}
			if until > fault.end {
				t.Errorf("%s:%d: still fires at the end of the series, so it is not shown that it clears", r.File, r.Line)
			}
			if at := firing(t, alertingRule(t, &r, r.condition(), r.notes()), rules.EngineQueryFunc(engine, below), step, below.end, nil); len(at) != 0 {
				t.Errorf("%s:%d: fires just below its threshold, first at %s", r.File, r.Line, at[0])
			}
			at = firing(t, alertingRule(t, &r, r.condition(), r.notes()), rules.EngineQueryFunc(engine, &stored{}), step, fault.end, nil)
			if (len(at) > 0) != (r.Test.Absent == fires) {
				t.Errorf("%s:%d: without any series it fires %d times, want %s", r.File, r.Line, len(at), r.Test.Absent)
			}
		})
	}
}
