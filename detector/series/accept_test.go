package series

import (
	"math"
	"slices"
	"testing"
)

func changes(vs []Verdict) (out []Change) {
	for _, v := range vs {
		if v.Change != None {
			out = append(out, v.Change)
		}
	}
	return out
}

func TestALevelThatStaysIsAcceptedAndItsEndIsNoNewFinding(t *testing.T) {
	vs, e := run(t, Config{}, job{ms: 100, noise: 0.01, factor: 1.4, from: 2000, to: 4000, steps: 6000, seed: 12}.samples())
	if got := changes(vs); !slices.Equal(got, []Change{Opened, Accepted, Cleared}) {
		t.Errorf("changes %v, want opened, accepted, cleared", got)
	}
	if f := e.Finding(0); f.State != StateCleared || math.Abs(f.Ratio-1.4) > 0.05 {
		t.Errorf("finding %+v", f)
	}
}

func TestALevelIsAcceptedOnceItOutlastsTheBaselineThatItContradicts(t *testing.T) {
	alarm := func(known int) (seconds float64) {
		vs, _ := run(t, Config{}, job{ms: 100, noise: 0.01, factor: 1.4, from: known, to: 9000, steps: 4000, seed: 12}.samples())
		for _, v := range vs {
			if v.Alarm {
				seconds += 0.14
			}
		}
		return seconds
	}
	if young, old := alarm(150), alarm(1500); young > 25 || old < 55 {
		t.Errorf("in alarm for %.0f s after 14 s of baseline, %.0f s after 150 s", young, old)
	}
}

func TestAFaultThatCrossesAToldChangeIsOneFindingAndEndsWithTheFault(t *testing.T) {
	for _, factor := range []float64{1.2, 0.8, 3} {
		xs := job{ms: 60, noise: 0.01, factor: factor, from: 800, to: 1000, steps: 2000, seed: 9}.samples()
		t0 := int64(0)
		for i := range xs {
			if i >= 900 {
				xs[i].V, xs[i].Workload = xs[i].V*1.6, 2
			}
			t0 += int64(xs[i].V * 1e6)
			xs[i].T = t0
		}
		vs, _ := run(t, Config{}, xs)
		if at := opened(vs); len(at) != 1 || at[0] < 800 || at[0] > 860 {
			t.Errorf("factor %g: opened at %v, want once in 800…860", factor, at)
		}
		for i := 1010; i < len(vs); i++ {
			if vs[i].Alarm {
				t.Errorf("factor %g: in alarm at %d", factor, i)
				break
			}
		}
	}
}

func TestADriftLeavesNoFalseBaselineBehind(t *testing.T) {
	const from, told, lasts = 1000, 1230, 45.0 // the change comes before the drift can be found: what is learnt then has some of it
	xs := job{ms: 35, noise: 0.01, steps: 3000, seed: 17}.samples()
	t0, drift, end := int64(0), 0.0, 0
	for i := range xs {
		if i >= told {
			xs[i].V, xs[i].Workload = xs[i].V*1.8, 2
		}
		if i >= from && drift < lasts {
			xs[i].V *= 1 + 0.4*drift/lasts
			drift += xs[i].V / 1000
			end = i + 1
		}
		t0 += int64(xs[i].V * 1e6)
		xs[i].T = t0
	}
	vs, _ := run(t, Config{}, xs)
	if at := opened(vs); len(at) != 1 || at[0] < from || at[0] > end {
		t.Errorf("opened at %v, want once in %d…%d", at, from, end)
	}
	for i := end + 20; i < len(vs); i++ {
		if vs[i].Alarm {
			t.Fatalf("in alarm at %d, after the drift's end at %d", i, end)
		}
	}
}

func TestShortStepsAfterAnEvaluationDoNotEndAFinding(t *testing.T) {
	xs := job{ms: 100, noise: 0.01, factor: 1.3, from: 900, to: 1100, steps: 1500, seed: 6}.samples()
	for i := range xs {
		switch {
		case i%50 == 0:
			xs[i].Phase = 1
		case i > 50 && i%50 <= 3: // the clock of a pipeline that refills
			xs[i].V *= 0.7
		}
	}
	if at := opened(first(run(t, Config{}, xs))); len(at) != 1 {
		t.Errorf("opened at %v, want once", at)
	}
}

func first(vs []Verdict, _ *Engine) []Verdict { return vs }
