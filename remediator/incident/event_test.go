package incident

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
)

// wantNothing: no incident, and nothing done.
func (s *stage) wantNothing(counted string) {
	s.t.Helper()
	time.Sleep(time.Minute)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.incidents.values) != 0 || len(s.did) != 0 {
		s.t.Errorf("%d incidents, did %q", len(s.incidents.values), s.did)
	}
	if s.e.Noted()[counted] == 0 {
		s.t.Errorf("not counted as %q: %v", counted, s.e.Noted())
	}
}

func TestAStaleEventDoesNothingAndIsNotRemembered(t *testing.T) {
	for name, c := range map[string]struct {
		happened time.Duration
		o        Origin
	}{
		"old in the stream":              {0, Origin{Age: 2 * time.Minute}},
		"replayed: old by its own words": {2 * time.Hour, Origin{}},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				ev := at("xid/79", "n1")
				ev.Time = ev.Time.Add(-c.happened)
				s.stand("xid/79", "n1", Unknown)
				if err := s.e.Handle(context.Background(), ev, c.o); err != nil {
					t.Fatal(err)
				}
				s.wantNothing("stale")
				if err := s.e.Handle(context.Background(), ev, Origin{Live: true}); err != nil { // its node says that it holds
					t.Fatal(err)
				}
				s.closes(time.Minute, Recovered)
			})
		})
	}
}

func TestAnEventThatIsReadLateActsIfItsNodeSaysThatItHolds(t *testing.T) {
	on(t, func(s *stage) { // a storm filled the queue for two minutes
		s.stand("xid/79", "n1", Holds)
		if err := s.e.Handle(context.Background(), at("xid/79", "n1"), Origin{Age: 2 * time.Minute}); err != nil {
			t.Fatal(err)
		}
		s.closes(time.Minute, Recovered)
	})
}

func TestAnEventThatComesTwiceIsOne(t *testing.T) {
	on(t, func(s *stage) {
		ev := at("gpu/row-remap", "n1")
		s.seenErr = errors.New("no responders")
		if err := s.e.Handle(context.Background(), ev, Origin{}); err == nil {
			t.Fatal("not to be delivered again")
		}
		s.passes(Checkpointed)
		if err := s.e.Handle(context.Background(), ev, Origin{}); err == nil {
			t.Fatal("not to be delivered again")
		}
		s.closes(time.Minute, Recovered)
		s.mu.Lock()
		s.seenErr = nil
		s.mu.Unlock()
		s.says(ev)
		s.says(ev)
		time.Sleep(time.Minute)
		s.wantOnce()
		if i := s.only(); i.Round != 1 || len(i.Joined) != 0 {
			t.Errorf("round %d, joined %v", i.Round, i.Joined)
		}
	})
}

func TestANodeSpeaksForItsOwnPodsOnly(t *testing.T) {
	for name, forge := range map[string]func(*stage, *event.Event){
		"by a job":       func(s *stage, e *event.Event) { e.Data.Target.Job = &s.gangs["job-train"].Job },
		"by a pod's UID": func(s *stage, e *event.Event) { e.Data.Target.PodUID = s.gangs["job-train"].Members[0].PodUID },
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				ev := at("xid/79", "n5")
				forge(s, &ev)
				s.says(ev)
				s.wantNothing("gang is elsewhere")
			})
		})
	}
}

func TestAnEventAboutANodeThatDoesNotExistDoesNothing(t *testing.T) {
	on(t, func(s *stage) {
		s.says(at("xid/79", "n99"))
		s.wantNothing("node unknown")
	})
}

func TestARankOfAPodThatIsNoMoreIsNobodysFault(t *testing.T) {
	on(t, func(s *stage) {
		ev := s.rankDies("train", 1)
		s.gangs["job-train"].deleted = true
		s.says(ev)
		s.wantNothing("nothing runs there")
	})
}

func TestAnEventOfAnAttemptThatIsOverIsHistory(t *testing.T) {
	on(t, func(s *stage) {
		ev := s.rankDies("train", 1)
		s.mu.Lock()
		s.gangs["job-train"].dead = map[int]bool{}
		s.attempts.values["job-train"] = kept[bus.Attempt]{bus.Attempt{Job: s.gangs["job-train"].Job, Attempt: 1}, 1}
		s.mute = true // nobody can be asked
		s.mu.Unlock()
		s.says(ev)
		s.closes(time.Minute, NotConfirmed)
		s.wantDid()
	})
}

func TestARankThatAnswersIsNotDead(t *testing.T) {
	on(t, func(s *stage) {
		ev := s.rankDies("train", 1)
		s.gangs["job-train"].dead = map[int]bool{}
		s.says(ev)
		s.closes(time.Minute, NotConfirmed)
		s.wantDid()
	})
}

func TestARankThatIsRefutedDoesNotTakeARealFaultAlong(t *testing.T) {
	on(t, func(s *stage) {
		ev := s.rankDies("train", 1)
		s.gangs["job-train"].dead = map[int]bool{}
		s.says(ev)
		s.says(at("gpu/row-remap", "n1"))
		if i := s.closes(time.Minute, Recovered); !i.Checkpoint.Taken || len(i.Faults) != 1 {
			t.Errorf("checkpoint %+v, faults %+v", i.Checkpoint, i.Faults)
		}
	})
}

func TestASuspendedJobIsLeftToWhoeverSuspendedIt(t *testing.T) {
	on(t, func(s *stage) {
		s.gangs["job-train"].Suspended = true
		s.says(at("xid/79", "n1"))
		s.closes(time.Minute, Quarantined)
		s.wantDid("cordon n1")
		if !s.gangs["job-train"].Suspended {
			t.Error("it was resumed")
		}
	})
}

func TestAStormOfEchoesDoesNotGrowTheRecord(t *testing.T) {
	on(t, func(s *stage) {
		asks(s)
		storm := func(name string) {
			for k := range 500 {
				s.says(at("xid/79", "n1", func(e *event.Event) { e.ID = event.NewID(name, fmt.Sprint(k)) }))
			}
		}
		storm("before it is planned")
		s.reaches(time.Minute, Planned)
		storm("after it")
		s.mu.Lock()
		revisions := s.incidents.rev
		s.mu.Unlock()
		if i := s.only(); len(i.Joined) > maxJoined || len(i.Faults) != 1 || revisions > maxJoined+20 {
			t.Errorf("%d joined, %d faults, %d writes", len(i.Joined), len(i.Faults), revisions)
		}
	})
}

func TestALongStoryKeepsItsBeginningAndItsEnd(t *testing.T) {
	i := Incident{State: Planned}
	i.advance(time.Time{}, Approved, "first")
	for range 3 * maxNotes {
		i.note(time.Time{}, "again")
	}
	i.advance(time.Time{}, Closed, "last")
	if len(i.Notes) != maxNotes || i.Notes[0].Text != "first" || i.Notes[maxNotes-1].Text != "last" || i.Notes[0].TookS <= 0 {
		t.Errorf("%d notes, from %+v to %+v", len(i.Notes), i.Notes[0], i.Notes[len(i.Notes)-1])
	}
}
