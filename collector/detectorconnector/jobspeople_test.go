package detectorconnector

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

const slowRank = "rank/straggler job/job-1/rank/5/attempt/0"

// state lets a person speak, and a second pass in which it takes effect.
func (l *learner) state(all ...bus.Statement) {
	l.t.Helper()
	l.people.handle(all)
	l.second()
}

func (l *learner) second() {
	l.at.Add(int64(time.Second))
	l.emit(l.t.Context(), func() []finding.Finding { return l.engine.Tick(l.now()) })
}

func (l *learner) told() []string {
	l.t.Helper()
	l.said()
	if len(l.listed) == 0 {
		return nil
	}
	return l.listed[len(l.listed)-1].Data.Evidence.Told
}

func TestWhatPeopleSaidOfAJobHoldsAcrossANewGatewayThatHasNotHeardTheBusYet(t *testing.T) {
	file := filepath.Join(t.TempDir(), "jobs")
	first := keeper(t, file, t0.UnixNano())
	first.slowed(1, 60, 1)
	at := first.now()
	first.state(bus.Statement{Verb: bus.StateMute, Key: "rank/*", By: "ada", At: at, Until: at.Add(time.Hour)})
	first.slowed(61, 40, 1.5)
	if words, _ := first.said(); len(words) != 0 {
		t.Fatalf("said %v though it is muted", words)
	}
	first.end()

	second := keeper(t, file, first.at.Load())
	second.slowed(101, 60, 1.5)
	second.second()
	if words, _ := second.said(); len(words) != 0 || len(second.told()) != 1 || !strings.HasPrefix(second.told()[0], "muted by ada until ") {
		t.Errorf("said %v, listed %q", words, second.told())
	}
	second.state() // the bus is heard: nothing is muted any more
	if words, _ := second.said(); !slices.Equal(words, []string{"rank/straggler"}) {
		t.Errorf("said %v", words)
	}
	second.state(bus.Statement{Verb: bus.StateAck, Key: slowRank, By: "bob", Reason: "fan", At: second.now()})
	if got := second.told(); !slices.Equal(got, []string{"acknowledged by bob: fan"}) {
		t.Errorf("listed %q", got)
	}
	second.end()

	third := keeper(t, file, second.at.Load())
	third.slowed(161, 20, 1.5)
	third.state(bus.Statement{Verb: bus.StateAccept, Key: slowRank, By: "bob", At: third.now()})
	third.slowed(181, 60, 1.5)
	third.end()
	if words, _ := third.said(); len(words) != 0 || third.listed[len(third.listed)-1].Data.Evidence.State != event.StateAccepted {
		t.Errorf("said %v, listed %+v", words, third.listed)
	}

	fourth := keeper(t, file, third.at.Load())
	fourth.slowed(241, 60, 1.5)
	fourth.end()
	if words, _ := fourth.said(); len(words) != 0 {
		t.Errorf("said %v of what was accepted", words)
	}
}

func TestAStatementIsSavedSoonAndWhoeverHasNotTheJobIgnoresIt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "jobs")
	l := keeper(t, file, t0.UnixNano())
	l.state(bus.Statement{Verb: bus.StateAck, Key: slowRank, By: "ada", At: l.now()})
	if words, _ := l.said(); len(words) != 0 || len(l.listed) != 0 {
		t.Errorf("said %v, listed %v of a job that it does not have", words, l.listed)
	}
	l.slowed(1, 60, 1)
	l.running.Save()
	before := l.running.written
	l.state(bus.Statement{Verb: bus.StateMute, Key: "*", By: "ada", At: l.now(), Until: l.now().Add(time.Hour)})
	l.running.Save()
	if !l.running.written.After(before) {
		t.Error("it is not saved")
	}
	l.end()
}
