package incident

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

func TestARankThatDiedFirstIsMovedWhenItsNodeTurnsOutToBeFaulty(t *testing.T) {
	on(t, func(s *stage) {
		s.says(s.rankDies("train", 0))
		s.passes(Approved)
		s.says(at("xid/79", "n1"))
		i := s.closes(time.Minute, Recovered)
		if n := s.gangs["job-train"].Member(0).Node; n != "n3" || len(i.Faults) != 2 {
			t.Errorf("pod 0 on %s, faults %+v", n, i.Faults)
		}
		s.wantDid("cordon n1", "reserve n3", "evict train-0-1", "release")
	})
}

func TestAFaultOnAnotherNodeInAnyStateIsLeftToo(t *testing.T) {
	for _, state := range []State{Correlated, Approved, Cordoned, Checkpointed, Placed, Restarted, Resumed} {
		t.Run(string(state), func(t *testing.T) {
			on(t, func(s *stage) {
				s.says(at("gpu/row-remap", "n1"))
				s.passes(state)
				s.says(at("gpu/row-remap", "n2"))
				i := s.closes(5*time.Minute, Recovered)
				s.wantOnce()
				g := s.gangs["job-train"]
				if n := len(slices.DeleteFunc(slices.Clone(s.did), func(d string) bool { return !strings.HasPrefix(d, "evict") })); n != 2 {
					t.Errorf("%d pods replaced: %q", n, s.did) // a replacement on its way to a good node is left alone
				}
				a, b := g.Member(0).Node, g.Member(1).Node
				if a == "n1" || a == "n2" || b == "n1" || b == "n2" || a == b || !slices.Equal(i.Cordons, []string{"n1", "n2"}) {
					t.Errorf("pods on %s and %s, cordons %v", a, b, i.Cordons)
				}
			})
		})
	}
}

// passes waits for the moment in which a state has just been recorded.
func (s *stage) passes(state State) {
	s.until(time.Minute, string(state), func(i Incident) bool { return i.reached(state) })
}

func TestAFaultOnTheNodeThatAReplacementIsSentToChoosesAnother(t *testing.T) {
	for name, state := range map[string]State{"before its pod has a node": Placed, "when its pod is there": Restarted} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				s.bindsIn = 2 * time.Second
				s.says(at("gpu/row-remap", "n1"))
				s.passes(state)
				time.Sleep(200 * time.Millisecond)
				s.says(at("xid/79", "n3"))
				i := s.closes(time.Minute, Recovered)
				if n := s.gangs["job-train"].Member(0).Node; n != "n4" || i.Round != 2 {
					t.Errorf("pod 0 on %s, round %d", n, i.Round)
				}
			})
		})
	}
}

func TestARankOfTheNewAttemptThatDiesBeginsAnother(t *testing.T) {
	on(t, func(s *stage) {
		s.says(at("gpu/row-remap", "n1"))
		s.reaches(time.Minute, Resumed)
		s.says(s.rankDies("train", 3))
		i := s.closes(time.Minute, Recovered)
		if i.Attempt != 2 || i.Restarts != 2 {
			t.Errorf("attempt %d, restarts %d", i.Attempt, i.Restarts)
		}
		s.wantOnce()
	})
}

func TestWhatDiesOfTheFaultIsAnEcho(t *testing.T) {
	on(t, func(s *stage) {
		s.mu.Lock()
		s.attempts.values["job-train"] = kept[bus.Attempt]{bus.Attempt{Job: s.gangs["job-train"].Job, Attempt: 2, NProc: nproc, WorldSize: 2 * nproc}, 1}
		s.attempts.rev, s.gangs["job-train"].attempt = 1, 2 // not the job's first incident
		s.mu.Unlock()
		s.says(at("xid/79", "n1", func(e *event.Event) { e.Data.Severity = event.Fatal }))
		s.passes(Approved)
		s.says(s.rankDies("train", 0))
		s.says(s.rankDies("train", 2))
		s.passes(Placed)
		s.says(s.rankDies("train", 3))
		i := s.closes(time.Minute, Recovered)
		if i.Round != 1 || len(i.Faults) != 1 || len(i.Joined) != 3 || i.Attempt != 3 {
			t.Errorf("round %d, faults %d, joined %d, attempt %d", i.Round, len(i.Faults), len(i.Joined), i.Attempt)
		}
	})
}

func TestAWorseFaultOnTheSameNodeKeepsTheRoundFromBeginning(t *testing.T) {
	on(t, func(s *stage) {
		s.says(at("gpu/row-remap", "n1"))
		s.says(at("xid/79", "n1", func(e *event.Event) { e.Data.Severity = event.Fatal }))
		i := s.closes(time.Minute, Recovered)
		if i.Checkpoint.Taken || i.Round != 1 {
			t.Errorf("checkpoint %+v, round %d", i.Checkpoint, i.Round)
		}
	})
}

func TestANodeThatIsLostWhileItsPodIsEndingIsNotWaitedFor(t *testing.T) {
	on(t, func(s *stage) {
		s.kubelets["n1"] = cluster.ErrSilent
		s.says(at("xid/79", "n1", func(e *event.Event) { e.Data.Severity = event.Fatal }))
		s.reaches(time.Minute, Placed)
		time.Sleep(5 * time.Second) // evicted, and nobody there to end it
		s.says(at("node/lost", "n1", func(e *event.Event) { e.Data.Severity = event.Fatal }))
		s.closes(time.Minute, Recovered)
		s.wantDid("cordon n1", "reserve n3", "evict train-0-1", "force train-0-1", "release")
	})
}

func TestAKubeletThatCouldNotBeAskedIsNoLostNode(t *testing.T) {
	on(t, func(s *stage) {
		s.says(at("node/lost", "n1", func(e *event.Event) { e.Data.Severity = event.Fatal }))
		s.passes(Cordoned)
		s.mu.Lock()
		s.kubelets["n1"] = errors.New("it names no InternalIP")
		s.mu.Unlock()
		time.Sleep(20 * time.Second)
		if s.count("force train-0-1") != 0 {
			t.Errorf("did %q", s.did)
		}
		s.mu.Lock()
		s.kubelets["n1"] = cluster.ErrSilent
		s.mu.Unlock()
		s.closes(time.Minute, Recovered)
	})
}

func TestAPodThatEndsByItselfIsSeatedAnew(t *testing.T) {
	on(t, func(s *stage) {
		s.bindsIn = 3 * time.Second
		s.says(at("gpu/row-remap", "n1"))
		s.passes(Placed)
		time.Sleep(500 * time.Millisecond)
		s.mu.Lock()
		s.gangs["job-train"].Members[1].Phase = "Failed"
		s.mu.Unlock()
		time.Sleep(time.Second)
		s.mu.Lock()
		s.remake(s.gangs["job-train"], 1)
		s.gangs["job-train"].bound[s.gangs["job-train"].Members[1].PodUID] = time.Now()
		s.mu.Unlock()
		s.closes(5*time.Minute, Recovered)
	})
}

func TestAFaultInTheMomentOfTheCloseHasAnIncidentOfItsOwn(t *testing.T) {
	on(t, func(s *stage) {
		s.says(at("gpu/row-remap", "n1"))
		first := s.closes(time.Minute, Recovered)
		s.says(at("gpu/row-remap", "n2"))
		time.Sleep(time.Minute)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.incidents.values) != 2 {
			t.Fatalf("%d incidents", len(s.incidents.values))
		}
		for id, i := range s.incidents.values {
			if id != first.ID && (i.v.Outcome != Recovered || i.v.Attempt != 2) {
				t.Errorf("%s %s attempt %d", i.v.State, i.v.Outcome, i.v.Attempt)
			}
		}
	})
}

func TestAReplacementThatNeverComesIsTriedAgainAndThenLeftToAPerson(t *testing.T) {
	on(t, func(s *stage) {
		s.bindsIn = 24 * time.Hour
		s.says(at("gpu/row-remap", "n1"))
		i := s.closes(time.Hour, Failed)
		if i.Restarts != 3 || i.Attempt != 0 {
			t.Errorf("restarts %d, attempt %d", i.Restarts, i.Attempt)
		}
		if n := s.count("evict train-0-1"); n != 1 {
			t.Errorf("evicted %d times: %q", n, s.did)
		}
	})
}

func TestANodeThatAPersonUncordonedIsNotCordonedAgainByTheSameIncident(t *testing.T) {
	on(t, func(s *stage) {
		s.says(at("gpu/row-remap", "n1"))
		s.reaches(time.Minute, Restarted)
		s.mu.Lock()
		s.nodes["n1"].quarantined = ""
		s.mu.Unlock()
		s.says(at("gpu/row-remap", "n2"))
		s.closes(time.Minute, Recovered)
		if s.nodes["n1"].quarantined != "" || s.count("cordon n1") != 1 {
			t.Errorf("did %q", s.did)
		}
		for _, m := range s.gangs["job-train"].Members {
			if m.Node == "n1" || m.Node == "n2" {
				t.Errorf("pod %d is on %s", m.Index, m.Node)
			}
		}
	})
}
