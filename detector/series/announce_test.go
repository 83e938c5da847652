package series

import (
	"math"
	"math/rand/v2"
	"testing"
)

// announcedAt makes a told series whose level rises by 1.4 at sample 600 and is announced so many samples later; a fault of 1.2 lasts from
// sample fault on to the end.
func announcedAt(later, fault int) (out []Sample) {
	rng := rand.New(rand.NewPCG(5, 5))
	at := int64(0)
	for i := range 1200 {
		v := 0.1 * math.Exp(0.01*rng.NormFloat64())
		x := Sample{Told: true, Workload: 1}
		if i >= 600 {
			v *= 1.4
		}
		if i >= 600+later {
			x.Workload = 2
		}
		if i >= fault {
			v *= 1.2
		}
		at += int64(v * 1e9)
		x.T, x.V = at, v
		out = append(out, x)
	}
	return out
}

func TestAChangeThatIsAnnouncedSomeStepsEarlyOrLateIsNoFinding(t *testing.T) {
	for _, later := range []int{0, 3, 5, 12, 20, -3, -4, -5, -12, -20} {
		_, e := run(t, Config{}, announcedAt(later, 9999))
		if n := e.Counts().Findings; n != 0 {
			t.Errorf("announced %d samples later: %d findings, %+v", later, n, e.Finding(0))
		}
	}
}

func TestAFaultAfterAChangeThatIsAnnouncedEarlyOrLateIsFound(t *testing.T) {
	for _, later := range []int{0, 5, 20, 50, -5, -20, -50} {
		vs, _ := run(t, Config{}, announcedAt(later, 1000))
		found := 0
		for i, v := range vs {
			if v.Change == Opened && i >= 1000 && i < 1060 {
				found++
			}
		}
		if found != 1 {
			t.Errorf("announced %d samples later: the fault is found %d times", later, found)
		}
	}
}

// A change that nobody announces cannot be told from a fault by one series alone: it is a finding, once, and then the level is the baseline.
func TestAChangeThatIsNeverAnnouncedIsOneFindingAndThenTheBaseline(t *testing.T) {
	_, e := run(t, Config{}, announcedAt(9999, 9999))
	if f := e.Finding(0); e.Counts().Findings != 1 || f.State != StateAccepted {
		t.Errorf("%d findings, the last %+v", e.Counts().Findings, f)
	}
}

// A series whose values never settle after an announcement must still be judged.
func TestASeriesThatSwingsAfterAnAnnouncementIsJudgedAgain(t *testing.T) {
	e, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	id, _ := e.Add(Ratio)
	rng := rand.New(rand.NewPCG(6, 6))
	known := 0
	for i := range 1000 {
		v := 0.1 * math.Exp(0.01*rng.NormFloat64())
		w := uint32(1)
		if i >= 500 {
			w = 2
			v *= math.Exp(0.3 * math.Sin(float64(i)/2))
		}
		if x := e.Observe(id, Sample{T: int64(i+1) * 1e8, V: v, Told: true, Workload: w}); x.Known && i >= 550 {
			known++
		}
	}
	if known < 300 {
		t.Errorf("judged %d of the last 450", known)
	}
}

// One announcement that changes nothing must not hide what begins soon after it.
func TestAFaultThatBeginsSoonAfterAnAnnouncementIsFoundUnlessItPassesForTheChange(t *testing.T) {
	for _, later := range []int{40, 50, 60, 100} {
		rng := rand.New(rand.NewPCG(8, 8))
		vs := make([]Sample, 0, 1200)
		at := 0.0
		for i := range 1200 {
			v := math.Exp(0.01 * rng.NormFloat64())
			w := uint32(1)
			if i >= 600 {
				w = 2
			}
			if i >= 600+later {
				v *= 1.5
			}
			at += v
			vs = append(vs, Sample{T: int64(at * 1e9), V: v, Told: true, Workload: w})
		}
		if _, e := run(t, Config{}, vs); e.Counts().Findings == 0 {
			t.Errorf("a fault %d samples after an announcement is never found", later)
		}
	}
}

// Each burst of a fault that comes and goes has an onset of its own. The wait for an announcement must not swallow them all.
func TestAFaultThatComesInBurstsIsFoundAlthoughEachIsShorterThanTheWait(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	vs := make([]Sample, 0, 3000)
	at := 0.0
	for i := range 3000 {
		v := 0.1 * math.Exp(0.01*rng.NormFloat64())
		if i >= 600 && i%60 < 12 { // 1.9 s, and the wait is 2.4 s
			v *= 1.6
		}
		at += v
		vs = append(vs, Sample{T: int64(at * 1e9), V: v, Told: true, Workload: 1})
	}
	if _, e := run(t, Config{}, vs); e.Counts().Findings < 4 {
		t.Errorf("%d findings of 40 bursts", e.Counts().Findings)
	}
}
