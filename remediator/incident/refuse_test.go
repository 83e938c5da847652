package incident

import (
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

func (s *stage) killSwitch(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses = nil
	if on {
		s.refuses = func(*Plan, Facts) []guard.Verdict {
			return []guard.Verdict{{Guard: guard.KillSwitch, Asked: true, Detail: "stop"}}
		}
	}
}

func TestModeObserveWritesNothing(t *testing.T) {
	on(t, func(s *stage) {
		for signal, p := range s.plans {
			p.Mode = policy.Observe
			s.plans[signal] = p
		}
		s.says(at("xid/79", "n1"))
		i := s.closes(time.Minute, Observed)
		if len(s.did) != 0 || len(s.attempts.values) != 0 {
			t.Errorf("did %q", s.did)
		}
		if i.Plan == nil || len(i.Guards) == 0 || len(i.Moves) != 1 || i.Moves[0].To != "n3" {
			t.Errorf("the record does not say what would have been done: %+v", i)
		}
	})
}

func TestANodeThatIsOnlyObservedIsNotTakenAlongWithAnother(t *testing.T) {
	for name, first := range map[string]string{"observed first": "n2", "observed second": "n1"} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				p := s.plans["xid/79"]
				p.Mode = policy.Observe
				s.plans["xid/79 n2"] = p
				s.says(at("xid/79", first))
				s.says(at("xid/79", map[string]string{"n1": "n2", "n2": "n1"}[first]))
				time.Sleep(time.Minute)
				if first == "n1" && s.only().Round != 1 {
					t.Errorf("round %d", s.only().Round)
				}
				if s.count("cordon n1") != 1 || s.count("cordon n2") != 0 || s.gangs["job-train"].Member(1).Node != "n2" || s.gangs["job-train"].Member(0).Node != "n3" {
					t.Errorf("did %q, members %+v", s.did, s.gangs["job-train"].Members)
				}
			})
		})
	}
}

func TestAPersonIsAskedIfAnyPolicyConcernedWantsOne(t *testing.T) {
	on(t, func(s *stage) {
		p := s.plans["xid/79"]
		p.Mode, p.NeedsApproval = "approve", true
		s.plans["xid/79 n2"] = p
		s.says(at("xid/79", "n1"))
		s.says(at("xid/79", "n2"))
		time.Sleep(time.Minute)
		i := s.only()
		if i.State != Planned || s.count("cordon n2") != 0 {
			t.Fatalf("%s, did %q", i.State, s.did)
		}
		s.answer("approved by jo")
		s.closes(time.Minute, Recovered)
	})
}

// answer is what the CLI does.
func (s *stage) answer(word string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, have := range s.incidents.values {
		have.v.Approval = word
		s.incidents.rev++
		s.incidents.values[key] = kept[Incident]{have.v, s.incidents.rev}
	}
}

func asks(s *stage) {
	for signal, p := range s.plans {
		p.Mode, p.NeedsApproval = "approve", true
		s.plans[signal] = p
	}
}

func TestNothingIsDoneBeforeAPersonSaysYes(t *testing.T) {
	on(t, func(s *stage) {
		asks(s)
		s.says(at("xid/79", "n1"))
		time.Sleep(10 * time.Minute)
		if i := s.only(); i.State != Planned || !i.NeedsPerson() || len(s.did) != 0 {
			t.Fatalf("%s, did %q", i.State, s.did)
		}
		s.says(at("xid/79", "n1")) // evidence that joins while the person writes
		time.Sleep(time.Millisecond)
		s.answer("approved by jo")
		s.says(at("xid/79", "n1"))
		if i := s.closes(time.Minute, Recovered); i.Approval != "approved by jo" || len(i.Joined) != 2 {
			t.Errorf("approval %q, joined %d", i.Approval, len(i.Joined))
		}
	})
}

func TestANoEndsIt(t *testing.T) {
	on(t, func(s *stage) {
		asks(s)
		s.says(at("xid/79", "n1"))
		s.reaches(time.Minute, Planned)
		s.answer("rejected by jo: maintenance")
		s.closes(time.Minute, Refused)
		s.wantDid()
	})
}

func TestAYesToOneNodeIsNoYesToTwo(t *testing.T) {
	on(t, func(s *stage) {
		asks(s)
		s.says(at("xid/79", "n1"))
		s.reaches(time.Minute, Planned)
		s.answer("approved by jo")
		s.passes(Placed)
		s.says(at("xid/79", "n2"))
		time.Sleep(time.Minute)
		if i := s.only(); i.State != Planned || s.count("cordon n2") != 0 {
			t.Fatalf("%s, did %q", i.State, s.did)
		}
		s.answer("approved by jo")
		s.closes(time.Minute, Recovered)
	})
}

func TestALateYesToARankThatRunsAgainDoesNothing(t *testing.T) {
	on(t, func(s *stage) {
		asks(s)
		s.says(s.rankDies("train", 1))
		s.reaches(time.Minute, Planned)
		time.Sleep(time.Hour)
		s.mu.Lock()
		s.gangs["job-train"].dead = map[int]bool{} // torchrun has restarted it
		s.mu.Unlock()
		s.answer("approved by jo")
		s.closes(time.Minute, NotConfirmed)
		s.wantDid()
	})
}

func TestAKillSwitchStopsAnIncidentWhereItStandsUntilItIsLifted(t *testing.T) {
	for _, state := range []State{Approved, Cordoned, Checkpointed, Placed, Restarted} {
		t.Run(string(state), func(t *testing.T) {
			on(t, func(s *stage) {
				s.e.Stepped = func(i *Incident) {
					if i.State == state && i.Round == 1 && i.Waiting == "" {
						s.killSwitch(true)
					}
				}
				s.says(at("gpu/row-remap", "n1"))
				s.passes(state)
				time.Sleep(3 * time.Second)
				s.mu.Lock()
				did := len(s.did)
				if len(s.holding) > 0 {
					t.Errorf("ranks hold for an incident that stands still: %v", s.holding)
				}
				s.mu.Unlock()
				time.Sleep(5 * time.Minute)
				if state != Restarted { // what is begun by then only has to be watched
					if len(s.did) != did {
						t.Errorf("did %q though the kill switch is on", s.did[did:])
					}
					if i := s.only(); !i.Open() || len(i.Notes) > 40 {
						t.Fatalf("%s %s, %d notes", i.State, i.Reason, len(i.Notes))
					}
				}
				s.killSwitch(false)
				s.closes(2*time.Minute, Recovered)
			})
		})
	}
}

func TestAnIncidentWaitsForItsTurn(t *testing.T) {
	on(t, func(s *stage) {
		busy := true
		s.refuses = func(*Plan, Facts) []guard.Verdict {
			if busy {
				return []guard.Verdict{{Guard: guard.Concurrent, Asked: true}}
			}
			return nil
		}
		s.says(at("gpu/row-remap", "n1"))
		time.Sleep(20 * time.Second)
		if i := s.only(); i.State != Planned || len(s.did) > 0 || i.NeedsPerson() {
			t.Fatalf("%s %s, did %q", i.State, i.Outcome, s.did)
		}
		s.mu.Lock()
		busy = false
		s.mu.Unlock()
		s.closes(time.Minute, Recovered)
	})
}

func TestAPolicyThatOnlyObservesByNowStopsAnIncidentUnderWay(t *testing.T) {
	on(t, func(s *stage) {
		mode := func(mode policy.Mode) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for signal, p := range s.plans {
				p.Mode = mode
				s.plans[signal] = p
			}
		}
		s.e.Stepped = func(i *Incident) {
			if i.State == Resumed && i.Restarts == 1 { // a rank of the new attempt dies: it would have to begin another
				mode(policy.Observe)
				s.mu.Lock()
				s.gangs["job-train"].dead[3] = true
				s.mu.Unlock()
			}
		}
		s.says(at("gpu/row-remap", "n1"))
		s.passes(Resumed)
		s.says(at("gpu/row-remap", "n2"))
		time.Sleep(10 * time.Minute)
		if i := s.only(); !i.Open() || !i.NeedsPerson() || i.Restarts != 1 || s.count("cordon n2") != 0 {
			t.Fatalf("%s, waiting %q, did %q", i.State, i.Waiting, s.did)
		}
		mode("enforce")
		s.closes(time.Minute, Recovered)
	})
}

func TestWithoutAFreeNodeNothingIsStoppedAndNoRankHolds(t *testing.T) {
	for name, taken := range map[string]State{"none from the beginning": "", "none by the time of placing": Cordoned} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				fill := func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					if s.gangs["job-other"] == nil {
						s.gang("other", "n3", "n4", "n5", "n6")
					}
				}
				if taken == "" {
					fill()
				}
				s.incidents.put = func(_ string, i Incident) error {
					if i.State == Checkpointed && taken != "" {
						fill()
					}
					return nil
				}
				s.says(at("gpu/row-remap", "n1"))
				time.Sleep(10 * time.Minute)
				i := s.only()
				if i.Waiting == "" || !i.NeedsPerson() || s.count("evict train-0-1") != 0 || len(s.holding) != 0 || len(i.Notes) > 40 {
					t.Fatalf("%s waiting %q holding %v did %q, %d notes", i.State, i.Waiting, s.holding, s.did, len(i.Notes))
				}
				s.mu.Lock()
				s.incidents.put = nil
				s.gangs["job-other"].deleted = true
				s.mu.Unlock()
				i = s.closes(time.Minute, Recovered)
				if *i.LostSteps != 0 {
					t.Errorf("%d steps lost, though it was saved again", *i.LostSteps)
				}
			})
		})
	}
}
