package demo

import (
	"math"
	"strings"
	"testing"
	"time"
)

// paced are the logs of ranks whose steps take so many seconds each; from a step on another pace, a pause before the step after resumed.
func paced(world int, before, fault, after float64) (logs [][]Line, at, held time.Time) {
	began := time.Unix(1_800_000_000, 0)
	for range world {
		var l []Line
		t := float64(began.Unix())
		for step := int64(1); step <= 160; step++ {
			switch {
			case step <= 60:
				t += before
			case step <= 100:
				t += fault
			case step == 101:
				t += 3
			default:
				t += after
			}
			if step == 60 {
				at = began.Add(time.Duration((t - float64(began.Unix())) * 1e9)).Add(time.Millisecond)
			}
			if step == 100 {
				held = began.Add(time.Duration((t - float64(began.Unix())) * 1e9)).Add(time.Millisecond)
			}
			l = append(l, Line{Step: step, At: t})
		}
		logs = append(logs, l)
	}
	return logs, at, held
}

func TestWhatASlowFaultCostIsReadFromTheRanksLogs(t *testing.T) {
	near := func(a, b float64) bool { return math.Abs(a-b) < 0.002*math.Max(1, math.Abs(b)) }
	logs, at, held := paced(4, 0.1, 0.13, 0.1)
	r := Result{OK: true, Rank: 2}
	r.slowed(logs, at, held, 100)
	if x := r.Slowed; !r.OK || !near(x.StepBeforeS, 0.1) || !near(x.StepFaultS, 0.13) || !near(x.StepAfterS, 0.1) ||
		!near(x.FullSpeedS, 40*0.13+3) || !near(x.SavedPerHour, 4*3600*(1-0.1/0.13)) {
		t.Errorf("%+v %v", *x, r.Why)
	}
	for name, c := range map[string]struct {
		before, fault, after float64
		why                  string
	}{
		"the pace is not back":      {0.1, 0.13, 0.12, "the pace is not back"},
		"the fault slowed nothing":  {0.1, 0.101, 0.1, "did not slow"},
		"the move made it worse":    {0.1, 0.13, 0.2, "the pace is not back"},
		"it is only half back":      {0.1, 0.13, 0.115, "the pace is not back"},
		"it is no slower than ever": {0.1, 0.1, 0.1, "did not slow"},
	} {
		t.Run(name, func(t *testing.T) {
			logs, at, held := paced(4, c.before, c.fault, c.after)
			r := Result{OK: true}
			if r.slowed(logs, at, held, 100); r.OK || !strings.Contains(strings.Join(r.Why, "; "), c.why) {
				t.Errorf("%v %+v", r.Why, *r.Slowed)
			}
		})
	}
	t.Run("one rank stays slow", func(t *testing.T) {
		logs, at, held := paced(4, 0.1, 0.13, 0.1)
		slow, _, _ := paced(1, 0.1, 0.13, 0.13)
		logs[3] = slow[0]
		r := Result{OK: true}
		if r.slowed(logs, at, held, 100); r.OK || !strings.Contains(strings.Join(r.Why, "; "), "rank 3") {
			t.Errorf("%v", r.Why)
		}
	})
	t.Run("no step after the move", func(t *testing.T) {
		logs, at, held := paced(4, 0.1, 0.13, 0.1)
		for k := range logs {
			logs[k] = logs[k][:100]
		}
		r := Result{OK: true}
		if r.slowed(logs, at, held, 100); r.OK {
			t.Error("healed")
		}
	})
}
