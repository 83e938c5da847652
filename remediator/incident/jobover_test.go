package incident

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// over are the ways in which a job is no more.
var over = map[string]func(*gang){
	"deleted":   func(g *gang) { g.deleted = true },
	"completed": func(g *gang) { g.Finished = "Complete" },
	"failed":    func(g *gang) { g.Finished = "Failed" },
	"suspended": func(g *gang) { g.Suspended, g.Members = true, nil },
	"scaled":    func(g *gang) { g.Size, g.Members = 0, nil },
}

func (s *stage) overNow(how func(*gang)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	how(s.gangs["job-train"])
	s.holding = map[string]string{} // its ranks end
}

func TestANodeThatIsStillFaultyIsCordonedThoughTheJobOfItsHeldIncidentEnded(t *testing.T) {
	for name, how := range over {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				s.hold(guard.Hold, true)
				s.says(at("gpu/row-remap", "n1"))
				time.Sleep(time.Minute)
				s.overNow(how)
				time.Sleep(time.Hour)
				if i := s.only(); !i.Open() || len(s.did) > 0 {
					t.Fatalf("%s %s, did %q", i.State, i.Reason, s.did)
				}
				s.hold(guard.Hold, false)
				i := s.closes(time.Minute, Quarantined)
				s.wantDid("cordon n1")
				if i.Job == nil || i.Plan.Has(policy.RestartJob) {
					t.Errorf("job %v, plan %+v", i.Job, i.Plan)
				}
			})
			on(t, func(s *stage) { // and the fault ends as well
				s.hold(guard.Hold, true)
				s.says(at("gpu/row-remap", "n1"))
				time.Sleep(time.Minute)
				s.overNow(how)
				s.stand("gpu/row-remap", "n1", Ended)
				s.closes(time.Minute, Resolved)
				s.hold(guard.Hold, false)
				time.Sleep(time.Hour)
				s.wantDid()
			})
			on(t, func(s *stage) { // a rank has no fault without its job
				s.hold(guard.Hold, true)
				s.says(s.rankDies("train", 1))
				time.Sleep(time.Minute)
				s.overNow(how)
				s.hold(guard.Hold, false)
				if i := s.until(time.Minute, "closed", func(i Incident) bool { return !i.Open() }); i.Outcome != Gone && i.Outcome != NotConfirmed {
					t.Errorf("%s: %s", i.Outcome, i.Reason)
				}
				s.wantDid()
			})
		})
	}
}

// A broken GPU ends a job that has no failures left in the same second.
func TestANodeIsCordonedThoughItsFaultEndedTheJobBeforeAnythingWasDone(t *testing.T) {
	for name, how := range over {
		for _, state := range []State{Detected, Correlated, Planned, Approved} {
			t.Run(name+"/"+string(state), func(t *testing.T) {
				on(t, func(s *stage) {
					s.incidents.put = func(_ string, i Incident) error {
						if i.State == state {
							s.overNow(how)
						}
						return nil
					}
					s.says(at("xid/79", "n1"))
					i := s.until(time.Minute, "closed", func(i Incident) bool { return !i.Open() })
					s.wantTidy()
					if i.Outcome != Quarantined || s.count("cordon n1") != 1 || strings.Contains(strings.Join(s.did, " "), "evict") {
						t.Errorf("%s (%s), did %q", i.Outcome, i.Reason, s.did)
					}
				})
			})
		}
	}
}

func TestAPersonIsStillAskedAboutTheNodeOfAJobThatEnded(t *testing.T) {
	on(t, func(s *stage) {
		asks(s)
		s.says(at("xid/79", "n1"))
		s.reaches(time.Minute, Planned)
		s.overNow(over["deleted"])
		time.Sleep(time.Minute)
		i := s.only()
		if !i.Open() || !i.NeedsPerson() || !strings.Contains(i.story(), "does not exist any more; its node is cordoned all the same") {
			t.Fatalf("%s", i.story())
		}
		s.answer("approved by ada")
		s.closes(time.Minute, Quarantined)
		s.wantDid("cordon n1")
	})
}

func TestANodeWhoseFaultJoinedIsCordonedThoughTheJobEndedMeanwhile(t *testing.T) {
	for _, state := range []State{Cordoned, Checkpointed, Placed, Restarted} {
		t.Run(string(state), func(t *testing.T) {
			on(t, func(s *stage) {
				ev, did := at("xid/79", "n2"), false
				s.e.Stepped = func(i *Incident) {
					if did || i.State != state {
						return
					}
					did = true
					ev.Data.Target.Job = i.Job
					go func() {
						if err := s.e.Handle(context.Background(), ev, Origin{}); err != nil {
							t.Error(err)
						}
						s.overNow(over["deleted"])
					}()
				}
				s.says(at("gpu/row-remap", "n1"))
				s.until(5*time.Minute, "closed", func(i Incident) bool { return !i.Open() })
				s.wantTidy()
				if s.count("cordon n1") != 1 || s.count("cordon n2") != 1 {
					t.Errorf("did %q\n%s", s.did, s.only().story())
				}
			})
		})
	}
}
