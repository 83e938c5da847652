package series

import (
	"math"
	"math/rand/v2"
	"testing"
)

// startSlow gives the samples of a series that has a mean of 0.1 for siblings, and is slow by a factor in its first 15 s.
func startSlow(factor float64, ref float32) (out []Sample) {
	rng := rand.New(rand.NewPCG(1, 1))
	at := int64(0)
	for i := range 400 {
		v := 0.1 * math.Exp(0.01*rng.NormFloat64())
		if i < 150 {
			v *= factor
		}
		at += int64(v * 1e9)
		out = append(out, Sample{T: at, V: v, Told: true, Ref: ref})
	}
	return out
}

func TestASeriesThatIsSlowFromItsFirstSampleIsFoundByItsPriorAlone(t *testing.T) {
	for _, c := range []struct {
		name   string
		prior  *Prior
		factor float64
		ref    float32
		first  int // sample that opens a finding, at most; 0: none may
	}{
		{"without a prior it is taken for normal", nil, 1.3, 0, 0},
		{"with one it is found", &Prior{Level: 0.1, Noise: 0.01}, 1.3, 0, 20 + waitSamples},
		{"against siblings too", &Prior{Noise: 0.01, Reference: true}, 1.3, 0.1, 20},
		{"a healthy one is quiet", &Prior{Level: 0.1, Noise: 0.01}, 1, 0, 0},
		{"and so is one that is as far off as runs of a class are", &Prior{Noise: 0.01, Reference: true}, 1, 0.103, 0},
	} {
		e, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		id, _ := e.Add(Ratio)
		if c.prior != nil && !e.Prime(id, *c.prior) {
			t.Fatal("not primed")
		}
		opened := 0
		for i, x := range startSlow(c.factor, c.ref) {
			v := e.Observe(id, x)
			if c.prior != nil && !v.Known {
				t.Errorf("%s: sample %d is unknown", c.name, i)
			}
			if v.Change == Opened && i < 150 && opened == 0 {
				opened = i + 1
			}
		}
		if opened > c.first || c.first > 0 && opened == 0 {
			t.Errorf("%s: opened at %d", c.name, opened)
		}
	}
}

func TestAPriorIsForNewSeriesOfRatios(t *testing.T) {
	e, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	seen, _ := e.Add(Ratio)
	e.Observe(seen, Sample{T: 1, V: 1})
	counter, _ := e.Add(Counter)
	fresh, _ := e.Add(Ratio)
	for _, c := range []struct {
		id ID
		p  Prior
	}{{seen, Prior{Level: 1, Noise: 0.1}}, {counter, Prior{Level: 1, Noise: 0.1}}, {fresh, Prior{Level: 0, Noise: 0.1}}, {fresh, Prior{Level: -1, Noise: 0.1}},
		{fresh, Prior{Level: 1, Noise: math.NaN()}}, {fresh, Prior{Level: math.Inf(1), Noise: 0.1}}, {fresh, Prior{Level: 1}}} {
		if e.Prime(c.id, c.p) {
			t.Errorf("primed with %+v", c)
		}
	}
}
