package anomaly

import (
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/detector/series"
	"github.com/pitcrew/pitcrew/event"
)

func TestWhatGetsBetterSaysNothing(t *testing.T) {
	n := newNode(t, 2)
	n.tokens = 0
	n.pass(learnt)
	n.temp[0], n.paceTimes = 45, 0.6
	n.pass(time.Minute)
	n.want("cooler and faster", n.said())
}

func TestWhatGetsBetterSaysNothingAfterAStateFromBeforeDirectionsEither(t *testing.T) {
	n := newNode(t, 2)
	n.tokens = 0
	n.pass(learnt)
	for _, e := range []*series.Engine{n.e.engines[training], n.e.engines[facility]} {
		for id := range e.Len() {
			e.SetBad(series.ID(id), series.Both)
		}
	}
	n.restart(same)
	n.pass(10 * time.Second)
	n.temp[0], n.paceTimes = 45, 0.6
	n.pass(time.Minute)
	n.want("cooler and faster", n.said())
}

func TestWitnessesFarApartInTimeBearNothingOut(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	n.launchAt[0] = 0.0025 // stays; too little to do alone
	n.pass(2 * time.Minute)
	n.paceTimes = 1.25
	n.pass(8 * time.Second)
	said := n.said()
	if len(only(said, "info launch")) == 0 || len(only(said, "info step-time")) == 0 {
		t.Fatalf("said %q", said)
	}
	n.want("together", only(said, "warning", "critical"))
}

func TestALaunchLatencyOfMicrosecondsIsNobodysConcern(t *testing.T) {
	n := newNode(t, 2)
	n.launch = 10e-6
	n.pass(learnt)
	n.launchAt[0], n.paceTimes = 60e-6, 1.25
	n.pass(10 * time.Second)
	n.want("six times very little", only(n.said(), "info launch", "warning", "critical"))
}

func TestFourFamiliesAgainstAToldScheduleAreADegradedRank(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	n.slow, n.paceTimes, n.clock[0], n.temp[0] = 0, 1.3, 1.7e9, 80 // pace, compute, clock, temperature; no reason is told
	n.pass(25 * time.Second)
	e := n.find("anomaly/degraded gpu/GPU-0")
	if e == nil {
		t.Fatalf("said %q", n.said())
	}
	if len(e.Data.Evidence.Signals) < 3 || !e.Data.Severity.AtLeast(event.Warning) {
		t.Errorf("event %+v", e.Data)
	}
	if other := n.find("anomaly/degraded gpu/GPU-1"); other != nil {
		t.Error("the rank that only waits is degraded as well")
	}
}

func TestTheSameFourFamiliesWithoutAToldScheduleAreInformation(t *testing.T) {
	n := newNode(t, 2)
	n.tokens = 0
	n.pass(learnt)
	n.paceTimes, n.clock[0], n.temp[0] = 1.3, 1.7e9, 80
	n.pass(25 * time.Second)
	n.want("untold", only(n.said(), "warning", "critical"))
}

func TestAStragglersVictimsAreInformation(t *testing.T) {
	n := newNode(t, 4).pass(learnt)
	n.slow, n.paceTimes = 2, 1.5
	n.pass(20 * time.Second)
	said := n.said()
	n.want("warnings", only(said, "warning", "critical"))
	n.want("whose own work is longer", only(said, "info compute"), "info compute pod/u-1/rank/2")
	n.want("what only says it again", only(said, "info throughput"))
}

func TestAThrottledGpuIsNotBlamedForAnothersSlowness(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	n.slow, n.paceTimes = 1, 1.5 // rank 1 is slow, and rank 0 waits for it
	n.throttled[0], n.clock[0] = true, 1.7e9
	n.pass(25 * time.Second)
	e := n.find("anomaly/thermal-throttle gpu/GPU-0")
	if e == nil || e.Data.Severity != event.Warning {
		t.Errorf("event %+v", e)
	}
}

func TestGpusWithoutARankAreJudgedWhileBusy(t *testing.T) {
	n := newNode(t, 2)
	l := func(i int) Labels { return Labels{GPU: uuid(i)} }
	pass := func(d time.Duration, util, power, clock float64) {
		for end := n.now.Add(d); n.now.Before(end); {
			n.now = n.now.Add(time.Second)
			for i := range 2 {
				general := l(i)
				general.Value = "general"
				n.put("hw.gpu.utilization", general, n.now, n.about(util))
				n.put("hw.power", l(i), n.now, n.about(power))
				c := l(i)
				c.Value = "sm"
				n.put("pitcrew.gpu.clock", c, n.now, n.about(clock))
			}
			n.out = append(n.out, n.e.End(n.now)...)
		}
	}
	for range 3 {
		pass(2*time.Minute, 0.95, 600, 1.98e9)
		pass(time.Minute, 0.01, 90, 3e8) // idle: other clocks, other power
	}
	n.want("busy and idle", n.said())
	pass(30*time.Second, 0.95, 600, 1.98e9)
	pass(20*time.Second, 0.95, 600, 1.4e9)
	n.want("slow", only(n.said(), "info"), "info sm-clock gpu/GPU-0", "info sm-clock gpu/GPU-1")
}

func TestASupersededAttemptSaysNothingAndANewOneWarmsUp(t *testing.T) {
	n := newNode(t, 1).pass(learnt)
	l := n.rank(0)
	l.Attempt = 3
	for range 20 {
		n.now = n.now.Add(200 * time.Millisecond)
		n.put("pitcrew.train.section", l, n.now, 1)
		n.put("pitcrew.train.step.duration", l, n.now, 5)
		n.put("pitcrew.train.step.duration", n.rank(0), n.now, 7) // of attempt 0
		n.out = append(n.out, n.e.End(n.now)...)
	}
	if c := n.e.Counts(); c.Stale != 20 {
		t.Errorf("stale %d", c.Stale)
	}
	if got := only(n.said(), "info step-time"); len(got) > 1 {
		t.Errorf("said %q", got)
	}
}
