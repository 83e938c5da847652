package anomaly

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

func TestAHealthyNodeIsQuiet(t *testing.T) {
	n := newNode(t, 4).pass(20 * time.Minute)
	n.want("healthy", n.said())
	if c := n.e.Counts(); c.Series < 56 || c.UnknownSeries > 0 {
		t.Errorf("counts %+v", c)
	}
}

func TestALaunchLatencySpikeIsAWarningWithinTenSecondsAndNamesItsRank(t *testing.T) {
	n := newNode(t, 4).pass(learnt)
	n.said()
	n.launchAt[2], n.paceTimes = 0.003, 1.25
	n.pass(10 * time.Second)
	e := n.find("anomaly/launch-latency gpu/GPU-2")
	if e == nil {
		t.Fatalf("said %q", n.said())
	}
	if d := e.Data; !d.Severity.AtLeast(event.Warning) || d.Target.GPU != "GPU-2" || *d.Target.Rank != 2 || d.Target.PodUID != "u-1" {
		t.Errorf("event %+v", d)
	}
	for _, other := range []int{0, 1, 3} {
		if e := n.find("anomaly/launch-latency gpu/" + uuid(other)); e != nil {
			t.Errorf("%s is named as well", uuid(other))
		}
	}
	n.pass(5 * time.Second)
	n.said()
	delete(n.launchAt, 2)
	n.paceTimes = 1
	n.pass(time.Minute)
	n.want("its end", only(n.said(), "-info launch-latency"), "-info launch-latency gpu/GPU-2")
}

func TestAThermalThrottleNamesTheGpuAndWhatBearsItOut(t *testing.T) {
	n := newNode(t, 4).pass(learnt)
	n.said()
	for i := range 40 { // heats up, then slows itself down
		n.temp[1] = 62 + float64(i)*0.7
		if i > 20 {
			n.clock[1], n.throttled[1] = 1.98e9-float64(i-20)*3e7, true
			n.paceTimes = 1 + float64(i-20)*0.015
		}
		n.pass(time.Second)
	}
	n.pass(20 * time.Second)
	e := n.find("anomaly/thermal-throttle gpu/GPU-1")
	if e == nil {
		t.Fatalf("said %q", n.said())
	}
	d := e.Data
	if d.Severity != event.Critical || *d.Target.Rank != 1 || d.Evidence.LostGPUSeconds <= 0 || len(d.Evidence.Signals) == 0 {
		t.Errorf("event %+v", d)
	}
	if said := n.said(); len(only(said, "warning thermal-throttle gpu/GPU-0", "critical thermal-throttle gpu/GPU-0")) > 0 {
		t.Errorf("said %q", said)
	}
}

func TestAFindingOfOneSignalIsInformationAndExplainsItself(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	n.said()
	n.temp[0] = 84
	n.pass(20 * time.Second)
	e := n.find("anomaly/temperature gpu/GPU-0")
	if e == nil {
		t.Fatalf("said %q", n.said())
	}
	x := e.Data.Evidence
	if e.Type != event.Anomaly || e.Data.Severity != event.Info || x.Signal != "hw.temperature{gpu}" || x.Unit != "Cel" || x.State != event.StateOpen {
		t.Errorf("event %+v", e)
	}
	if *x.Value < 80 || math.Abs(*x.Expected-62) > 2 || *x.Upper <= *x.Expected || *x.Lower >= *x.Expected || *x.Score < 0.5 {
		t.Errorf("value %g, expected %g in %g to %g, score %g", *x.Value, *x.Expected, *x.Lower, *x.Upper, *x.Score)
	}
	if x.Asked != 0.05 || x.Baseline != "self" || x.BaselineSamples < 60 || x.BaselineS < 60 || x.Phase != "step" || len(x.Samples) < 10 || x.PromQL == "" {
		t.Errorf("evidence %+v", x)
	}
	if !strings.Contains(x.Raw, "temperature") || e.Data.Onset.Before(t0.Add(learnt)) || e.Data.Onset.After(t0.Add(learnt+15*time.Second)) {
		t.Errorf("words %q, onset %s", x.Raw, e.Data.Onset)
	}
	for _, f := range n.out {
		if f.Event.Data.Severity != event.Info {
			t.Errorf("%s is %s", f.Key, f.Event.Data.Severity)
		}
	}
}

func TestCheckpointsEvaluationsAndToldChangesOfScheduleSayNothing(t *testing.T) {
	n := newNode(t, 4).pass(learnt)
	for range 4 {
		n.section = 2 // a checkpoint: GPUs idle
		n.pass(8 * time.Second)
		n.section = 1
		n.pass(40 * time.Second)
		n.section = 3 // an evaluation
		n.pass(15 * time.Second)
		n.section = 1
		n.pass(40 * time.Second)
	}
	n.want("checkpoints and evaluations", n.said())
	n.tokens, n.paceTimes = 8192, 1.9 // the next stage of the schedule, told by the tokens of a step
	n.pass(2 * time.Minute)
	n.want("a told change", n.said())
}

func TestAWarmUpIsNeverJudged(t *testing.T) {
	n := newNode(t, 2)
	n.section = 0
	n.pass(30 * time.Second)
	n.section, n.paceTimes = 1, 8 // the first steps compile
	n.pass(15 * time.Second)
	n.paceTimes = 1
	n.pass(3 * time.Minute)
	n.section, n.step = 0, 0 // a new process in its place
	n.pass(20 * time.Second)
	n.section, n.paceTimes = 1, 8
	n.pass(12 * time.Second)
	n.paceTimes = 1
	n.pass(time.Minute)
	n.want("warm-up", n.said())
}

func TestAGpuWhoseRankIsStuckIsNotTheOneToBlame(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	n.stuck = true
	n.pass(time.Minute)
	n.stuck = false
	n.pass(time.Minute)
	n.want("stuck", n.said())
}

func TestAWorseLevelThatFallsBackToTheAcceptedOneHasNotRecovered(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	n.temp[0] = 75
	n.pass(2 * time.Minute)
	n.temp[0] = 95
	n.pass(20 * time.Second)
	n.temp[0] = 75
	n.pass(40 * time.Second)
	n.want("at the accepted level", only(n.said(), "info temperature", "-info temperature"), "info temperature gpu/GPU-0")
	n.temp[0] = 62
	n.pass(40 * time.Second)
	n.want("at the first level", only(n.said(), "-info temperature"), "-info temperature gpu/GPU-0")
}

func TestAChangeOfScheduleThatNobodyToldIsInformationOnly(t *testing.T) {
	n := newNode(t, 4)
	n.tokens = 0
	n.pass(learnt)
	n.paceTimes = 1.6
	n.pass(3 * time.Minute)
	said := n.said()
	n.want("untold", only(said, "warning", "critical"))
	if len(only(said, "info step-time")) != 4 {
		t.Errorf("said %q", said)
	}
}

func TestNoNumbersLateAndRepeatedSamplesMoveNothing(t *testing.T) {
	plain, rough := newNode(t, 2).pass(learnt), newNode(t, 2)
	for range int(learnt / (100 * time.Millisecond)) {
		rough.pass(100 * time.Millisecond)
		l := rough.rank(0)
		rough.put("pitcrew.train.step.duration", l, rough.now, math.NaN())
		rough.put("pitcrew.train.step.duration", l, rough.now, math.Inf(1))
		rough.put("pitcrew.train.step.duration", l, rough.now.Add(-20*time.Second), 90)
		if en := rough.e.ents.of(entityKey{Rank, "u-1", 0}); en.stepAt > 0 { // the same sample once more
			rough.put("pitcrew.train.step.duration", l, rough.e.at(en.stepAt), 90)
		}
	}
	for _, n := range []*node{plain, rough} {
		n.said()
		n.paceTimes = 1.5
		n.pass(10 * time.Second)
	}
	a, b := plain.find("anomaly/step-time pod/u-1/rank/0"), rough.find("anomaly/step-time pod/u-1/rank/0")
	if a == nil || b == nil {
		t.Fatalf("plain %v, rough %v", a, b)
	}
	if !a.Data.Onset.Equal(b.Data.Onset) || *a.Data.Evidence.Expected != *b.Data.Evidence.Expected {
		t.Errorf("they differ: %s, %g and %s, %g", a.Data.Onset, *a.Data.Evidence.Expected, b.Data.Onset, *b.Data.Evidence.Expected)
	}
	if c := rough.e.Counts(); c.NotANumber < 1000 || c.Late < 1000 {
		t.Errorf("counts %+v", c)
	}
}

func TestAClockThatStepsBackOrAheadFindsNothingAndBlindsNothing(t *testing.T) {
	for _, by := range []time.Duration{-time.Hour, 2 * time.Hour, -11 * time.Second} {
		t.Run(by.String(), func(t *testing.T) {
			n := newNode(t, 2).pass(8 * time.Minute) // the power limit comes every 15 s
			n.said()
			held := n.e.Counts().Series
			n.skew = by
			n.pass(2 * time.Minute)
			n.want("after the step", n.said())
			if known := held - n.e.Counts().UnknownSeries; n.e.Counts().Series != held || known < held*9/10 {
				t.Errorf("of %d series %d are known", held, known)
			}
			if c := n.e.Counts(); c.ClockSteps != 1 || c.Late > 200 {
				t.Errorf("counts %+v", c)
			}
			n.temp[0] = 85
			n.pass(20 * time.Second)
			e := n.find("anomaly/temperature gpu/GPU-0")
			if e == nil {
				t.Fatalf("blind after the step; said %q", n.said())
			}
			if d := e.Data.Onset.Sub(n.now.Add(by)); d > 0 || d < -25*time.Second {
				t.Errorf("its onset is %s from the node's clock", d)
			}
		})
	}
}

func TestASampleFromTheFutureIsRefusedAndDoesNotMoveTheClock(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	before := n.e.now
	n.put("hw.power", Labels{GPU: uuid(0)}, n.now.Add(24*time.Hour), 600)
	n.e.End(n.now)
	if c := n.e.Counts(); c.Malformed != 1 || n.e.now != before {
		t.Errorf("malformed %d, clock moved by %d ns", c.Malformed, n.e.now-before)
	}
}

func TestASeriesThatVanishesWhileOthersGoOnIsSaidAndItsReturnToo(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	n.missing["hw.power"] = true
	n.pass(10 * time.Second)
	n.want("gone", n.said(), "info power gpu/GPU-0", "info power gpu/GPU-1")
	n.missing["hw.power"] = false
	n.pass(5 * time.Second)
	n.want("back", n.said(), "-info power gpu/GPU-0", "-info power gpu/GPU-1")
}

func TestSilenceOfTheWholeNodeOrBetweenAttemptsIsNotAbsence(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	n.now = n.now.Add(30 * time.Second) // nothing at all arrives
	n.pass(10 * time.Second)
	n.section = 5 // out: the attempt is over
	n.pass(30 * time.Second)
	n.section = 1
	n.pass(time.Minute)
	n.want("silence", n.said())
}

func TestALevelThatStaysIsAcceptedAndNotRecovered(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	n.said()
	n.throttled[0], n.clock[0], n.paceTimes = true, 1.4e9, 1.3
	n.pass(4 * time.Minute)
	said := n.said()
	if len(only(said, "-")) > 0 || len(only(said, "critical thermal-throttle gpu/GPU-0")) != 1 || len(only(said, "warning degraded", "critical degraded")) > 0 {
		t.Fatalf("said %q", said)
	}
	n.throttled[0] = false // the reason is no longer told; clock and pace stay low
	n.pass(time.Minute)
	e := n.find("anomaly/thermal-throttle gpu/GPU-0")
	if e == nil || e.Data.Evidence.State != event.StateAccepted {
		t.Fatalf("found %+v", e)
	}
	n.want("still low", only(n.said(), "-info thermal-throttle"))
	n.clock[0], n.paceTimes = 1.98e9, 1
	n.pass(time.Minute)
	n.want("back", only(n.said(), "-info thermal-throttle"), "-info thermal-throttle gpu/GPU-0")
}

func TestTenThousandRanksAreBoundedAndCounted(t *testing.T) {
	e, err := New(Options{Cluster: "c", Node: "n1", BootID: "b", MaxSeries: 512})
	if err != nil {
		t.Fatal(err)
	}
	now := t0
	flood := func(from, ranks int) {
		for round := range 3 {
			now = now.Add(time.Second)
			for k := range ranks {
				i := (k + round*ranks/3) % ranks // they come in another order each time
				l := Labels{PodUID: fmt.Sprintf("u-%d", from+i), Rank: int64(i), Local: -1}
				for _, m := range []string{"pitcrew.train.step.duration", "pitcrew.train.loss", "pitcrew.train.memory.allocated"} {
					e.Put(Lookup(m), l, now.UnixNano(), 1)
				}
			}
			e.End(now)
		}
	}
	flood(0, 10_000)
	c := e.Counts()
	if c.Series > 512 || c.Entities > 512 || c.Refused == 0 || c.Evicted > 0 || c.Bytes > 4<<20 {
		t.Errorf("while all are alive: %+v", c)
	}
	for range 12 {
		now = now.Add(10 * time.Second)
		e.Put(Lookup("pitcrew.train.loss"), Labels{PodUID: "u-1", Rank: 1, Local: -1}, now.UnixNano(), 1)
		e.End(now)
	}
	flood(50_000, 100) // the first ones are silent now
	if c = e.Counts(); c.Series > 512 || c.Evicted == 0 {
		t.Errorf("when they are silent: %+v", c)
	}
	if e.ents.of(entityKey{Rank, "u-50050", 50}) == nil {
		t.Error("a new rank has no room though old ones are silent")
	}
}

func TestACheckpointsTimeCountsOnceHoweverOftenItIsSaid(t *testing.T) {
	n := newNode(t, 1)
	for ckpt := range 3 {
		for range 50 {
			n.now = n.now.Add(100 * time.Millisecond)
			n.put("pitcrew.train.checkpoint.step", n.rank(0), n.now, float64(100*ckpt))
			n.put("pitcrew.train.checkpoint.duration", n.rank(0), n.now, 4)
			n.e.End(n.now)
		}
	}
	if c := n.e.Counts(); c.Samples != 2 { // what was there at first sight may be long past
		t.Errorf("%d samples of three checkpoints", c.Samples)
	}
}

func TestWhatWasNotHeardOfForLongIsForgottenWithoutARecovery(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	n.said()
	n.temp[0] = 84
	n.pass(20 * time.Second)
	n.said()
	n.ranks = 0
	for range int(forget/(30*time.Second)) + 1 {
		n.now = n.now.Add(30 * time.Second)
		n.put("hw.power", Labels{GPU: "GPU-9"}, n.now, 600)
		n.out = append(n.out, n.e.End(n.now)...)
	}
	said := n.said()
	if len(only(said, "xinfo temperature gpu/GPU-0")) != 1 || len(only(said, "-")) > 0 {
		t.Errorf("said %q", said)
	}
	if c := n.e.Counts(); c.Entities != 1 || c.Open != 0 {
		t.Errorf("counts %+v", c)
	}
}

func TestInformationHasABudgetAndWarningsHaveNone(t *testing.T) {
	n := newNode(t, 40).pass(learnt)
	n.said()
	n.paceTimes = 1.4
	for i := range n.ranks {
		n.launchAt[i] = 0.004
	}
	n.pass(20 * time.Second)
	said := n.said()
	if infos := len(only(said, "info")); infos < infoBurst || infos > infoBurst+2 {
		t.Errorf("%d informations", infos)
	}
	if w := len(only(said, "warning launch-latency", "critical launch-latency")); w < 40 {
		t.Errorf("%d of 40 warnings", w)
	}
	if n.e.Counts().Suppressed == 0 {
		t.Error("what was left out is not counted")
	}
}

func TestOnsetsAreCountedAgainstTheAskedRate(t *testing.T) {
	n := newNode(t, 2).pass(30 * time.Minute)
	n.temp[0] = 85
	n.pass(20 * time.Second)
	found := false
	for _, s := range n.e.Signals() {
		if s.Signal == "temperature" {
			found = true
			if s.Onsets != 1 || math.Abs(s.Asked-0.05) > 0.006 { // two GPUs for half an hour
				t.Errorf("%+v", s)
			}
		}
	}
	if !found {
		t.Error("no counts of temperature")
	}
}
