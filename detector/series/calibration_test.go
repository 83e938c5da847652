package series

import (
	"math"
	"math/rand/v2"
	"testing"
)

// wander is noise as clocks have it and textbooks do not: each value remembers the one before, and the tail is heavy.
func wander(seed uint64, steps int) (xs []Sample) {
	rng := rand.New(rand.NewPCG(seed, 5))
	memory, t := 0.0, int64(0)
	for range steps {
		memory = 0.9*memory + 0.012*rng.NormFloat64()/math.Sqrt(0.15+rng.Float64())
		v := 200 * math.Exp(memory+0.01*rng.NormFloat64())
		t += int64(v * 1e6)
		xs = append(xs, Sample{T: t, V: v, Told: true, Workload: 1})
	}
	return xs
}

func TestWithoutCalibrationTheAskedRateIsExceededManyTimes(t *testing.T) {
	for _, asked := range []float64{30, 8} {
		seen := func(uncalibrated bool) float64 {
			onsets, hours := 0, 0.0
			for seed := range uint64(4) {
				e, err := New(Config{Asked: asked})
				if err != nil {
					t.Fatal(err)
				}
				e.uncalibrated = uncalibrated
				id, _ := e.Add(Ratio)
				xs := wander(seed, 60_000)
				hours += float64(xs[len(xs)-1].T) / 3600e9
				for _, x := range xs {
					if e.Observe(id, x).Change == Opened {
						onsets++
					}
				}
			}
			return float64(onsets) / hours / asked
		}
		if r := seen(false); r < 0.2 || r > 2 {
			t.Errorf("asked %g: seen %.2f times that", asked, r)
		}
		if r := seen(true); r < 3 {
			t.Errorf("asked %g without calibration: seen %.2f times that: this test proves nothing", asked, r)
		}
	}
}
