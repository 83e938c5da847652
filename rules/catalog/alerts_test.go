package catalog

import (
	"testing"
	"time"

	"github.com/prometheus/prometheus/rules"

	"github.com/pitcrew/pitcrew/rules/ruletest"
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

// timeline is one of a record's test with its series.
type timeline struct {
	Timeline
	*stored
}

func (r *Record) timelines(t testing.TB) (out []timeline) {
	t.Helper()
	for _, l := range r.Test.Timelines() {
		s, err := store(time.Duration(r.Test.Step), l.Series)
		if err != nil {
			t.Fatalf("%s:%d: %s: %s: %v", r.File, r.Line, r.Alert, l.Name, err)
		}
		out = append(out, timeline{l, s})
	}
	return out
}

// holds reports whether an alert that fires at these times does what the timeline wants.
func (l timeline) holds(at []time.Duration, step time.Duration) bool {
	if l.Until == 0 {
		return len(at) == 0
	}
	from, until, ok := span(at, step)
	return ok && from == time.Duration(l.At) && until == time.Duration(l.Until)
}

func TestEachAlertFiresOnItsFaultClearsAndIsQuietJustBelow(t *testing.T) {
	for _, r := range tested(t) {
		t.Run(r.Alert, func(t *testing.T) {
			t.Parallel()
			step := time.Duration(r.Test.Step)
			run := func(s *stored, end time.Duration) []time.Duration {
				return firing(t, alertingRule(t, &r, r.condition(), r.notes()), rules.EngineQueryFunc(ruletest.Engine, s), step, end, nil)
			}
			end := time.Duration(0)
			for _, l := range r.timelines(t) {
				at := run(l.stored, l.end)
				from, until, _ := span(at, step)
				if !l.holds(at, step) {
					t.Errorf("%s:%d: %s: fires from %s until %s (%d evaluations), want from %s until %s", r.File, r.Line, l.Name, Duration(from), Duration(until), len(at), l.At, l.Until)
				}
				if until > l.end {
					t.Errorf("%s:%d: %s: still fires at the end of the series, so it is not shown that it clears", r.File, r.Line, l.Name)
				}
				end = max(end, l.end)
			}
			if at := run(&stored{}, end); (len(at) > 0) != (r.Test.Absent == fires) {
				t.Errorf("%s:%d: without any series it fires %d times, want %s", r.File, r.Line, len(at), r.Test.Absent)
			}
		})
	}
}
