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

// slowWander is the same noise at five minutes.
func slowWander(seed uint64, n int) []Sample {
	xs := wander(seed, n)
	for i := range xs {
		xs[i].T, xs[i].Told = int64(i)*300e9, false
	}
	return xs
}

func TestASlowSeriesHasAboutTheOnsetsThatAreAskedFor(t *testing.T) {
	seen := func(asked float64, uncalibrated bool) float64 {
		onsets, hours := 0, 0.0
		for seed := range uint64(8) {
			e, err := New(Config{Profile: Facility, Asked: asked})
			if err != nil {
				t.Fatal(err)
			}
			e.uncalibrated = uncalibrated
			id, _ := e.Add(Ratio)
			xs := slowWander(seed, 8_000)
			hours += float64(len(xs)) / 12
			for _, x := range xs {
				if e.Observe(id, x).Change == Opened {
					onsets++
				}
			}
		}
		return float64(onsets) / hours / asked
	}
	for _, asked := range []float64{0.2, 0.15} {
		if r := seen(asked, false); r < 0.5 || r > 2 {
			t.Errorf("asked %g: seen %.2f times that", asked, r)
		}
	}
	if r := seen(facFree, true); r < 2.5 {
		t.Errorf("without calibration: seen %.2f times what is asked: this test proves nothing", r)
	}
	day, month := seen(AskedShipped, false)*AskedShipped, seen(0.0014, false)*0.0014
	if !(month < day && day < AskedShipped && month < 0.003) { // of few, the practical floor lets fewer through; of fewer still, the tail
		t.Errorf("one a day asked: %.4f an hour; one a month: %.4f", day, month)
	}
}

func TestTheThresholdOfAnAskedRateIsAQuantileAndBeyondItATail(t *testing.T) {
	fill := func(seed uint64, blocks int) (o often) { // exponential samples: the maxima of blocks have an exponential tail
		rng := rand.New(rand.NewPCG(seed, 4))
		for range blocks * oftenBlock {
			o.take(2 * rng.ExpFloat64())
		}
		return o
	}
	const draws = 20
	for _, share := range []float64{0.5, 0.2, 0.1, 0.01, 0.001} {
		got, few := 0.0, 0.0
		for seed := range uint64(draws) {
			many, twelve := fill(seed, 400), fill(seed, 12)
			got, few = got+many.reach(share)/draws, few+twelve.reach(share)/draws
		}
		want := -2 * math.Log(1-math.Pow(1-share, 1.0/oftenBlock))
		if math.Abs(got-want) > 0.06*want {
			t.Errorf("a share of %g reaches %.2f nats, the law says %.2f", share, got, want)
		}
		if few < got*0.97 {
			t.Errorf("a share of %g: twelve blocks say %.2f nats, four hundred %.2f: few must not promise more", share, few, got)
		}
	}
}
