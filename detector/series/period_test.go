package series

import (
	"math"
	"math/rand/v2"
	"testing"
)

// job of a slow series: it runs once a period, for a while, up to jitter early or late. Times are in minutes.
type cron struct {
	every, period, length, jitter float64
	days                          int
	seed                          uint64
	left                          int // the run that is left out; 0: none
	stop                          int // the run from which on there are none; 0: none
}

// samples gives the series and the index at which the run that is left out would have begun.
func (c cron) samples() (xs []Sample, due int) {
	rng := rand.New(rand.NewPCG(c.seed, 3))
	run, start := -1, 0.0
	for i := range int(float64(c.days) * 1440 / c.every) {
		t := float64(i) * c.every
		if k := int(t / c.period); k != run {
			run, start = k, float64(k)*c.period+c.period/2+(2*rng.Float64()-1)*c.jitter
			if k == c.left {
				due = int(start / c.every)
			}
		}
		v := 20 + rng.NormFloat64()
		if t >= start && t < start+c.length && (c.left == 0 || run != c.left) && (c.stop == 0 || run < c.stop) {
			v += 30
		}
		xs = append(xs, Sample{T: int64(t * 60e9), V: v})
	}
	return xs, due
}

// judged gives the verdicts and at which samples a period began and ended to be believed.
func (c cron) judged(t *testing.T, aperiodic bool) (vs []Verdict, from, to int, e *Engine) {
	t.Helper()
	e, err := New(Config{Profile: Facility})
	if err != nil {
		t.Fatal(err)
	}
	e.aperiodic = aperiodic
	_, _ = e.Add(Auto)
	xs, _ := c.samples()
	from, to = -1, -1
	for i, x := range xs {
		vs = append(vs, e.Observe(0, x))
		switch believed := e.ctx[0].period.believed(); {
		case believed && from < 0:
			from = i
		case !believed && from >= 0 && to < 0:
			to = i
		}
	}
	return vs, from, to, e
}

func TestARunThatIsLeftOutIsFoundByTheLearntPeriodAlone(t *testing.T) {
	const seeds = 8
	for name, c := range map[string]cron{
		"six hours":      {every: 5, period: 360, length: 15, jitter: 5, days: 14, left: 44},
		"seven hours":    {every: 5, period: 420, length: 45, jitter: 10, days: 14, left: 38},
		"ninety minutes": {every: 1, period: 90, length: 20, jitter: 4, days: 12, left: 170},
	} {
		found, without, silent, false1, false0 := 0, 0, 0, 0, 0
		hours := 0.0
		for c.seed = range uint64(seeds) {
			_, due := c.samples()
			late := due + int((c.length+c.period/2)/c.every)
			learnt, from, _, _ := c.judged(t, false)
			if from < 0 || from > due {
				t.Errorf("%s, seed %d: not learnt in time", name, c.seed)
				continue
			}
			hours += float64(due-from) * c.every / 60
			other, _, _, _ := c.judged(t, true)
			wrong, hit := onsets(learnt, from+1, due), onsets(learnt, due, late)
			false1, false0 = false1+wrong, false0+onsets(other, from+1, due)
			if hit > 0 {
				found++
			}
			if wrong == 0 {
				silent++
			}
			if onsets(other, due, late) > 0 {
				without++
			}
		}
		if found < seeds-1 || without > 2 || float64(false1) > hours*AskedShipped/3 || false1 > false0+4 {
			t.Errorf("%s: it is not learnt, or worth nothing", name)
		}
		t.Logf("%s: found %d of %d, %d where no period is learnt; %d silent; once learnt %d false onsets in %.0f hours, %d where none is", name, found, seeds, without, silent, false1, hours, false0)
	}
}

// onsets counts those of a stretch of samples.
func onsets(vs []Verdict, from, to int) (n int) {
	for _, i := range opened(vs) {
		if i >= from && i < to {
			n++
		}
	}
	return n
}

func TestAPeriodIsBelievedAfterThreePeriodsAndDroppedWhenItStops(t *testing.T) {
	for seed := range uint64(8) {
		c := cron{every: 5, period: 420, length: 60, jitter: 5, days: 14, seed: seed, stop: 30}
		_, from, to, _ := c.judged(t, false)
		per := int(c.period / c.every)
		stopped := c.stop * per
		if from < 6*per || from > stopped || to < stopped || to > stopped+5*per {
			t.Errorf("seed %d: believed from period %.1f to %.1f, the runs stop at 30", seed, float64(from)/float64(per), float64(to)/float64(per))
		}
	}
}

func TestNoPeriodIsBelievedWhereThereIsNone(t *testing.T) {
	for name, xs := range map[string][]Sample{
		"a day and a week": week(8000, func(_ int, v float64) float64 { return v }),
		"three humps of a day, of unlike height": week(8000, func(i int, _ float64) float64 {
			_, bin := dayBin(int64(i) * 300e9)
			return 50 + []float64{15, 25, 40}[bin/16]*math.Max(0, math.Sin(2*math.Pi*float64(bin%16)/16)) + float64(i*7919%13)/13
		}),
		"noise":      slowWander(1, 8000),
		"more noise": slowWander(2, 8000),
		"a walk": func() (xs []Sample) {
			rng, v := rand.New(rand.NewPCG(2, 2)), 1000.0
			for i := range 8000 {
				v += rng.NormFloat64()
				xs = append(xs, Sample{T: int64(i) * 300e9, V: v})
			}
			return xs
		}(),
	} {
		e, _ := New(Config{Profile: Facility})
		_, _ = e.Add(Auto)
		n := 0
		for _, x := range xs {
			e.Observe(0, x)
			if e.ctx[0].period.believed() {
				n++
			}
		}
		if n > 0 {
			t.Errorf("%s: a period of %d slots is believed for %d samples", name, e.ctx[0].period.lag, n)
		}
	}
}

func TestAPeriodIsLearntFromUnevenSamplesAndOverGaps(t *testing.T) {
	c := cron{every: 1, period: 100, length: 25, jitter: 3, days: 6}
	xs, _ := c.samples()
	rng := rand.New(rand.NewPCG(6, 6))
	e, _ := New(Config{Profile: Facility})
	_, _ = e.Add(Auto)
	believed := 0
	for i, x := range xs {
		if i > 4000 && i < 4250 || rng.IntN(30) == 0 { // a silence of four hours, and single samples
			continue
		}
		x.T += rng.Int64N(8e9)
		e.Observe(0, x)
		if p := &e.ctx[0].period; p.believed() && p.lag == 20 {
			believed++
		}
	}
	if believed < len(xs)/2 {
		t.Errorf("a hundred minutes are believed for %d of %d samples", believed, len(xs))
	}
}

func TestALearntPeriodIsTheSameAfterARestartAnywhere(t *testing.T) {
	c := cron{every: 5, period: 420, length: 60, jitter: 10, days: 12, seed: 1, left: 30}
	xs, due := c.samples()
	whole, from, _, a := c.judged(t, false)
	if from < 0 || from > due {
		t.Fatal("nothing is learnt: this test proves nothing")
	}
	rng := rand.New(rand.NewPCG(9, 9))
	for _, cut := range []int{from - 1, from + 1, due + 2, due + 40, rng.IntN(len(xs)), rng.IntN(len(xs))} {
		restartAt(t, xs, cut, whole, a)
	}
}

// A snapshot whose checksum fits may hold any period: what cannot be is forgotten, and nothing is read out of bounds.
func TestAForgedPeriodIsNoPanic(t *testing.T) {
	c := cron{every: 5, period: 420, length: 60, days: 5, seed: 1}
	xs, _ := c.samples()
	_, e := run(t, Config{Profile: Facility}, xs)
	good := e.ctx[0].period
	for name, forge := range map[string]func(p *period){
		"lag":        func(p *period) { p.lag = math.MaxUint16 },
		"short lag":  func(p *period) { p.lag = 1 },
		"no history": func(p *period) { p.known = 7 },
		"history":    func(p *period) { p.lag, p.next, p.known = 0, periodLeast, math.MaxUint32 },
		"best":       func(p *period) { p.lag, p.best, p.next = 0, math.MaxUint16, periodMost+1 },
		"next":       func(p *period) { p.lag, p.next = 0, math.MaxUint16 },
		"width":      func(p *period) { p.width = 0 },
		"counts":     func(p *period) { p.in, p.part, p.at, p.sums = 0, math.MaxUint16, math.MaxUint16, math.MaxUint32 },
		"numbers": func(p *period) {
			p.total, p.usual, p.least, p.most, p.worst, p.sum = math.NaN(), math.Inf(1), math.NaN(), math.Inf(-1), math.NaN(), math.NaN()
		},
	} {
		e.ctx[0].period = good
		forge(&e.ctx[0].period)
		next, _ := New(Config{Profile: Facility})
		if err := next.Restore(e.Snapshot()); err != nil {
			t.Fatal(err)
		}
		if p := &next.ctx[0].period; p.known > periodSlots || p.lag > periodMost {
			t.Fatalf("%s: %d slots and a lag of %d are taken up", name, p.known, p.lag)
		}
		for i := range 600 {
			if v := next.Observe(0, Sample{T: xs[len(xs)-1].T + int64(i+1)*300e9, V: float64(i % 84)}); !(v.Score >= 0 && v.Score <= 1) {
				t.Fatalf("%s: score %g", name, v.Score)
			}
		}
	}
}

func TestTheAutocorrelationIsThatOfTheSlots(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 1))
	p := period{width: periodWidth, next: periodLeast, last: 1}
	var seen []float64
	for i := range 1000 {
		x := math.Round(clamp(4*math.Sin(2*math.Pi*float64(i)/50)+rng.NormFloat64(), 4.5)*4) / 4
		p.push(x, 0, 1)
		seen = append(seen, x)
		p.lag, p.next = 0, periodLeast
		if i%97 != 0 || i < 200 {
			continue
		}
		last := seen[max(0, len(seen)-periodSlots):]
		for _, lag := range []int{6, 25, 50, 64} {
			mean, v, c := 0.0, 0.0, 0.0
			for _, x := range last {
				mean += x / float64(len(last))
			}
			for k, x := range last {
				v += (x - mean) * (x - mean) / float64(len(last))
				if k >= lag {
					c += (x*last[k-lag] - mean*mean) / float64(len(last)-lag)
				}
			}
			if got := float64(p.autocorrelation(lag)); math.Abs(got-c/v) > 1e-3 {
				t.Fatalf("after %d slots, lag %d: %.4f, want %.4f", i, lag, got, c/v)
			}
		}
	}
}
