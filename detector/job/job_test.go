package job

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

var t0 = time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)

// gang is a synchronous job of ranks on nodes whose clocks do not agree. Each step takes as long as its slowest rank computes.
type gang struct {
	t       *testing.T
	e       *Engine
	rng     *rand.Rand
	job     string
	ranks   int
	attempt int
	now     time.Time
	ticked  time.Time
	step    int64
	compute func(rank int) float64 // seconds; nil: 0.2
	launch  func(rank int) float64
	silent  func(rank int) bool
	role    func(rank int) string
	pod     func(rank int) string
	world   int
	every   int64 // steps, of which one is measured; 0: each
	work    float64
	listed  []finding.Finding // not said
}

func newGang(t *testing.T, e *Engine, ranks int) *gang {
	t.Helper()
	return &gang{t: t, e: e, rng: rand.New(rand.NewPCG(4, 4)), job: "job-1", ranks: ranks, world: ranks, work: 32, now: t0}
}

func engine() *Engine { return New(Options{Cluster: "c", Gateway: "gw-0"}) }

func orElse[T any](f func(int) T, rank int, v T) T {
	if f != nil {
		return f(rank)
	}
	return v
}

func (g *gang) target(rank int) event.Target {
	pod := orElse(g.pod, rank, "pod-"+string(rune('a'+rank)))
	return event.Target{Node: "node-" + pod, PodUID: pod, Rank: &rank, WorldSize: g.world, Attempt: &g.attempt}
}

// run makes steps and gives what was found in them.
func (g *gang) run(steps int) []finding.Finding {
	var found []finding.Finding
	for range steps {
		g.step++
		took := make([]float64, g.ranks)
		slowest := 0.0
		for r := range took {
			took[r] = orElse(g.compute, r, 0.2) * math.Exp(0.01*g.rng.NormFloat64())
			slowest = max(slowest, took[r])
		}
		duration := slowest + 0.01
		g.now = g.now.Add(time.Duration(duration * float64(time.Second)))
		for _, r := range g.rng.Perm(g.ranks) {
			if orElse(g.silent, r, false) {
				continue
			}
			x := Sample{
				Job: g.job, Role: orElse(g.role, r, ""), Target: g.target(r), Step: g.step, Time: g.now.Add(time.Duration(r-3) * 40 * time.Millisecond),
				Rate: g.work / duration, Duration: duration, Wait: math.NaN(), Compute: math.NaN(), Launch: orElse(g.launch, r, 0.0005),
			} // the time is by the node's own clock
			if g.every == 0 || g.step%g.every == 0 {
				x.Wait, x.Compute = duration-took[r], took[r]
			}
			found = append(found, g.heard(g.e.Add(g.now, x))...)
		}
		found = append(found, g.tick()...)
	}
	return found
}

func (g *gang) tick() []finding.Finding {
	if g.now.Sub(g.ticked) < time.Second {
		return nil
	}
	g.ticked = g.now
	return g.heard(g.e.Tick(g.now))
}

// heard keeps what is only to be listed apart from what is said.
func (g *gang) heard(all []finding.Finding) (said []finding.Finding) {
	for _, f := range all {
		if f.ConditionOnly {
			g.listed = append(g.listed, f)
		} else {
			said = append(said, f)
		}
	}
	return said
}

// pass lets time pass without a step.
func (g *gang) pass(d time.Duration) (found []finding.Finding) {
	for end := g.now.Add(d); g.now.Before(end); {
		g.now = g.now.Add(time.Second)
		found = append(found, g.tick()...)
	}
	return found
}

func said(found []finding.Finding) string {
	var words []string
	for _, f := range found {
		w := f.Event.Data.Cause.Name
		if r := f.Event.Data.Target.Rank; r != nil {
			w += "(" + string(rune('0'+*r)) + ")"
		}
		if !f.Active {
			w = "-" + w
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

func (g *gang) want(found []finding.Finding, want string) []finding.Finding {
	g.t.Helper()
	if got := said(found); got != want {
		g.t.Fatalf("found %q, want %q", got, want)
	}
	for _, f := range found {
		if err := f.Event.Validate(); err != nil {
			g.t.Error(err)
		}
		if err := event.MayGateway(f.Event); err != nil {
			g.t.Error(err)
		}
	}
	return found
}

func slow(who int, factor float64) func(int) float64 {
	return func(r int) float64 {
		if r == who {
			return 0.2 * factor
		}
		return 0.2
	}
}

func TestASlowRankIsNamedWithItsPeersItsOnsetAndWhatItCosts(t *testing.T) {
	g := newGang(t, engine(), 8)
	g.want(g.run(100), "")
	from, at := g.step, g.now
	g.compute = slow(5, 1.3)
	f := g.want(g.run(40), "straggler(5)")[0]
	e, ev := f.Event, f.Event.Data.Evidence
	if e.Data.Target.Node != "node-pod-f" || e.Data.Target.Job.UID != "job-1" || event.GatewayOf(e.Source) != "gw-0" {
		t.Errorf("event %+v", e)
	}
	if d := e.Data.Onset.Sub(at); d < 0 || d > time.Second {
		t.Errorf("onset %v after the rank became slow at step %d: %s", d, from, ev.Raw)
	}
	if !strings.HasPrefix(ev.Baseline, "peers(7)") || *ev.Ratio < 1.25 || *ev.Ratio > 1.35 || *ev.Value < 0.24 || math.Abs(*ev.Expected-0.2) > 0.01 || ev.PromQL == "" || len(ev.Samples) == 0 {
		t.Errorf("evidence %+v", ev)
	}
	g.compute = nil
	end := g.want(g.run(60), "-straggler(5)")[0].Event
	// 40 steps of 60 ms more, for which eight GPUs waited
	if lost := end.Data.Evidence.LostGPUSeconds; lost < 0.7*40*0.06*8 || lost > 1.4*40*0.06*8 {
		t.Errorf("%g GPU-seconds lost, want about %g", lost, 40*0.06*8)
	}
	if end.Type != event.Recovery || end.ID == e.ID || end.Data.Evidence.State != event.StateCleared {
		t.Errorf("end %+v", end)
	}
}

func TestStepsThatWereNotMeasuredCostAsMuchAsThoseThatWere(t *testing.T) {
	lost := func(every int64) float64 {
		g := newGang(t, engine(), 8)
		g.every = every
		g.want(g.run(200), "")
		g.compute = slow(5, 1.5)
		g.want(g.run(80), "straggler(5)")
		g.compute = nil
		return g.want(g.run(160), "-straggler(5)")[0].Event.Data.Evidence.LostGPUSeconds
	}
	if a, b := lost(1), lost(4); math.Abs(a/b-1) > 0.15 {
		t.Errorf("%g GPU-seconds lost where each step is measured, %g where each fourth is", a, b)
	}
}

func TestNobodyIsNamedForWhatAllDoTogether(t *testing.T) {
	for what, f := range map[string]func(g *gang){
		"a schedule change":  func(g *gang) { g.work, g.compute = 48, func(int) float64 { return 0.32 } },
		"a warm-up":          func(g *gang) { g.compute = func(int) float64 { return 0.2 + 2/float64(g.step) } },
		"a checkpoint":       func(g *gang) { g.pass(20 * time.Second) },
		"an evaluation":      func(g *gang) { g.pass(2 * time.Minute) },
		"constant offsets":   func(g *gang) { g.compute = func(r int) float64 { return 0.2 * (0.85 + 0.03*float64(r)) } },
		"a second of delay":  func(g *gang) { g.compute = slow(2, 1.6); g.want(g.run(4), ""); g.compute = nil },
		"one long step only": func(g *gang) { g.compute = slow(2, 4); g.want(g.run(1), ""); g.compute = nil },
	} {
		t.Run(what, func(t *testing.T) {
			g := newGang(t, engine(), 8)
			if what == "constant offsets" || what == "a warm-up" { // there from the first step
				f(g)
			}
			g.want(g.run(80), "")
			f(g)
			g.want(g.run(120), "")
		})
	}
}

func TestALevelThatAllReachUntoldIsInformationAboutTheJobAndNamesNoRank(t *testing.T) {
	for what, f := range map[string]func(g *gang){
		"compute": func(g *gang) { g.compute = func(int) float64 { return 0.32 } },
		"launch":  func(g *gang) { g.launch = func(int) float64 { return 0.08 } },
	} {
		t.Run(what, func(t *testing.T) {
			g := newGang(t, engine(), 8)
			g.want(g.run(100), "")
			f(g)
			e := g.want(g.run(150), "slowdown -slowdown")[0].Event
			if e.Data.Severity != event.Info || e.Data.Target.Rank != nil || e.Subject != "job/job-1" || *e.Data.Evidence.Ratio < 1.3 {
				t.Errorf("event %+v", e)
			}
		})
	}
}

func TestASpikeOfLaunchLatencyIsNamedWithinTenSeconds(t *testing.T) {
	g := newGang(t, engine(), 8)
	g.want(g.run(100), "")
	from := g.now
	g.launch = func(r int) float64 {
		if r == 2 && g.now.Sub(from) < 15*time.Second {
			return 0.06
		}
		return 0.0005
	}
	found := g.want(g.run(150), "straggler(2) -straggler(2)")
	ev := found[0].Event
	if d := ev.Time.Sub(from); d > 10*time.Second || ev.Data.Evidence.Signal != "pitcrew.train.launch.latency" || math.Abs(*ev.Data.Evidence.Value-0.06) > 1e-9 || *ev.Data.Evidence.Expected > 0.001 {
		t.Errorf("named after %v: %+v", d, ev.Data.Evidence)
	}
}

func TestARankThatSlowlyFallsBackIsNamed(t *testing.T) {
	g := newGang(t, engine(), 8)
	g.want(g.run(100), "")
	from := g.now
	g.compute = func(r int) float64 {
		if r == 6 {
			return 0.2 * (1 + min(0.4, 0.01*g.now.Sub(from).Seconds()))
		}
		return 0.2
	}
	f := g.want(g.run(250), "straggler(6)")[0]
	if d := f.Event.Time.Sub(from); d > 40*time.Second {
		t.Errorf("named after %v", d)
	}
}

func TestARankOnASlowNodeIsNamedAtTheStart(t *testing.T) {
	g := newGang(t, engine(), 8)
	g.compute = slow(3, 1.6)
	g.want(g.run(120), "imbalance(3)")
}

func TestTheSlowAreComparedWithinTheirRole(t *testing.T) {
	g := newGang(t, engine(), 8)
	g.role = func(r int) string { return []string{"pp0", "pp1"}[r/4] }
	own := 1.0
	g.compute = func(r int) float64 {
		if r == 1 {
			return 0.1 * own
		}
		return []float64{0.1, 0.3}[r/4]
	}
	g.want(g.run(100), "")
	own = 1.5
	f := g.want(g.run(40), "straggler(1)")[0]
	if ev := f.Event.Data.Evidence; !strings.HasPrefix(ev.Baseline, "peers(3)") || !strings.Contains(ev.Raw, "role pp0") {
		t.Errorf("evidence %+v", ev)
	}
}

func TestASilentRankIsAbsentButNotWhileItsAgentIsReplaced(t *testing.T) {
	g := newGang(t, engine(), 12)
	g.want(g.run(60), "")
	g.silent = func(r int) bool { return r == 7 }
	g.want(g.run(60), "") // 12 seconds
	g.silent = nil
	g.want(g.run(60), "")
	g.silent = func(r int) bool { return r == 7 }
	f := g.want(g.run(120), "absent(7)")[0]
	if ev := f.Event.Data.Evidence; !strings.Contains(ev.Raw, "silent") || *ev.Value >= *ev.Expected {
		t.Errorf("evidence %+v", ev)
	}
	g.silent = nil
	g.want(g.run(60), "-absent(7)")
}

func TestARankThatStandsIsNotAbsentAndAJobThatStandsHasNoAbsentRanks(t *testing.T) {
	g := newGang(t, engine(), 12)
	g.want(g.run(60), "")
	g.silent = func(int) bool { return true }
	g.want(g.run(300), "") // a minute
	g.silent = func(r int) bool { return r == 7 }
	for range 60 {
		g.want(g.run(5), "")
		g.want(g.e.Add(g.now, Sample{Job: g.job, Target: g.target(7), Step: 60, Time: g.now, Stands: true}), "")
	}
}

func TestARankThatComesBackLaterThanItsJobIsNotAbsent(t *testing.T) {
	g := newGang(t, engine(), 12)
	g.want(g.run(60), "")
	g.want(g.pass(time.Minute), "") // held, say
	g.silent = func(r int) bool { return r == 7 }
	g.want(g.run(50), "")
	g.silent = nil
	g.want(g.run(60), "")
}

func TestARankThatWarmedUpForLongerIsFoundWhenItFallsBehind(t *testing.T) {
	g := newGang(t, engine(), 8)
	g.compute = slow(5, 8)
	g.want(g.run(5), "")
	g.compute = nil
	g.want(g.run(20), "")
	g.compute = slow(5, 1.3)
	g.want(g.run(20), "straggler(5)")
}

func TestMostRanksSilentAtOnceIsTheWayToThemAndNotTheirs(t *testing.T) {
	g := newGang(t, engine(), 10)
	g.want(g.run(60), "")
	g.silent = func(r int) bool { return r < 5 }
	g.want(g.run(200), "")
}
