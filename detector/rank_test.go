package detector

import (
	"math"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

func sample(rank int, s float64, step int64, age float64) Rank {
	attempt := 0
	return Rank{
		Target: event.Target{PodUID: "pod-1", Rank: &rank, Attempt: &attempt}, Time: at(s), Step: step, StepAge: age,
		HeartbeatAge: 0.1, Section: sectionStep,
	}
}

// train steps rank 0 every 200 ms from step and second `from` on, n times, and returns the second of the last step.
func train(t *testing.T, e *Engine, from float64, step int64, n int) float64 {
	t.Helper()
	for i := range n {
		s := sample(0, from+0.2*float64(i), step+int64(i), 0.01)
		s.Durations = []float64{0.2}
		want(t, e.Rank(s))
	}
	return from + 0.2*float64(n-1)
}

func TestARankIsStalledBeyondItsOwnLimitAndRecoversWhenItSteps(t *testing.T) {
	e := engine(t)
	last := train(t, e, 0, 1, 20)
	want(t, e.Rank(sample(0, last+1.4, 20, 1.4)))
	got := e.Rank(sample(0, last+1.6, 20, 1.6))
	want(t, got, "+rank/stalled warning")
	if d := got[0].Event; d.Type != event.Anomaly || *d.Data.Evidence.Value < 1.5 || *d.Data.Evidence.Upper != 1.5 || d.Data.Evidence.Baseline != "self" {
		t.Errorf("finding %+v", d)
	}
	want(t, e.Rank(sample(0, last+3, 20, 3)))
	want(t, e.Rank(sample(0, last+3.1, 21, 0.05)), "-rank/stalled")
}

func TestTheLimitGrowsWithTheStepsOwnDurations(t *testing.T) {
	e := engine(t)
	for i := range 20 {
		s := sample(0, float64(i)*2, int64(i+1), 0.01)
		s.Durations = []float64{2}
		want(t, e.Rank(s))
	}
	want(t, e.Rank(sample(0, 38+9, 20, 9)))
	want(t, e.Rank(sample(0, 38+11.5, 20, 11.5)), "+rank/stalled warning")
}

func TestOneLongStepDoesNotTeachTheLimitButANewRegimeDoes(t *testing.T) {
	e := engine(t)
	last := train(t, e, 0, 1, 50)
	long := func(s float64, step int64) []finding.Finding {
		r := sample(0, s, step, 0.01)
		r.Durations = []float64{60}
		return e.Rank(r)
	}
	long(last+60, 51)
	want(t, e.Rank(sample(0, last+62, 51, 2)), "+rank/stalled warning")
	for i := range 4 {
		long(last+120+60*float64(i), 52+int64(i))
	}
	want(t, e.Rank(sample(0, last+302, 55, 2)))
}

func TestWarmUpIsJudgedByTheSetupLimitAlone(t *testing.T) {
	e := engine(t)
	want(t, e.Rank(sample(0, 0, 0, 0)))
	want(t, e.Rank(sample(0, 1, 1, 0.1)))
	want(t, e.Rank(sample(0, 599, 1, 598)))
	want(t, e.Rank(sample(0, 603, 1, 602)), "+rank/stalled warning")
}

func TestANewAgentLearnsTheLimitFromTheStepsThatTheRingHolds(t *testing.T) {
	e := engine(t)
	s := sample(0, 0, 100, 0.1)
	s.Durations = []float64{0.2, 0.2, 0.2, 0.2, 0.2, 0.2}
	want(t, e.Rank(s))
	want(t, e.Rank(sample(0, 2, 100, 2.1)), "+rank/stalled warning")
}

func TestAHeldRankNeverStallsAndACheckpointDoesNotAgeTheStepAfterIt(t *testing.T) {
	e := engine(t)
	last := train(t, e, 0, 1, 20)
	in := func(section int, s, age float64) []finding.Finding {
		r := sample(0, last+s, 20, age)
		r.Section = section
		return e.Rank(r)
	}
	want(t, in(sectionHeld, 0.1, 0.1))
	want(t, in(sectionHeld, 1000, 1000))
	want(t, in(sectionCheckpoint, 1000.1, 1000.1))
	want(t, in(sectionCheckpoint, 1060, 1060))
	want(t, in(sectionStep, 1060.1, 1060.1))
	want(t, in(sectionStep, 1061, 1061))
	want(t, in(sectionStep, 1062, 1062), "+rank/stalled warning")
}

func TestACheckpointHasALimitOfItsOwnOnceItIsKnown(t *testing.T) {
	e := engine(t)
	s, step := 0.0, int64(1)
	for range 4 {
		s, step = train(t, e, s+0.2, step+1, 10), step+10
		for i := range 11 {
			r := sample(0, s+0.1+float64(i)*0.5, step, 0.1+float64(i)*0.5)
			r.Section = sectionCheckpoint
			want(t, e.Rank(r))
		}
		s += 5.2
		e.Rank(sample(0, s, step, 5.2))
	}
	r := sample(0, s+1, step, 6)
	r.Section = sectionCheckpoint
	want(t, e.Rank(r))
	r.Time, r.StepAge = at(s+20), 25
	want(t, e.Rank(r))
	r.Time, r.StepAge = at(s+32), 37
	want(t, e.Rank(r), "+rank/stalled warning")
}

func TestAStoppedRankIsHungAndNotAlsoStalled(t *testing.T) {
	e := engine(t)
	last := train(t, e, 0, 1, 20)
	hang := func(s float64) []finding.Finding {
		r := sample(0, last+s, 20, s)
		r.HeartbeatAge = s
		return e.Rank(r)
	}
	want(t, hang(1.3)) // the beat is late, the step is not
	got := hang(1.6)
	want(t, got, "+rank/hung critical")
	if v := got[0].Event.Data.Evidence; *v.Value < 1.5 || *v.Upper != 1 {
		t.Errorf("evidence %+v", v)
	}
	want(t, hang(5))
	want(t, e.Rank(sample(0, last+6, 21, 0.1)), "-rank/hung")
}

// What comes by the second door says how long steps took and nothing of now, and may be of anybody.
func TestDurationsAloneNeitherHideAHangNorTeachALimitNorWakeTheDead(t *testing.T) {
	e := engine(t)
	alone := func(s, duration float64) {
		t.Helper()
		r := sample(0, s, -1, math.NaN())
		r.HeartbeatAge, r.Section, r.Durations = math.NaN(), -1, []float64{duration, duration, duration, duration}
		want(t, e.Rank(r))
	}
	last := train(t, e, 0, 1, 20)
	alone(last+0.1, 900)
	hung := sample(0, last+1.4, 20, 1.4)
	hung.HeartbeatAge = 1.4
	want(t, e.Rank(hung))
	alone(last+1.5, 900)
	hung.Time, hung.StepAge, hung.HeartbeatAge = at(last+1.6), 1.6, 1.6
	want(t, e.Rank(hung), "+rank/hung critical")

	want(t, e.Exit(exit(last+2, 1)), "-~rank/hung", "+rank/dead fatal")
	alone(last+9, 900)
	hung.Time, hung.StepAge, hung.HeartbeatAge = at(last+10), 10, 10 // the ring of the dead
	want(t, e.Rank(hung))
}

func TestARankHangsSinceItsLastSignOfLife(t *testing.T) {
	for name, c := range map[string]struct{ step, beat, began float64 }{ // ages, seconds
		"it stepped last":                     {1.6, 1.7, 1.6},
		"it beat last":                        {4, 1.2, 1.2},
		"it was read last long before":        {300, 300, 300},
		"its ring says that time had no end":  {1e300, 2, 2},
		"its ring says that it never stepped": {math.Inf(1), math.Inf(1), 1e9},
	} {
		t.Run(name, func(t *testing.T) {
			e := engine(t)
			r := sample(0, train(t, e, 0, 1, 20)+c.step, 20, c.step)
			if c.step > 1e6 { // the first that is seen of it
				e, r = engine(t), sample(0, 1000, 20, c.step)
			}
			r.HeartbeatAge = c.beat
			got := e.Rank(r)
			want(t, got, "+rank/hung critical")
			ev := got[0].Event
			if began := ev.Time.Sub(ev.Data.Onset).Seconds(); !ev.Time.Equal(r.Time) || math.Abs(began-c.began) > 0.001 {
				t.Errorf("found %v after it began, want %v", began, c.began)
			}
		})
	}
}

func TestAPausedHeartbeatAloneIsNotHung(t *testing.T) {
	e := engine(t)
	last := train(t, e, 0, 1, 20)
	for i := range 50 { // it steps, while the GIL starves the heartbeat's thread
		r := sample(0, last+0.2*float64(i+1), 21+int64(i), 0.01)
		r.HeartbeatAge = 0.2 * float64(i+1)
		want(t, e.Rank(r))
	}
}

func exit(s float64, code int) Exit {
	return Exit{Target: sample(0, 0, 0, 0).Target, Time: at(s), Code: code}
}

func TestOnlyAnUncleanExitIsADeadRank(t *testing.T) {
	cases := map[string]struct {
		exit Exit
		want []string
	}{
		"killed":                     {Exit{Code: -1, Signal: 9}, []string{"+rank/dead fatal"}},
		"ended by an exception":      {Exit{Code: 1, Error: "CUDA error"}, []string{"+rank/dead fatal"}},
		"said bye":                   {Exit{Clean: true}, nil},
		"left the attempt when told": {Exit{Code: 75}, nil},
		"left because a later attempt owns its checkpoints": {Exit{Code: 76}, nil},
		"killed by its launcher":                            {Exit{Code: -1, Signal: 9, Told: true}, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			e := engine(t)
			last := train(t, e, 0, 1, 10)
			x := c.exit
			x.Target, x.Time = exit(0, 0).Target, at(last+0.1)
			want(t, e.Exit(x), c.want...)
			want(t, e.Exit(x))
			r := sample(0, last+100, 10, 100) // the ring of the dead stays readable
			r.HeartbeatAge = 100
			want(t, e.Rank(r))
		})
	}
}

func TestADeadRankIsOneEventWhoeverFindsItWhenever(t *testing.T) {
	id := func(s float64, pid int, start string) string {
		x := exit(s, 1)
		x.PID, x.Start = pid, start
		return engine(t).Exit(x)[0].Event.ID
	}
	if id(1, 77, "10:00:00.5") != id(9, 77, "10:00:00.5") {
		t.Error("an agent that finds the dead rank again says another event")
	}
	if id(1, 77, "10:00:00.5") == id(1, 78, "10:00:00.5") {
		t.Error("two processes are one")
	}
	if id(1, 77, "10:00:00.5") == id(1, 77, "10:05:00.5") { // a container that starts again counts its processes anew
		t.Error("a number used again is the process of before")
	}
	if id(1, 0, "") == id(2, 0, "") {
		t.Error("two ends of unknown processes are one")
	}
}

func TestAnExitIsStaleWhenAnyRankOfItsPodHasANewerAttempt(t *testing.T) {
	e := engine(t)
	last := train(t, e, 0, 1, 10)
	one, r := 1, sample(5, last+1, 10, 0.1) // this pod's ranks have other numbers in the next attempt
	r.Target.Attempt = &one
	want(t, e.Rank(r))
	want(t, e.Exit(exit(last+1.1, 1)))
	if e.Counts().Stale != 1 {
		t.Errorf("counts %+v", e.Counts())
	}
	other := exit(last+2, 1)
	other.Target.PodUID = "pod-2"
	want(t, e.Exit(other), "+rank/dead fatal")
}

func TestADeadRankRecoversWhenItsSuccessorSteps(t *testing.T) {
	e := engine(t)
	last := train(t, e, 0, 1, 10)
	want(t, e.Exit(exit(last, 1)), "+rank/dead fatal")
	next := func(s float64, step int64) []finding.Finding {
		r := sample(0, s, step, 0.1)
		one := 1
		r.Target.Attempt = &one
		return e.Rank(r)
	}
	want(t, next(last+3, 10))
	want(t, next(last+4, 11), "-rank/dead")
	late := exit(last+5, 1) // a late process of the older attempt
	want(t, e.Exit(late))
	want(t, e.Rank(sample(0, last+6, 11, 60)))
	if e.Counts().Stale != 2 {
		t.Errorf("counts %+v", e.Counts())
	}
}

func TestANewProcessInTheSameAttemptIsTakenUp(t *testing.T) {
	e := engine(t)
	last := train(t, e, 0, 1, 10)
	want(t, e.Exit(exit(last, 1)), "+rank/dead fatal")
	want(t, e.Rank(sample(0, last+0.05, 10, 0.1))) // its last beat was before the end
	x := exit(last+1, 0)
	x.Attached = true
	want(t, e.Exit(x))
	want(t, e.Rank(sample(0, last+2, 0, 1)))
	want(t, e.Rank(sample(0, last+3, 1, 0.1)), "-rank/dead")
}

func TestADeadRankStaysDeadForANewAgent(t *testing.T) {
	e := engine(t)
	last := train(t, e, 0, 1, 10)
	want(t, e.Exit(exit(last, 1)), "+rank/dead fatal")
	after := engine(t)
	after.Restore(e.Snapshot())
	for s := last; s < last+20; s++ {
		r := sample(0, s, 10, s-last)
		r.HeartbeatAge = s - last + 0.1
		want(t, after.Rank(r))
	}
	want(t, after.Exit(exit(last, 1)))
}

func TestAnExitTakesStalledAndHungWithItWithoutARecovery(t *testing.T) {
	e := engine(t)
	last := train(t, e, 0, 1, 10)
	want(t, e.Rank(sample(0, last+2, 10, 2)), "+rank/stalled warning")
	want(t, e.Exit(exit(last+3, 1)), "-~rank/stalled", "+rank/dead fatal")
}

func TestARankOfAVanishedPodIsForgotten(t *testing.T) {
	e := engine(t)
	last := train(t, e, 0, 1, 10)
	e.Settle()
	want(t, e.Exit(exit(last, 1)), "+rank/dead fatal")
	e.GPU(status("GPU-1", last+60, 1))
	want(t, e.Settle())
	e.GPU(status("GPU-1", last+200, 1))
	want(t, e.Settle(), "-~rank/dead")
	if e.ranks.len() != 0 || e.open.len() != 0 {
		t.Errorf("%d ranks, %d open", e.ranks.len(), e.open.len())
	}
}

func TestUnknownAgesAreNoFault(t *testing.T) {
	e := engine(t)
	train(t, e, 0, 1, 10)
	r := sample(0, 100, 10, math.NaN())
	r.HeartbeatAge = math.NaN()
	want(t, e.Rank(r))
	want(t, e.Rank(Rank{Time: at(101)}))
	if e.Counts().Malformed != 1 {
		t.Errorf("counts %+v", e.Counts())
	}
}

func BenchmarkRankSample(b *testing.B) {
	e := New(Options{Cluster: "c", Node: "n", BootID: "b"})
	s := sample(0, 0, 0, 0.01)
	s.Durations = []float64{0.2}
	b.ReportAllocs()
	for b.Loop() {
		s.Time = s.Time.Add(100 * time.Millisecond)
		s.Step++
		e.Rank(s)
	}
}
