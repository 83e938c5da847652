package job

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/detector/class"
	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

var gpt = Work{Workload: "model=gpt-124m;tokens=524288;seq=1024", GPU: "H100", Driver: "570.1", Framework: "torch 2.9.0"}

// fleet runs jobs one after another under one gateway.
type fleet struct {
	t     *testing.T
	e     *Engine
	store *class.Store
	now   time.Time
	jobs  int
}

func newFleet(t *testing.T, cfg class.Config) *fleet {
	t.Helper()
	store, err := class.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &fleet{t: t, store: store, now: t0, e: New(Options{Cluster: "c", Gateway: "gw-0", Classes: store})}
}

// job is a gang of four whose ranks tell of their work.
func (f *fleet) job(w Work) *gang {
	f.jobs++
	g := newGang(f.t, f.e, 4)
	g.job, g.now = fmt.Sprint("job-", f.jobs), f.now
	g.run(1)
	f.tell(g, w)
	return g
}

func (f *fleet) tell(g *gang, w Work) {
	for r := range g.ranks {
		f.e.Tell(g.now, g.job, g.target(r), w)
	}
}

// done ends a job by silence, and gives what is said at its end.
func (f *fleet) done(g *gang) []finding.Finding {
	found := g.pass(6 * time.Minute)
	f.now = g.now
	return found
}

// past runs jobs to their end, whose steps take factor as long as others', half as much again from step 300 on.
func (f *fleet) past(jobs int, w Work, factor float64) (found []finding.Finding) {
	for range jobs {
		g := f.job(w)
		scheduled(g, factor)
		found = append(found, g.run(500)...)
		found = append(found, f.done(g)...)
	}
	return found
}

func scheduled(g *gang, factor float64) {
	g.compute = func(int) float64 {
		if g.step >= 300 {
			return 0.3 * factor
		}
		return 0.2 * factor
	}
}

func TestAScheduleChangeThatSiblingsHadAtTheSameStepIsNoFinding(t *testing.T) {
	f := newFleet(t, class.Config{})
	f.past(3, gpt, 1)
	g := f.job(gpt)
	scheduled(g, 1)
	g.want(g.run(500), "")
	if c := f.e.Counts(); c.Classed != 1 || c.Classes != 1 || c.ClassRuns != 4 {
		t.Errorf("counts %+v", c)
	}
}

func TestWithoutSiblingsTheSameScheduleChangeIsAFinding(t *testing.T) {
	f := newFleet(t, class.Config{})
	f.past(3, gpt, 1)
	f.e.classes.blind = true
	g := f.job(gpt)
	scheduled(g, 1)
	found := g.run(500)
	if n := strings.Count(said(found), "slowdown"); n < 2 {
		t.Errorf("found %q: taking siblings' profiles away changes nothing", said(found))
	}
	for _, x := range found {
		if x.Event.Data.Severity != event.Info {
			t.Errorf("%s is %s", x.Event.Data.Cause.Signal(), x.Event.Data.Severity)
		}
	}
}

func TestAJobThatIsSlowerThanItsClassIsAFindingThatSaysByHowMuch(t *testing.T) {
	f := newFleet(t, class.Config{})
	f.past(3, gpt, 1)
	g := f.job(gpt)
	scheduled(g, 1.3) // from its first step on: by itself it has nothing to compare with
	found := g.want(g.run(120), "slowdown")
	e := found[0].Event
	ev := e.Data.Evidence
	if ev.Baseline != "class(3)" || *ev.Ratio < 1.2 || *ev.Ratio > 1.4 || math.Abs(*ev.Expected-0.21) > 0.02 || math.Abs(*ev.Value-0.27) > 0.03 ||
		!strings.Contains(ev.Raw, "3 earlier runs of gpt-124m on 4 × H100") || ev.LostGPUSeconds <= 0 || ev.PromQL == "" || len(ev.Samples) == 0 || *ev.Upper > *ev.Value {
		t.Errorf("evidence %+v", ev)
	}
	if e.Data.Target.Job.UID != g.job || e.Subject != "job/"+g.job || e.Data.Severity != event.Info {
		t.Errorf("event %+v", e)
	}
	// A level that stays is accepted and no recovery; the schedule's change goes on beneath it.
	g.want(g.run(400), "")
	end := f.done(g)
	if last := end[0].Event.Data.Evidence; said(end) != "-slowdown" || last.LostGPUSeconds < ev.LostGPUSeconds || *last.Ratio < 1.25 || *last.Ratio > 1.32 {
		t.Errorf("at its end %q, ratio %v", said(end), *last.Ratio)
	}
}

func TestAJobThatIsAsFastAsItsClassAgainRecovers(t *testing.T) {
	f := newFleet(t, class.Config{})
	f.past(3, gpt, 1)
	g := f.job(gpt)
	g.want(g.run(150), "")
	g.compute = func(int) float64 { return 0.2 * 1.15 }
	g.want(g.run(80), "slowdown")
	g.compute = nil
	g.want(g.run(60), "-slowdown")
}

func TestAFaultIsNotWhatSiblingsLearnToExpect(t *testing.T) {
	f := newFleet(t, class.Config{})
	f.past(1, gpt, 1)
	before, _ := f.store.Prior(key570(), "")
	g := f.job(gpt)
	g.run(100)
	g.compute = slow(1, 1.6) // a straggler: all steps are long
	g.run(150)
	f.done(g)
	after, _ := f.store.Prior(key570(), "")
	ref := f.store.Reference(key570(), "job-1")
	if after.Runs != 2 || after.P99 > before.P99*1.02 || ref.At(60) == 0 || ref.At(150) != 0 {
		t.Errorf("before %+v, after %+v; level %v at step 60 and %v at step 150", before, after, ref.At(60), ref.At(150))
	}
}

func key570() class.Key {
	return class.Key{Signature: class.Signature{Model: "gpt-124m", GPU: "H100", Driver: "570.1", Framework: "torch 2.9.0", TokensPerStep: 524288, SequenceLength: 1024, Ranks: 4}, Signal: classSignal}
}

func TestASlowDriverIsFoundAndExplainsItself(t *testing.T) {
	f := newFleet(t, class.Config{})
	f.past(4, gpt, 1)
	slower := gpt
	slower.Driver = "580.2"
	found := f.past(3, slower, 1.1)
	if said(found) == "slowdown -slowdown slow-driver" { // the first of them has no siblings: the schedule's change is information then
		found = found[2:]
	}
	if said(found) != "slow-driver" {
		t.Fatalf("found %q", said(found))
	}
	e := found[0].Event
	if err := event.MayGateway(e); err != nil || e.Validate() != nil || e.Data.Cause.Signal() != "class/slow-driver" || e.Data.Severity != event.Warning {
		t.Errorf("%v: %+v", err, e)
	}
	ev := e.Data.Evidence
	if math.Abs(*ev.Ratio-1.09) > 0.02 || math.Abs(*ev.Value / *ev.Expected - *ev.Ratio) > 1e-9 || *ev.Lower >= *ev.Expected || *ev.Upper <= *ev.Expected || ev.Baseline != "class(4)" {
		t.Errorf("evidence %+v", ev)
	}
	for _, words := range []string{"driver 580.2", "with 570.1", "3 runs against 4", "gpt-124m on 4 × H100", "look at the driver"} {
		if !strings.Contains(ev.Raw, words) {
			t.Errorf("%q does not say %q", ev.Raw, words)
		}
	}
	if again := f.past(1, slower, 1.1); len(again) != 0 {
		t.Errorf("said again: %q", said(again))
	}
	if again := f.past(9, slower, 1); said(again) != "-slow-driver" {
		t.Errorf("runs that are as fast as the others': %q", said(again))
	}
}

func TestAFrameworkThatIsSlowIsFoundAndAnUnknownPartIsNoReasonToBlame(t *testing.T) {
	framework, driver, noDriver, noGPU, noGPUDriver := gpt, gpt, gpt, gpt, gpt
	framework.Framework, driver.Driver, noDriver.Driver, noGPU.GPU = "torch 2.10.0", "580.2", "", ""
	noGPUDriver.GPU, noGPUDriver.Driver = "", "580.2"
	for _, c := range []struct {
		fast, slow Work
		said       bool
	}{{gpt, framework, true}, {gpt, driver, true}, {gpt, noDriver, false}, {noDriver, gpt, false}, {noGPU, noGPUDriver, false}} {
		f := newFleet(t, class.Config{})
		f.past(3, c.fast, 1)
		words := said(f.past(3, c.slow, 1.1))
		if strings.Contains(words, "slow-") != c.said {
			t.Errorf("%+v slower than %+v: found %q", c.slow, c.fast, words)
		}
		if f.e.Counts().Slower > 0 != c.said {
			t.Errorf("%+v", f.e.Counts())
		}
	}
}

func TestAClassOfWhichNothingRunsAnyMoreIsForgottenAsAFinding(t *testing.T) {
	f := newFleet(t, class.Config{})
	f.past(3, gpt, 1)
	slower := gpt
	slower.Driver = "580.2"
	f.past(3, slower, 1.1)
	if found := f.e.Tick(f.now.Add(slowerForget)); said(found) != "-slow-driver" || f.e.Counts().Slower != 0 {
		t.Errorf("found %q", said(found))
	}
}

func TestAJobThatTellsNothingOfItsWorkIsInNoClass(t *testing.T) {
	f := newFleet(t, class.Config{})
	for what, w := range map[string]Work{
		"nothing":           {},
		"only its GPU":      {GPU: "H100", Driver: "570.1", Framework: "torch 2.9.0"},
		"no model":          {Workload: "tokens=8;seq=8", GPU: "H100"},
		"no pairs":          {Workload: "gpt", GPU: "H100"},
		"tokens that lie":   {Workload: "model=gpt;tokens=many"},
		"a name twice":      {Workload: "model=a;model=b"},
		"an endless string": {Workload: "model=" + strings.Repeat("x", 1000)},
	} {
		g := f.job(w)
		g.run(60)
		if c := f.e.Counts(); c.Classed != 0 || c.Classes != 0 {
			t.Errorf("%s: %+v", what, c)
		}
		f.done(g)
	}
}

func TestRanksThatContradictEachOtherAreInNoClassUntilTheyAgree(t *testing.T) {
	f := newFleet(t, class.Config{})
	g := f.job(gpt)
	other := gpt
	other.GPU = "H200"
	f.e.Tell(g.now, g.job, g.target(3), other)
	g.run(60)
	if c := f.e.Counts(); c.Classed != 0 || c.Classes != 0 || c.Unclear != 1 {
		t.Errorf("counts %+v", c)
	}
	f.tell(g, gpt)
	g.run(100)
	if c := f.e.Counts(); c.Classed != 1 || c.Classes != 1 {
		t.Errorf("counts %+v", c)
	}
}

func TestWorksThatDifferInAnythingAreDifferentClasses(t *testing.T) {
	seen := map[string]bool{}
	for _, text := range []string{"model=a;tokens=8;seq=4", "model=a;tokens=8", "model=a;tokens=16;seq=4", "model=a;tokens=8;seq=4;tp=2", "model=a;tokens=8;seq=4;tp=4", "model=b;tokens=8;seq=4"} {
		model, tokens, length, ok := parseWorkload(text)
		k := fmt.Sprint(model, "|", tokens, "|", length)
		if !ok || seen[k] {
			t.Errorf("%s is %s, which another is", text, k)
		}
		seen[k] = true
	}
	a, _, _, _ := parseWorkload("tp=2; precision=fp8 ;model=a;")
	b, _, _, _ := parseWorkload("model=a;precision=fp8;tp=2")
	if a != b || a != "a;precision=fp8;tp=2" {
		t.Errorf("%q and %q: the order of the pairs makes another work", a, b)
	}
}

func TestNobodySpeaksForARankOfAnotherPod(t *testing.T) {
	f := newFleet(t, class.Config{})
	g := f.job(gpt)
	g.run(60)
	liar := g.target(0)
	liar.PodUID = "somebody"
	f.e.Tell(g.now, g.job, liar, Work{Workload: "model=other"})
	f.e.Tell(g.now, "no such job", liar, Work{Workload: "model=other"})
	g.run(60)
	if c := f.e.Counts(); c.Classed != 1 || c.Jobs != 1 || c.Unclear != 0 {
		t.Errorf("counts %+v", c)
	}
}

func TestClassesAreKeptAcrossARestart(t *testing.T) {
	path := t.TempDir() + "/classes"
	f := newFleet(t, class.Config{})
	f.past(3, gpt, 1)
	if err := f.store.Save(path); err != nil {
		t.Fatal(err)
	}
	again := newFleet(t, class.Config{})
	if err := again.store.Load(path); err != nil {
		t.Fatal(err)
	}
	again.now, again.jobs = f.now, f.jobs
	g := again.job(gpt)
	scheduled(g, 1)
	g.want(g.run(500), "")
	again.done(g)
	g = again.job(gpt)
	scheduled(g, 1.3)
	g.want(g.run(120), "slowdown")
}

func TestRunsAndSeriesOfManyJobsAreBounded(t *testing.T) {
	f := newFleet(t, class.Config{MaxRuns: 3})
	for i := range 8 {
		w := gpt
		w.Workload = fmt.Sprint("model=", i)
		for range 2 {
			g := f.job(w)
			g.run(150)
			f.done(g)
		}
	}
	c := f.e.Counts()
	if c.ClassRuns != 3 || c.ClassEvicted != 13 || f.e.classes.judge.Len() != 1 || len(f.e.classes.free) != 1 {
		t.Errorf("counts %+v, %d series", c, f.e.classes.judge.Len())
	}
}

func BenchmarkStepOf64RanksOfAClass(b *testing.B) {
	store, err := class.New(class.Config{})
	if err != nil {
		b.Fatal(err)
	}
	t := &testing.T{}
	f := &fleet{t: t, store: store, now: t0, e: New(Options{Cluster: "c", Gateway: "gw-0", Classes: store})}
	var g *gang
	for _, name := range []string{"sibling", "run"} {
		g = newGang(t, f.e, 64)
		g.job, g.pod = name, func(r int) string { return "pod-" + string(rune('0'+r)) }
		g.run(1)
		f.tell(g, gpt)
		g.run(map[string]int{"sibling": 2500, "run": 50}[name])
	}
	if c := f.e.Counts(); c.Classed != 2 || !f.e.recent.Front().Value.(*attempt).class.judged {
		b.Fatalf("%+v", c)
	}
	b.ReportAllocs()
	for b.Loop() {
		g.run(1)
		if g.step%5 == 0 {
			f.tell(g, gpt)
		}
	}
}
