package job

import (
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/detector/class"
	"github.com/pitcrew/pitcrew/detector/statement"
	"github.com/pitcrew/pitcrew/event"
)

func TestAnAcceptedRankIsNotSlowAnyMoreDoesNotRecoverAndIsSaidAgainWhenItGetsWorse(t *testing.T) {
	g := found(t)
	g.says(statement.Statement{Verb: statement.Accept, Key: behind5})
	g.want(g.run(10), "")
	ev, active := g.shown(behind5)
	if active || ev.State != event.StateAccepted || len(ev.Told) != 1 || ev.Told[0] != "accepted by ada" || ev.LostGPUSeconds <= 0 {
		t.Errorf("listed %+v, %v", ev, active)
	}
	if c := g.e.Counts(); c.Open != 0 || c.Standing != 0 || c.Accepted != 1 {
		t.Errorf("counts %+v", c)
	}
	g.want(g.run(200), "")
	g.restart()
	g.want(g.run(200), "")
	g.compute = slow(5, 2.2)
	g.want(g.run(40), "straggler(5)") // the statement is of what had been found by then
	g.want(g.run(100), "")
	g.compute = slow(5, 1.5)
	g.want(g.run(60), "-straggler(5)")
}

func TestARankThatWasSlowFromTheStartCanBeAccepted(t *testing.T) {
	g := newGang(t, engine(), 8)
	g.compute = slow(5, 1.6)
	g.want(g.run(60), "imbalance(5)")
	g.says(statement.Statement{Verb: statement.Accept, Key: "rank/imbalance"})
	g.want(g.run(300), "")
	g.want(g.pass(6*time.Minute), "")
}

func TestASlowerJobThatIsAcceptedIsTheNewLevelAgainstItselfAndItsClass(t *testing.T) {
	g := newGang(t, engine(), 8)
	g.want(g.run(100), "")
	g.compute = func(int) float64 { return 0.32 }
	f := g.want(g.run(12), "slowdown")[0]
	if f.Key != "job/slowdown job/job-1/attempt/0" {
		t.Errorf("key %q", f.Key)
	}
	g.says(statement.Statement{Verb: statement.Accept, Key: f.Key})
	g.want(g.run(200), "")

	fl := newFleet(t, class.Config{})
	fl.past(3, gpt, 1)
	g = fl.job(gpt)
	scheduled(g, 1.3)
	if f = g.want(g.run(120), "slowdown")[0]; f.Key != "job/slowdown job/job-4/class/attempt/0" {
		t.Errorf("key %q", f.Key)
	}
	before := g.e.Counts().ClassSteps
	g.says(statement.Statement{Verb: statement.Accept, Key: "job/*"})
	g.want(g.run(10), "")
	g.restart()
	g.want(g.run(200), "")
	if g.e.Counts().ClassSteps == before {
		t.Error("its class learns nothing from it")
	}
	g.want(fl.done(g), "")
}

func TestADriverThatIsAcceptedIsSaidAgainOnceItIsTwiceAsSlow(t *testing.T) {
	for name, accepted := range map[string]float64{"the same": 1.1, "half as slow": 1.03} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, class.Config{})
			f.past(3, gpt, 1)
			slower := gpt
			slower.Driver = "580.2"
			first := f.past(3, slower, 1.1)
			if x := first[len(first)-1]; !strings.HasPrefix(x.Key, "class/slow-driver class/gpt-124m/") {
				t.Errorf("key %q", x.Key)
			}
			g := f.job(slower)
			g.says(statement.Statement{Verb: statement.Accept, Key: "class/slow-driver", By: "ada"})
			f.done(g)
			g.restart()
			f.e = g.e
			for _, s := range f.e.classes.slower {
				s.ratio = accepted
			}
			want := map[float64]string{1.1: "", 1.03: "slow-driver"}[accepted]
			if got := said(f.past(2, slower, 1.1)); got != want {
				t.Errorf("said %q, want %q", got, want)
			}
		})
	}
}

func TestWhatHasNoLevelCannotBeAcceptedAndThatIsCountedOnce(t *testing.T) {
	g := stalled(t)
	g.want(g.tell(settled, "0", 57, 57, 57, 56), "desync(3)")
	g.says(statement.Statement{Verb: statement.Accept, Key: "*"})
	g.want(g.tell(10*time.Second, "0", 57, 57, 57, 56), "")
	g.restart()
	g.want(g.tell(10*time.Second, "0", 57, 57, 57, 56), "")
	if c := g.e.Counts(); c.Open != 1 || c.Unacceptable > 1 {
		t.Errorf("counts %+v", c)
	}
	g = newGang(t, engine(), 8)
	g.want(g.run(100), "")
	g.silent = func(r int) bool { return r == 2 }
	g.want(g.run(120), "absent(2)")
	at := g.now
	for range 3 { // told again by a watch
		g.says(statement.Statement{Verb: statement.Accept, Key: "*", At: at})
		g.want(g.run(20), "")
	}
	if c := g.e.Counts(); c.Open != 1 || c.Unacceptable != 1 {
		t.Errorf("counts %+v", c)
	}
}
