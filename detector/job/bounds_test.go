package job

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

func TestANewAttemptBeginsInSilenceAndTheOldOnesFindingsEnd(t *testing.T) {
	g := newGang(t, engine(), 8)
	g.want(g.run(60), "")
	g.compute = slow(5, 1.5)
	g.want(g.run(40), "straggler(5)")
	g.attempt, g.compute = 1, nil
	g.step -= 30
	g.pass(20 * time.Second)
	g.want(g.run(100), "")
	g.want(g.pass(DefaultForget-2*time.Minute), "")
	g.want(g.run(1), "")
	g.want(g.pass(2*time.Minute), "-straggler(5)")
}

func TestAnAttemptThatBeginsAnewUnderItsNumberIsLearntAnew(t *testing.T) {
	g := newGang(t, engine(), 8)
	g.want(g.run(60), "")
	g.compute = slow(5, 1.5)
	g.want(g.run(40), "straggler(5)")
	g.step, g.compute = 50, nil // the container was restarted in place
	g.pass(10 * time.Second)
	g.want(g.run(100), "-straggler(5)")
	g.pod = func(r int) string { return "new-pod-" + string(rune('a'+r)) } // all pods were made anew
	g.pass(10 * time.Second)
	g.want(g.run(100), "")
	if c := g.e.Counts(); c.Restarts != 2 || c.Contested != 0 || c.Ranks != 8 {
		t.Errorf("counts %+v", c)
	}
}

func TestARankThatTwoPodsClaimIsJudgedByNobody(t *testing.T) {
	g := newGang(t, engine(), 8)
	g.want(g.run(60), "")
	g.compute = slow(5, 1.5)
	liar := g.target(5)
	liar.PodUID, liar.Node = "liar", "elsewhere"
	for range 100 {
		g.want(g.run(1), "")
		g.want(g.e.Add(g.now, Sample{Job: g.job, Target: liar, Step: g.step, Time: g.now, Duration: 0.2, Wait: 0.1, Compute: 0.1, Launch: 0}), "")
	}
	g.want(g.pass(contestHold+time.Second), "")
	if found := g.run(60); !strings.Contains(said(found), "(5)") {
		t.Errorf("after the contest: %q", said(found))
	}
	if g.e.Counts().Contested != 100 {
		t.Errorf("counts %+v", g.e.Counts())
	}
}

func TestAWorldOfAnotherSizeIsADispute(t *testing.T) {
	g := newGang(t, engine(), 8)
	g.want(g.run(60), "")
	liar := g.target(9)
	liar.WorldSize = 10
	g.compute = slow(5, 1.5)
	for range 60 {
		g.want(g.run(1), "")
		g.want(g.e.Add(g.now, Sample{Job: g.job, Target: liar, Step: g.step, Time: g.now, Duration: 0.2, Wait: 0.1, Compute: 0.1}), "")
	}
}

func TestFewRanksOfManyAreNotCompared(t *testing.T) {
	g := newGang(t, engine(), 8)
	g.world = 16
	g.compute = slow(5, 2)
	g.want(g.run(200), "")
	if c := g.e.Counts(); c.Jobs != 1 || c.Judged != 0 {
		t.Errorf("counts %+v", c)
	}
}

func TestWhatADeviceTellsLaterIsJoinedByTheTimeOfItsStep(t *testing.T) {
	e := engine()
	g := newGang(t, e, 8)
	var found []finding.Finding
	type late struct{ s Sample }
	var waiting []late
	for n := range 160 {
		g.now = g.now.Add(200 * time.Millisecond)
		for r := range 8 {
			c := 0.15
			if r == 4 && n >= 100 {
				c *= 1.3
			}
			at := g.now.Add(time.Duration(r) * time.Millisecond)
			found = append(found, e.Add(g.now, Sample{Job: g.job, Target: g.target(r), Step: int64(n), Time: at, Duration: 0.2, Wait: math.NaN(), Compute: math.NaN(), Launch: math.NaN()})...)
			c *= math.Exp(0.01 * g.rng.NormFloat64())
			waiting = append(waiting, late{Sample{Job: g.job, Target: g.target(r), Step: -1, Time: at, Duration: math.NaN(), Wait: 0.2 - c, Compute: c, Rate: 32 / 0.2, Launch: math.NaN()}})
		}
		for len(waiting) > 8*8 { // eight steps later
			found = append(found, e.Add(g.now, waiting[0].s)...)
			waiting = waiting[1:]
		}
		found = append(found, g.tick()...)
	}
	g.want(found, "straggler(4)")
	if len(found[0].Event.Data.Evidence.Signals)+1 < 1 || e.Counts().Unjoined != 0 || e.Counts().Late != 0 {
		t.Errorf("counts %+v", e.Counts())
	}
	e.Add(g.now, Sample{Job: g.job, Target: g.target(1), Step: -1, Time: g.now.Add(time.Hour), Compute: 1})
	if e.Counts().Unjoined != 1 {
		t.Error("a value of a step that nobody knows was joined")
	}
}

func TestTheSameOnsetHasOneIdAtEachGateway(t *testing.T) {
	var ids []string
	for _, gw := range []string{"gw-0", "gw-1"} {
		g := newGang(t, New(Options{Cluster: "c", Gateway: gw}), 8)
		g.want(g.run(100), "")
		g.compute = slow(5, 1.3)
		ids = append(ids, g.want(g.run(40), "straggler(5)")[0].Event.ID)
	}
	if ids[0] != ids[1] {
		t.Errorf("ids %v", ids)
	}
}

func TestNamesThatSomebodyMakesUpPushOutEachOther(t *testing.T) {
	e := New(Options{Cluster: "c", Gateway: "g", MaxJobs: 8, MaxRanks: 40})
	g := newGang(t, e, 8)
	g.want(g.run(60), "")
	for i := range 5000 {
		tg := g.target(i % 8)
		tg.PodUID = "liar"
		e.Add(g.now, Sample{Job: "made-up-" + string(rune('a'+i%26)) + string(rune('a'+i/26%26)), Target: tg, Step: 1, Time: g.now, Compute: 1})
		if c := e.Counts(); c.Jobs > 8 || c.Ranks > 40 {
			t.Fatalf("counts %+v", c)
		}
	}
	big := newGang(t, e, 8)
	big.job, big.world = "big", 100
	for r := range 100 {
		e.Add(g.now, Sample{Job: "big", Target: big.target(r), Step: 1, Time: g.now, Compute: 1})
	}
	if c := e.Counts(); c.Ranks > 40 || c.Refused == 0 || c.Evicted == 0 {
		t.Errorf("counts %+v", c)
	}
	g.compute = slow(5, 1.4)
	g.want(g.run(40), "straggler(5)") // the job that is judged was not pushed out
}

func TestWhatNamesNoRankIsCounted(t *testing.T) {
	e := engine()
	zero, minus := 0, -1
	for _, s := range []Sample{
		{}, {Time: t0, Target: event.Target{PodUID: "p", WorldSize: 2}}, {Time: t0, Target: event.Target{PodUID: "p", Rank: &minus, WorldSize: 2}},
		{Time: t0, Target: event.Target{Rank: &zero, WorldSize: 2}}, {Target: event.Target{PodUID: "p", Rank: &zero, WorldSize: 2}},
		{Time: t0, Target: event.Target{PodUID: "p", Rank: &zero}}, {Time: t0, Target: event.Target{PodUID: "p", Rank: &zero, WorldSize: 2}, Step: -2},
		{Time: t0, Target: event.Target{PodUID: "p", Rank: &zero, WorldSize: 2}, Job: strings.Repeat("x", 1000)},
	} {
		e.Add(t0, s)
	}
	if c := e.Counts(); c.Malformed != 8 || c.Jobs != 0 {
		t.Errorf("counts %+v", c)
	}
}
