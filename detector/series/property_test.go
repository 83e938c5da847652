package series

import (
	"math"
	"math/rand/v2"
	"testing"
)

// learnt gives engines in all sorts of states past their warm-up: steady, within a fault, after one, beside evaluations.
func learnt(t *testing.T, cfg Config, kind Kind, seed uint64) *Engine {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 77))
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Add(kind); err != nil {
		t.Fatal(err)
	}
	j := job{ms: math.Exp(2 + 5*rng.Float64()), noise: 0.05 * rng.Float64(), factor: 0.5 + 2*rng.Float64(), from: 100 + rng.IntN(500), steps: 700, seed: seed}
	j.to = j.from + rng.IntN(300)
	for _, x := range j.samples() {
		if rng.IntN(20) == 0 {
			x.Phase = 1
		}
		e.Observe(0, x)
	}
	return e
}

// extreme is any value, most of them outrageous.
func extreme(rng *rand.Rand) float64 {
	switch rng.IntN(4) {
	case 0:
		return math.Exp(1400*rng.Float64() - 700)
	case 1:
		return -math.Exp(1400*rng.Float64() - 700)
	case 2:
		return []float64{0, math.Copysign(0, -1), math.MaxFloat64, -math.MaxFloat64, 5e-324, 1e38, -1e39}[rng.IntN(7)]
	}
	return 500 * rng.Float64()
}

func TestAnyOneSampleMovesABaselineByAtMostThreeScalesTimesItsRate(t *testing.T) {
	moved := 0
	for seed := range uint64(300) {
		kind := []Kind{Ratio, Level}[seed%2]
		e := learnt(t, Config{}, kind, seed)
		rng := rand.New(rand.NewPCG(seed, 78))
		for range 40 {
			before := e.states[0]
			x := Sample{T: before.t + int64(before.every*1e9), V: extreme(rng), Told: true, Workload: 1}
			v := e.Observe(0, x)
			after := e.states[0]
			if v.Change == Accepted || after.n[0] < before.n[0] || int(before.n[0]) < warmSamples {
				continue // learnt anew, which is said
			}
			scale, unit := float64(before.relative(0, math.Abs(x.V))), 1.0
			if !before.is(flagRatio) {
				relative, u := before.units(0)
				scale, unit = float64(relative), u
			}
			rate := max(1/float64(before.n[0]+1), 1.0/baseLeast)
			most := 1.01*huber*scale*unit*rate + 2e-7*math.Abs(float64(before.loc[0]))
			if got := math.Abs(float64(after.loc[0]) - float64(before.loc[0])); !(got <= most) {
				t.Fatalf("seed %d: %g moves the baseline by %g, at most %g is allowed", seed, x.V, got, most)
			} else if got > 0 {
				moved++
			}
			if got := math.Abs(float64(after.par) - float64(before.par)); !(got <= most/unit+1e-6) {
				t.Fatalf("seed %d: %g moves odd against even steps by %g", seed, x.V, got)
			}
		}
	}
	if moved < 500 {
		t.Errorf("only %d samples moved anything: this test proves nothing", moved)
	}
}

func TestAnyRateAndAnyTwoTimesLeaveNumbers(t *testing.T) {
	for _, asked := range []float64{5e-324, 1e-50, maxAsked} {
		for _, k := range []Kind{Ratio, Level, Counter} {
			e, err := New(Config{Asked: asked})
			if err != nil {
				t.Fatal(err)
			}
			id, _ := e.Add(k)
			for i, at := range []int64{math.MinInt64, math.MaxInt64 - 1000e9} { // their difference is beyond an int64
				e.Observe(id, Sample{T: at, V: 5 + float64(i)})
			}
			if k == Counter && e.states[id].n[0] > 0 {
				t.Fatal("a rate without an interval was learnt")
			}
			for i := range 900 {
				v := e.Observe(id, Sample{T: math.MaxInt64 - 999e9 + int64(i)*1e9, V: 10 + 5*float64(i) + float64(i%7)})
				s := &e.states[id]
				if s.every < 0 || v.Score < 0 || !(v.Score <= 1) || !(s.fastTail.per > 0) || s.fast-s.fast != 0 {
					t.Fatalf("%g asked, kind %d, sample %d: score %g, %+v", asked, k, i, v.Score, *s)
				}
			}
		}
	}
}

func TestNoNumberAndNoInfinityEverMovesAState(t *testing.T) {
	for seed := range uint64(200) {
		e := learnt(t, Config{}, Kind(seed%4), seed)
		before := string(e.Snapshot()[200:]) // beyond the header, which counts them
		for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			x := Sample{T: e.states[0].t + 1e9, V: v, Told: true, Workload: 1, Phase: e.states[0].phase}
			if got := e.Observe(0, x); got.Known || got.Change != None {
				t.Fatalf("%g is judged: %+v", v, got)
			}
		}
		if after := string(e.Snapshot()[200:]); after[:len(after)-4] != before[:len(before)-4] {
			t.Fatalf("seed %d: the state moved", seed)
		}
	}
}

func TestAFiniteValueNeverLeavesANumberThatIsNone(t *testing.T) {
	for seed := range uint64(200) {
		e := learnt(t, Config{Bands: true}, Kind(seed%4), seed)
		rng := rand.New(rand.NewPCG(seed, 79))
		for range 300 {
			v := e.Observe(0, Sample{T: e.states[0].t + 1 + rng.Int64N(2e9), V: extreme(rng), Told: true, Workload: uint32(rng.IntN(3) / 2), Phase: uint8(rng.IntN(40) / 39)})
			s := &e.states[0]
			for _, x := range []float32{s.loc[0], s.scale[0], s.fast, s.slow, s.par, s.fastTail.q, s.fastTail.b, s.fastTail.per, s.every, float32(v.Score)} {
				if d := x - x; d != 0 {
					t.Fatalf("seed %d: %+v", seed, *s)
				}
			}
		}
	}
}
