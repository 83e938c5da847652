package remediator

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/policy"
	"github.com/pitcrew/pitcrew/semconv"
)

// What finds no room on the board may be what contradicts a finding. Then no statistical finding acts.
func TestAFullBoardOfFindingsLetsNothingStatisticalAct(t *testing.T) {
	s := newSite(t)
	s.sets("gw", s.event)
	s.measures("n3", "anomaly/sm-clock", semconv.GPUClock+"{sm}")
	fill := func(from, to int) {
		for k := range to - from {
			e := s.names(straggler, 0)
			e.Data.Target.PodUID, e.Data.Target.Job = "other-"+itoa(from+k), &event.Job{UID: "other-" + itoa(from+k)}
			s.said.setFound(bus.Condition{Gateway: "gw", Key: straggler + " " + itoa(from+k), Active: true, Event: &e}, time.Time{})
		}
	}
	fill(1, maxFound)
	if got, f := s.refused(13 * time.Second); len(got) > 0 {
		t.Fatalf("a board that is just full: refused by %v: %+v", got, f)
	}
	s.sets("gw", s.names(straggler, 1)) // it would contradict, and finds no room
	if got, f := s.refused(13 * time.Second); !slices.Equal(got, []guard.Name{guard.OneCulprit}) || !strings.Contains(strings.Join(f.Against, ";"), "more findings than can be compared") {
		t.Errorf("refused by %v: %+v", got, f)
	}
}

func TestOneNodeDoesNotTakeTheRoomOfTheOthersOccurrences(t *testing.T) {
	o := newOccurrences()
	at := func(node, gpu string, when time.Time) event.Event {
		return event.Event{ID: node + gpu + when.String(), Type: event.Fault, Time: when, Data: event.Data{Target: event.Target{Node: node, PCI: gpu}, Cause: event.Cause{Kind: "xid", Code: "63"}}}
	}
	for k := range maxOccasions + 10 {
		o.add(at("loud", itoa(k), time.Now()))
	}
	o.add(at("n1", "a", time.Now().Add(-time.Hour)))
	if n := o.times(at("n1", "a", time.Now()), 24*time.Hour, time.Now()); n != 2 {
		t.Errorf("counted %d times", n)
	}
}

// A leader lives for months. What no rule can look back to must not keep it from counting what happens now.
func TestOccurrencesThatNoRuleCountsAnyMoreMakeRoom(t *testing.T) {
	o := newOccurrences()
	now := time.Now()
	long := now.Add(-time.Duration(policy.MaxWithin) - time.Hour)
	at := func(node, id string, when time.Time) event.Event {
		return event.Event{ID: id, Type: event.Fault, Time: when, Data: event.Data{Target: event.Target{Node: node, PCI: "a"}, Cause: event.Cause{Kind: "xid", Code: "63"}}}
	}
	for k := range maxOccasions {
		o.add(at("n"+itoa(k), "x", long))
	}
	o.add(at("new", "1", now))
	if n := o.times(at("new", "2", now), time.Hour, now); n != 2 {
		t.Errorf("counted %d times", n)
	}
	if len(o.at) != 1 {
		t.Errorf("%d are kept", len(o.at))
	}
}

// A clock that runs a year ahead does not make an event count for a year.
func TestAnOccurrenceOfTheFutureCountsFromNow(t *testing.T) {
	o := newOccurrences()
	e := event.Event{ID: "ahead", Type: event.Fault, Time: time.Now().AddDate(1, 0, 0), Data: event.Data{Target: event.Target{Node: "n1"}, Cause: event.Cause{Kind: "xid", Code: "63"}}}
	o.add(e)
	if n := o.times(e, 24*time.Hour, time.Now().Add(48*time.Hour)); n != 0 {
		t.Errorf("counted %d times two days later", n)
	}
}

// TestNoRuleCountsBeforeANewLeaderHasReadWhatHappened covers an Xid that an earlier leader counted three times: with its count of one, the new
// leader would close the incident and never act on it.
func TestNoRuleCountsBeforeANewLeaderHasReadWhatHappened(t *testing.T) {
	now := time.Now()
	e := func(id string) event.Event {
		return event.Event{ID: id, Type: event.Fault, Time: now.Add(-time.Hour), Data: event.Data{Target: event.Target{Node: "n", GPU: "g"}, Cause: event.Cause{Kind: "xid", Name: "63"}}}
	}
	seen := newOccurrences()
	seen.reading(now)
	counted := make(chan int, 1)
	go func() { counted <- seen.times(e("third"), 24*time.Hour, now) }()
	select {
	case n := <-counted:
		t.Fatalf("%d counted before the events were read", n)
	case <-time.After(100 * time.Millisecond):
	}
	seen.add(e("first"))
	seen.add(e("second"))
	close(seen.known)
	if n := <-counted; n != 3 {
		t.Errorf("%d, want 3", n)
	}
	late := newOccurrences()
	late.reading(now.Add(-recountWait)) // the stream is too long, or NATS too slow
	if n := late.times(e("third"), 24*time.Hour, now); n != 1 {
		t.Errorf("%d, want 1", n)
	}
}
