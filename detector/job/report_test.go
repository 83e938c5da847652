package job

import (
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/detector/class"
	"github.com/pitcrew/pitcrew/detector/statement"
	"github.com/pitcrew/pitcrew/event"
)

func (g *gang) says(all ...statement.Statement) {
	for i := range all {
		if all[i].By == "" {
			all[i].By = "ada"
		}
		if all[i].At.IsZero() {
			all[i].At = g.now
		}
	}
	g.e.Say(all)
}

// shown is what the newest list says of a finding.
func (g *gang) shown(key string) (ev event.Evidence, active bool) {
	g.t.Helper()
	for i := len(g.listed) - 1; i >= 0; i-- {
		if f := g.listed[i]; f.Key == key {
			return f.Event.Data.Evidence, f.Active
		}
	}
	g.t.Fatalf("%q is in no list", key)
	return ev, false
}

const behind5 = "rank/straggler job/job-1/rank/5/attempt/0"

// found is a gang of eight whose rank 5 was said to be half as slow again.
func found(t *testing.T) *gang {
	g := newGang(t, engine(), 8)
	g.want(g.run(100), "")
	g.compute = slow(5, 1.5)
	if f := g.want(g.run(40), "straggler(5)"); f[0].Key != behind5 {
		t.Fatalf("its key is %q", f[0].Key)
	}
	return g
}

func (g *gang) restart() {
	g.t.Helper()
	g.e = again(g.t, g.e, g.now)
}

func TestWhatStandsIsListedEveryFiveSecondsWithWhatItCosts(t *testing.T) {
	g := found(t)
	g.want(g.run(300), "")
	if n := len(g.listed); n < 12 || n > 20 {
		t.Errorf("listed %d times in some 90 s", n)
	}
	if ev, active := g.shown(behind5); !active || ev.State != event.StateOpen || ev.LostGPUSeconds < 100 {
		t.Errorf("listed %+v", ev)
	}
	g.restart()
	g.listed = nil
	g.want(g.run(10), "")
	g.shown(behind5) // at once: whoever lists may have forgotten it
}

func TestAnAcknowledgedFindingStandsAndItsEndIsSaid(t *testing.T) {
	g := found(t)
	g.says(statement.Statement{Verb: statement.Acknowledge, Key: behind5, Reason: "fan ordered"})
	g.want(g.run(10), "")
	g.restart()
	g.want(g.run(10), "")
	if ev, active := g.shown(behind5); !active || len(ev.Told) != 1 || ev.Told[0] != "acknowledged by ada: fan ordered" {
		t.Errorf("listed %+v", ev)
	}
	for range 3 * maxTold {
		g.says(statement.Statement{Verb: statement.Acknowledge, Key: "*", By: g.now.String()}, statement.Statement{Verb: statement.Mute, Key: "*", Until: g.now.Add(time.Hour)},
			statement.Statement{Verb: statement.Mute, Key: "rank/*", Until: g.now.Add(time.Minute)})
		g.want(g.run(5), "")
	}
	if ev, _ := g.shown(behind5); len(ev.Told) != maxTold+2 || !strings.HasPrefix(ev.Told[maxTold+1], "muted by ada until ") || ev.Told[maxTold] == ev.Told[maxTold+1] {
		t.Errorf("listed %q", ev.Told)
	}
	g.says()
	g.compute = nil
	g.want(g.run(60), "-straggler(5)")
}

func TestAMuteHoldsBackWhatItNamesAcrossARestartAndWhatStandsAtItsEndIsSaidOnce(t *testing.T) {
	for name, restart := range map[string]bool{"one gateway": false, "a restart": true} {
		t.Run(name, func(t *testing.T) {
			g := newGang(t, engine(), 8)
			g.want(g.run(100), "")
			g.says(statement.Statement{Verb: statement.Mute, Key: "rank/straggler *", Node: "node-pod-f", Until: g.now.Add(30 * time.Second)})
			g.compute = slow(5, 1.5)
			from := g.now
			g.want(g.run(40), "")
			if ev, active := g.shown(behind5); !active || len(ev.Told) != 1 || !strings.HasPrefix(ev.Told[0], "muted by ada until 2026-11-21T") {
				t.Errorf("listed %+v", ev)
			}
			if restart {
				g.restart()
			}
			f := g.want(g.run(150), "straggler(5)")[0].Event
			if d := f.Time.Sub(from); d < 30*time.Second || d > 33*time.Second || f.Data.Evidence.DurationS < 25 {
				t.Errorf("said after %s: %+v", d, f.Data.Evidence)
			}
			if c := g.e.Counts(); c.Muted != 1 && !restart || c.Open != 1 {
				t.Errorf("counts %+v", c)
			}
			if restart {
				g.restart()
			}
			g.want(g.run(20), "")
			g.compute = nil
			g.want(g.run(60), "-straggler(5)")
		})
	}
}

func TestAMuteOfAnotherRankNodeOrFindingHoldsNothingBack(t *testing.T) {
	for name, s := range map[string]statement.Statement{
		"another rank":    {Key: "rank/straggler job/job-1/rank/4/attempt/0"},
		"another node":    {Key: "*", Node: "node-pod-a"},
		"another finding": {Key: "rank/absent"},
		"an agent's":      {Key: "anomaly/*"},
		"over":            {Key: "*", Until: t0},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGang(t, engine(), 8)
			g.want(g.run(100), "")
			s.Verb = statement.Mute
			if s.Until.IsZero() {
				s.Until = g.now.Add(time.Hour)
			}
			g.says(s)
			g.compute = slow(5, 1.5)
			g.want(g.run(40), "straggler(5)")
		})
	}
}

func TestWhatIsMutedAndOverIsNeverSaidAndWhatWasSaidBeforeEndsAllTheSame(t *testing.T) {
	g := newGang(t, engine(), 8)
	g.want(g.run(100), "")
	g.says(statement.Statement{Verb: statement.Mute, Key: "*", Until: g.now.Add(time.Hour)})
	g.compute = slow(5, 1.5)
	g.want(g.run(40), "")
	g.compute = nil
	g.want(g.run(60), "")
	if _, active := g.shown(behind5); active {
		t.Error("it is still listed")
	}
	g = found(t)
	g.says(statement.Statement{Verb: statement.Mute, Key: "*", Until: g.now.Add(time.Hour)})
	g.compute = nil
	g.want(g.run(60), "-straggler(5)")
}

func TestWhateverIsMutedBeforeItIsFoundIsListedAndSaidWhenTheMuteEnds(t *testing.T) {
	mute := func(g *gang) {
		g.says(statement.Statement{Verb: statement.Mute, Key: "*", Until: g.now.Add(24 * time.Hour)})
	}
	unmuted := func(g *gang, key, want string) {
		t.Helper()
		if ev, active := g.shown(key); !active || len(ev.Told) != 1 || ev.State == event.StateCleared {
			t.Errorf("%s is listed as %+v", key, ev)
		}
		g.says()
		g.want(g.pass(2*time.Second), want)
	}
	g := stalled(t)
	mute(g)
	g.want(g.tell(settled, "0", 57, 57, 57, 56), "")
	unmuted(g, "torch/desync job/job-1/rank/3/attempt/0", "desync(3)")

	g = newGang(t, engine(), 8)
	mute(g)
	g.compute = slow(5, 1.6)
	g.want(g.run(60), "")
	unmuted(g, "rank/imbalance job/job-1/rank/5/attempt/0", "imbalance(5)")

	g = newGang(t, engine(), 8)
	g.want(g.run(100), "")
	mute(g)
	g.silent = func(r int) bool { return r == 2 }
	g.want(g.run(120), "")
	unmuted(g, "rank/absent job/job-1/rank/2/attempt/0", "absent(2)")

	f := newFleet(t, class.Config{})
	f.past(3, gpt, 1)
	g = f.job(gpt)
	mute(g)
	scheduled(g, 1.3)
	g.want(g.run(120), "")
	unmuted(g, "job/slowdown job/job-4/class/attempt/0", "slowdown")

	f = newFleet(t, class.Config{})
	slower := gpt
	slower.Driver = "580.2"
	f.past(3, gpt, 1)
	g = newGang(t, f.e, 4)
	mute(g)
	if found := f.past(3, slower, 1.1); strings.Contains(said(found), "driver") {
		t.Errorf("said %q", said(found))
	}
	f.e.Say(nil)
	if got := said(f.e.Tick(f.now.Add(time.Second))); got != "slow-driver" {
		t.Errorf("said %q when the mute ended", got)
	}
}

func TestWhatIsUnmutedIsSaidAtOnce(t *testing.T) {
	g := newGang(t, engine(), 8)
	g.want(g.run(100), "")
	g.says(statement.Statement{Verb: statement.Mute, Key: "*", Until: g.now.Add(time.Hour)})
	g.compute = slow(5, 1.5)
	g.want(g.run(40), "")
	g.says()
	g.want(g.run(10), "straggler(5)")
}

func TestAnOldStatementAndOneThatCameTwiceChangeNothing(t *testing.T) {
	g := newGang(t, engine(), 8)
	g.want(g.run(100), "")
	old := []statement.Statement{{Verb: statement.Accept, Key: "*", By: "eve", At: g.now}, {Verb: statement.Acknowledge, Key: "*", By: "eve", At: g.now}}
	g.compute = slow(5, 1.5)
	g.want(g.run(40), "straggler(5)")
	g.says(old...)
	g.want(g.run(120), "")
	if ev, active := g.shown(behind5); !active || len(ev.Told) != 0 {
		t.Errorf("listed %+v", ev)
	}
	for range 3 { // a watch that began anew brings all again
		g.says(statement.Statement{Verb: statement.Accept, Key: behind5, At: g.now})
		g.want(g.run(100), "")
	}
	if c := g.e.Counts(); c.Accepted != 1 || c.Open != 0 {
		t.Errorf("counts %+v", c)
	}
}

func TestADesyncThatStandsIsNotSaidAgainAfterARestartAndItsEndIs(t *testing.T) {
	g := stalled(t)
	g.want(g.tell(settled, "0", 57, 57, 57, 56), "desync(3)")
	g.says(statement.Statement{Verb: statement.Acknowledge, Key: "torch/desync job/job-1/rank/3/attempt/0"})
	g.want(g.tell(2*time.Second, "0", 57, 57, 57, 56), "")
	for _, away := range []time.Duration{0, time.Minute, time.Hour} {
		left := g.e.Snapshot(g.now)
		g.now = g.now.Add(away)
		g.e = engine()
		if err := g.e.Restore(g.now, left); err != nil {
			t.Fatal(err)
		}
		if away > 0 { // agents take a while to come back
			g.want(g.pass(5*time.Second), "")
		}
		g.want(g.tell(40*time.Second, "0", 57, 57, 57, 56), "")
		if ev, active := g.shown("torch/desync job/job-1/rank/3/attempt/0"); !active || len(ev.Told) != 1 || ev.LostGPUSeconds < 4*40 {
			t.Errorf("listed %+v", ev)
		}
	}
	g.restart()
	g.step++
	g.want(g.run(10), "-desync(3)")
	if c := g.e.Counts(); c.Open != 0 || c.Standing != 0 {
		t.Errorf("counts %+v", c)
	}
}

func TestNumbersOfBeforeARestartNameNobodyUntilTheyAreToldAgain(t *testing.T) {
	g := stalled(t)
	g.want(g.tell(settled-4*time.Second, "0", 57, 57, 57, 57), "")
	left := g.e.Snapshot(g.now)
	g.now = g.now.Add(time.Minute) // in which all but rank 3, whose agent takes longest to come back, went on in one long step
	g.e = engine()
	if err := g.e.Restore(g.now, left); err != nil {
		t.Fatal(err)
	}
	g.want(g.tell(desyncFresh+5*time.Second, "0", 60, 60, 60, -1), "")
	g.want(g.tell(settled, "0", 60, 60, 60, 60), "")
	g.want(g.tell(settled, "0", 61, 61, 61, 60), "desync(3)") // and it is not blind
}

func TestNamesThatAPodChoosesDoNotBreakAKey(t *testing.T) {
	e := engine()
	for name, want := range map[string]string{
		"a b/c*\n":               "job/a%20b%2Fc%2A%0A/attempt/0",
		"pod/x":                  "pod/x/attempt/0",
		strings.Repeat("ü", 64):  "",
		"../../rank/5/attempt/0": "job/..%2F..%2Frank%2F5%2Fattempt%2F0/attempt/0",
	} {
		s := newAttempt(e, key{job: name}, t0).subject()
		if want != "" && s != want || len(s) > 100 || strings.ContainsAny(s, " *") {
			t.Errorf("%q gives %q", name, s)
		}
	}
}
