package series

import (
	"math"
	"math/rand/v2"
	"testing"
)

// A throughput that stops is one story: told, accepted, and back. That it then stands still is a finding of its own.
func TestASeriesThatFallsToZeroIsToldOnceAndOnceWhenItIsBack(t *testing.T) {
	for _, told := range []bool{false, true} {
		e, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		id, _ := e.Add(Auto)
		rng := rand.New(rand.NewPCG(3, 3))
		var opened []int
		for i := range 1500 {
			v := 50 * math.Exp(0.02*rng.NormFloat64())
			if i >= 300 && i < 900 {
				v = 0
			}
			if x := e.Observe(id, Sample{T: int64(i) * 1e9, V: v, Told: told}); x.Change == Opened && e.Finding(id).What != Flatline {
				opened = append(opened, i)
			}
		}
		if len(opened) < 1 || len(opened) > 2 || opened[0] > 310 || len(opened) == 2 && (opened[1] < 900 || opened[1] > 910) {
			t.Errorf("told %v: findings opened at %v, want one soon after 300, and at most one soon after 900", told, opened)
		}
	}
}

func TestAConstantBelowAllLogarithmsIsQuiet(t *testing.T) {
	e, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	id, _ := e.Add(Ratio)
	for i := range 1000 {
		if x := e.Observe(id, Sample{T: int64(i) * 1e9, V: 5e-324}); x.Alarm {
			t.Fatalf("alarm at %d: %+v", i, e.Finding(id))
		}
	}
}
