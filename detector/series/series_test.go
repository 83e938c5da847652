package series

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// job makes a told training job: steps of ms with noise, and a factor for the steps of [from, to).
type job struct {
	ms, noise, factor float64
	from, to, steps   int
	seed              uint64
}

func (j job) samples() []Sample {
	rng := rand.New(rand.NewPCG(j.seed, 1))
	var out []Sample
	t := int64(0)
	for i := range j.steps {
		v := j.ms * math.Exp(j.noise*rng.NormFloat64())
		if i >= j.from && i < j.to {
			v *= j.factor
		}
		t += int64(v * 1e6)
		x := Sample{T: t, V: v, Told: true, Workload: 1}
		if i < 12 {
			x.Phase, x.V = Warmup, v*20
		}
		out = append(out, x)
	}
	return out
}

func run(t testing.TB, cfg Config, xs []Sample) (out []Verdict, e *Engine) {
	t.Helper()
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	id, err := e.Add(Auto)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range xs {
		out = append(out, e.Observe(id, x))
	}
	return out, e
}

func opened(vs []Verdict) (at []int) {
	for i, v := range vs {
		if v.Change == Opened {
			at = append(at, i)
		}
	}
	return at
}

func TestAStragglingStepIsFoundWithinSecondsAndEndsWithIt(t *testing.T) {
	for _, factor := range []float64{1.2, 1.5, 0.8, 3} {
		j := job{ms: 100, noise: 0.01, factor: factor, from: 600, to: 700, steps: 1000, seed: 3}
		vs, e := run(t, Config{}, j.samples())
		at := opened(vs)
		if len(at) != 1 || at[0] < 600 || at[0] > 640 {
			t.Errorf("factor %g: opened at %v, want once in 600…640", factor, at)
			continue
		}
		f := e.Finding(0)
		if f.State != StateCleared || math.Abs(f.Ratio-factor) > 0.1*factor || f.Severity != Warning {
			t.Errorf("factor %g: finding %+v", factor, f)
		}
		for i := 710; i < len(vs); i++ {
			if vs[i].Alarm {
				t.Errorf("factor %g: still in alarm at %d", factor, i)
				break
			}
		}
	}
}

func TestNothingIsFoundInAQuietJobAndTheWarmUpIsUnknown(t *testing.T) {
	vs, _ := run(t, Config{}, job{ms: 80, noise: 0.03, steps: 20_000, seed: 5}.samples())
	if at := opened(vs); len(at) != 0 {
		t.Errorf("opened at %v", at)
	}
	for i, v := range vs {
		if i < 12+warmSamples-1 && v.Known {
			t.Fatalf("sample %d of the warm-up is judged", i)
		}
	}
	if !vs[len(vs)-1].Known {
		t.Error("never judged")
	}
}

func TestAToldChangeOfWorkIsNoFindingAndAnUntoldOneIsInformation(t *testing.T) {
	xs := job{ms: 60, noise: 0.01, factor: 1.5, from: 800, to: 3000, steps: 3000, seed: 9}.samples()
	told := slices.Clone(xs)
	for i := range told {
		if i >= 800 {
			told[i].Workload = 2
		}
	}
	if vs, _ := run(t, Config{}, told); len(opened(vs)) != 0 {
		t.Errorf("told: opened at %v", opened(vs))
	}
	for i := range xs {
		xs[i].Told, xs[i].Workload = false, 0
	}
	vs, e := run(t, Config{}, xs)
	if at := opened(vs); len(at) != 1 {
		t.Fatalf("untold: opened at %v, want once", at)
	}
	if f := e.Finding(0); f.Severity != Info || f.State != StateAccepted || f.What != Shift {
		t.Errorf("untold: finding %+v, want an accepted shift for information", f)
	}
}

func TestPhasesAreJudgedApart(t *testing.T) {
	var xs []Sample
	t0 := int64(0)
	for i := range 4000 {
		v, phase := 50.0+float64(i%3), uint8(0)
		if i%100 >= 90 { // an evaluation ten times as slow
			v, phase = 500, 1
		}
		t0 += int64(v * 1e6)
		xs = append(xs, Sample{T: t0, V: v, Phase: phase, Told: true, Workload: 1})
	}
	if vs, _ := run(t, Config{}, xs); len(opened(vs)) != 0 {
		t.Errorf("told: opened at %v", opened(vs))
	}
	for i := range xs {
		xs[i].Phase = 0
	}
	if vs, _ := run(t, Config{}, xs); len(opened(vs)) == 0 {
		t.Error("without phases nothing is found: this test proves nothing")
	}
}

func TestSiblingsShowWhatASeriesAloneCannot(t *testing.T) {
	level := func(i int) float64 {
		if i < 1000 {
			return 60
		}
		return 90
	}
	past := make([][]float64, 4)
	for k := range past {
		for i := range 3000 {
			past[k] = append(past[k], level(i)*(1+0.01*math.Sin(float64(i*(k+1)))))
		}
	}
	ref := NewReference(past)
	for _, with := range []bool{true, false} {
		var xs []Sample
		t0 := int64(0)
		for i := range 3000 {
			v := level(i) * (1 + 0.01*math.Cos(float64(7*i)))
			if i >= 2000 && i < 2300 {
				v *= 1.05
			}
			t0 += int64(v * 1e6)
			x := Sample{T: t0, V: v}
			if with {
				x.Ref, x.Workload = ref.At(i), ref.Work(i)
			}
			xs = append(xs, x)
		}
		vs, _ := run(t, Config{}, xs)
		at := opened(vs)
		hit := slices.ContainsFunc(at, func(i int) bool { return i >= 2000 && i < 2300 })
		if with && (!hit || len(at) != 1) || !with && hit {
			t.Errorf("siblings %t: opened at %v", with, at)
		}
	}
}

func TestAStallAndAFlatLineAreNamed(t *testing.T) {
	xs := job{ms: 100, noise: 0.02, factor: 60, from: 500, to: 501, steps: 700, seed: 2}.samples()
	vs, e := run(t, Config{}, xs)
	if at := opened(vs); len(at) != 1 || at[0] != 500 || e.Finding(0).What != Stall {
		t.Errorf("stall: opened at %v", at)
	}
	if f := e.Finding(0); math.Abs(f.Ratio-60) > 6 || math.Abs(f.Lost-5.9) > 0.6 {
		t.Errorf("a step of 0.1 s that took 6 s: ratio %.3g, %.3g s lost", f.Ratio, f.Lost)
	}
	xs = job{ms: 1000, noise: 0.05, steps: 2000, seed: 4}.samples()
	for i := 1000; i < 2000; i++ {
		xs[i].V = xs[999].V
	}
	vs, e = run(t, Config{}, xs)
	if at := opened(vs); len(at) != 1 || e.Finding(0).What != Flatline {
		t.Errorf("flat line: opened at %v %+v", at, e.Finding(0))
	}
}

func TestASilentSeriesIsAbsentAndOneThatSpeaksIsNot(t *testing.T) {
	xs := job{ms: 1000, noise: 0.01, steps: 100, seed: 1}.samples()
	_, e := run(t, Config{}, xs)
	last := xs[99].T
	if e.Absent(0, last+2e9) || !e.Absent(0, last+4e9) {
		t.Error("absent after two intervals, or not after four")
	}
}

func TestNaNInfinityAndLateSamplesMoveNothing(t *testing.T) {
	xs := job{ms: 50, noise: 0.02, factor: 1.3, from: 300, to: 500, steps: 800, seed: 8}.samples()
	var dirty []Sample
	for i, x := range xs {
		dirty = append(dirty, x)
		for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			y := x
			y.V = v
			dirty = append(dirty, y)
		}
		if i > 5 {
			dirty = append(dirty, Sample{T: xs[i-3].T, V: 1e9, Told: true, Workload: 1, Phase: x.Phase})
		}
	}
	_, a := run(t, Config{}, xs)
	_, b := run(t, Config{}, dirty)
	if a.states[0] != b.states[0] {
		t.Errorf("state differs:\n%+v\n%+v", a.states[0], b.states[0])
	}
}

func TestTheSameSamplesGiveTheSameBytesAndARestartChangesNothing(t *testing.T) {
	for _, p := range []Profile{Training, Facility} {
		xs := job{ms: 100, noise: 0.02, factor: 1.4, from: 500, to: 620, steps: 1200, seed: 11}.samples()
		if p == Facility {
			for i := range xs {
				xs[i].T = int64(i) * 300e9
			}
		}
		whole, a := run(t, Config{Profile: p}, xs)
		again, b := run(t, Config{Profile: p}, xs)
		if fmt.Sprint(whole) != fmt.Sprint(again) || string(a.Snapshot()) != string(b.Snapshot()) {
			t.Fatalf("%s: two runs differ", p)
		}
		for _, cut := range []int{1, 40, 550, 700, 1199} {
			part, e := run(t, Config{Profile: p}, xs[:cut])
			if fmt.Sprint(part) != fmt.Sprint(whole[:cut]) {
				t.Fatalf("%s: the first %d verdicts depend on later samples", p, cut)
			}
			next, _ := New(Config{Profile: p})
			if err := next.Restore(e.Snapshot()); err != nil {
				t.Fatal(err)
			}
			for _, x := range xs[cut:] {
				part = append(part, next.Observe(0, x))
			}
			if fmt.Sprint(part) != fmt.Sprint(whole) || string(next.Snapshot()) != string(a.Snapshot()) {
				t.Fatalf("%s: a restart after %d samples changes what is said", p, cut)
			}
		}
	}
}

func TestACorruptSnapshotIsRefusedAndTheOlderUsed(t *testing.T) {
	path := t.TempDir() + "/series"
	xs := job{ms: 100, noise: 0.02, steps: 400, seed: 11}.samples()
	_, e := run(t, Config{}, xs[:300])
	if err := e.Save(path); err != nil {
		t.Fatal(err)
	}
	old := string(e.Snapshot())
	for _, x := range xs[300:] {
		e.Observe(0, x)
	}
	if err := e.Save(path); err != nil {
		t.Fatal(err)
	}
	damage(t, path)
	got, _ := New(Config{})
	if err := got.Load(path); err != nil || string(got.Snapshot()) != old {
		t.Errorf("load: %v, or not the older one", err)
	}
	damage(t, path+".old")
	if err := got.Load(path); err == nil {
		t.Error("two corrupt snapshots are taken")
	}
}

func TestTheCoreStateIsSmallAndTheBoundHolds(t *testing.T) {
	if StateSize > 192 {
		t.Errorf("state is %d bytes, 192 are allowed", StateSize)
	}
	e, _ := New(Config{MaxSeries: 2})
	for i := range 3 {
		if _, err := e.Add(Auto); (err != nil) != (i == 2) {
			t.Errorf("series %d: %v", i, err)
		}
	}
}

func TestACounterIsJudgedByItsRateAndAResetIsNone(t *testing.T) {
	e, _ := New(Config{Kind: Counter})
	id, _ := e.Add(Auto)
	total, opens := 0.0, 0
	for i := range 2000 {
		total += 100 + float64(i%7)
		if i == 1000 {
			total = 0
		}
		if e.Observe(id, Sample{T: int64(i+1) * 1e9, V: total}).Change == Opened {
			opens++
		}
	}
	if opens != 0 || e.Counts().Resets != 1 {
		t.Errorf("%d findings, %d resets", opens, e.Counts().Resets)
	}
}

func TestMoreIsFoundWhereMoreIsAskedFor(t *testing.T) {
	xs := job{ms: 100, noise: 0.05, steps: 200_000, seed: 21}.samples()
	hours := float64(xs[len(xs)-1].T) / 3600e9
	for _, asked := range []float64{30, 8} {
		vs, _ := run(t, Config{Asked: asked}, xs)
		seen := float64(len(opened(vs))) / hours
		if seen > 2*asked || seen < asked/8 {
			t.Errorf("asked %g, seen %.3g per hour", asked, seen)
		}
	}
}

func TestTheRatioOfAnOpenFindingIsOneToTheExpectedLevel(t *testing.T) {
	xs := job{ms: 100, noise: 0.02, factor: 1.5, from: 500, to: 600, steps: 505 + waitSamples, seed: 2}.samples()
	_, e := run(t, Config{}, xs)
	f := e.Finding(0)
	if f == nil || f.State != StateOpen || f.Ratio < 1.05 || f.Ratio > 1.5 {
		t.Errorf("half as much again, while open: %+v", f)
	}
}
