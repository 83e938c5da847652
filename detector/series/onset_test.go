package series

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestTheTimeLostIsCountedFromTheOnset(t *testing.T) {
	for _, c := range []struct {
		every, from, to float64 // s a sample, and the least and most of what is said of what was lost
	}{{0.05, 0.85, 1.1}, {1, 0.85, 1.1}} {
		e, err := New(Config{Asked: 0.05})
		if err != nil {
			t.Fatal(err)
		}
		id, _ := e.Add(Ratio)
		rng := rand.New(rand.NewPCG(3, 3))
		at, lost, clear := 0.0, 0.0, false
		for i := range 2000 {
			v := c.every * math.Exp(0.01*rng.NormFloat64())
			if i >= 1000 && at < 1e9 && lost < 6 {
				lost += 0.3 * v
				v *= 1.3
			}
			at += v
			if x := e.Observe(id, Sample{T: int64(at * 1e9), V: v, Told: true}); x.Change == Cleared {
				clear = true
				break
			}
		}
		if f := e.Finding(id); !clear || f.Lost < c.from*lost || f.Lost > c.to*lost {
			t.Errorf("samples of %g s: %.3g s lost were said to be %.3g (%+v)", c.every, lost, f.Lost, f)
		}
	}
}

func TestAFlatLineBeginsWithTheFirstOfItsValues(t *testing.T) {
	e, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	id, _ := e.Add(Level)
	rng := rand.New(rand.NewPCG(3, 3))
	for i := range 800 {
		v := 20 + rng.NormFloat64()
		if i >= 500 {
			v = 20
		}
		e.Observe(id, Sample{T: int64(i) * 1e9, V: v})
	}
	if f := e.Finding(id); f == nil || f.What != Flatline || math.Abs(float64(f.Onset)*1e-9-500) > 2 {
		t.Errorf("%+v, want an onset at 500 s", f)
	}
}
