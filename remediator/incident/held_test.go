package incident

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// guards asks a guard, and the age of events as the real one does.
func (s *stage) guards(ask func(Facts) guard.Verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses = func(_ *Plan, f Facts) []guard.Verdict {
		age := guard.Verdict{Guard: guard.EventAge, Asked: true, Allowed: time.Since(f.Seen) <= time.Minute}
		if f.Incident.acted() {
			age.Allowed = true
		}
		return []guard.Verdict{ask(f), age}
	}
}

// hold lets a guard refuse until it is called again with false.
func (s *stage) hold(g guard.Name, on bool) {
	s.guards(func(Facts) guard.Verdict {
		return guard.Verdict{Guard: g, Allowed: !on, Asked: true, Detail: "as the test wants", Current: time.Now().String(), Limit: "x"}
	})
}

func (s *stage) stand(signal, node string, as Standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stands[signal+" "+node] = as
}

func TestWhatAPassingGuardHeldBackIsTakenUpOnceWhenItLetsGo(t *testing.T) {
	for g := range passing {
		t.Run(string(g), func(t *testing.T) {
			on(t, func(s *stage) {
				s.hold(g, true)
				ev := at("gpu/row-remap", "n1")
				s.says(ev)
				time.Sleep(3 * time.Minute)
				s.says(ev)                        // doubled
				s.says(at("gpu/row-remap", "n1")) // and said again
				if g != guard.Concurrent {
					time.Sleep(20 * time.Minute)
				}
				i, waitsAs := s.only(), Correlated
				if slices.Contains(limits, g) {
					waitsAs = Planned // in the ledger's queue
				}
				if i.State != waitsAs || len(s.did) > 0 || i.NeedsPerson() != (g != guard.Concurrent) || len(i.Notes) > 8 {
					t.Fatalf("%s %s, did %q, %d notes", i.State, i.Outcome, s.did, len(i.Notes))
				}
				s.hold(g, false)
				i = s.closes(2*time.Minute, Recovered)
				s.wantDid("cordon n1", "save "+i.ID+"-1", "reserve n3", "evict train-0-1", "release")
				s.says(ev)
				s.only()
				var b strings.Builder
				i.Write(&b)
				for _, want := range []string{string(g) + ": refuses", "taken up when it lets go", "after a guard held it back, and it still holds"} {
					if !strings.Contains(b.String(), want) {
						t.Errorf("the story does not say %q:\n%s", want, b.String())
					}
				}
			})
		})
	}
}

func TestARefusalThatDoesNotPassIsFinal(t *testing.T) {
	for _, g := range []guard.Name{guard.OptIn, guard.PerJob, guard.EventAge} {
		t.Run(string(g), func(t *testing.T) {
			on(t, func(s *stage) {
				if g == guard.EventAge {
					s.stand("gpu/row-remap", "n1", Unknown)
				}
				s.hold(g, true)
				s.says(at("gpu/row-remap", "n1"))
				s.closes(time.Minute, Refused)
				s.hold(g, false)
				time.Sleep(time.Hour)
				s.wantDid()
				s.only()
			})
		})
	}
}

func TestWhatEndedByItselfWhileItWasHeldBackIsNotTakenUp(t *testing.T) {
	on(t, func(s *stage) {
		s.hold(guard.Hold, true)
		ev := at("gpu/row-remap", "n1")
		s.says(ev)
		time.Sleep(time.Hour)
		s.stand("gpu/row-remap", "n1", Ended)
		i := s.closes(time.Minute, Resolved)
		if i.NeedsPerson() || !strings.Contains(i.Reason, "gpu/row-remap on n1 ended by itself") {
			t.Errorf("%s: %s", i.Outcome, i.Reason)
		}
		s.hold(guard.Hold, false)
		s.says(ev)
		time.Sleep(time.Hour)
		s.wantDid()
	})
}

func TestOnlyWhatStillHoldsOfAHeldIncidentIsTakenUp(t *testing.T) {
	on(t, func(s *stage) {
		s.hold(guard.KillSwitch, true)
		s.says(at("gpu/row-remap", "n1"))
		s.says(at("xid/79", "n2"))
		time.Sleep(time.Hour)
		s.stand("gpu/row-remap", "n1", Ended)
		s.hold(guard.KillSwitch, false)
		i := s.closes(2*time.Minute, Recovered)
		if s.count("cordon n1") != 0 || s.count("cordon n2") != 1 || len(i.Faults) != 1 || s.gangs["job-train"].Member(0).Node != "n1" {
			t.Errorf("did %q, faults %+v", s.did, i.Faults)
		}
	})
}

func TestWithoutTheNodesOwnWordAHeldIncidentWaitsAndAnEventWithoutAConditionGrowsStale(t *testing.T) {
	on(t, func(s *stage) {
		s.hold(guard.KillSwitch, true)
		s.says(at("gpu/row-remap", "n1"))
		time.Sleep(time.Hour)
		s.stand("gpu/row-remap", "n1", Silent) // its agent is being replaced
		s.hold(guard.KillSwitch, false)
		time.Sleep(10 * time.Minute)
		if i := s.only(); !i.Open() || len(s.did) > 0 || !strings.Contains(i.Waiting, string(guard.EventAge)) {
			t.Fatalf("%s, waiting %q, did %q", i.State, i.Waiting, s.did)
		}
		s.stand("gpu/row-remap", "n1", Holds)
		s.closes(2*time.Minute, Recovered)
	})
	on(t, func(s *stage) {
		s.stand("rule/Hot", "n1", Unknown)
		s.plans["rule/Hot"] = s.plans["xid/79"]
		s.hold(guard.KillSwitch, true)
		s.says(at("rule/Hot", "n1"))
		s.reaches(time.Minute, Correlated)
		time.Sleep(30 * time.Second)
		if i := s.only(); !i.Open() {
			t.Fatalf("closed as %s", i.Outcome)
		}
		s.closes(2*time.Minute, Refused)
	})
}

func TestAHeldIncidentIsGivenUpWhenThePolicysTimeIsUp(t *testing.T) {
	within := func(s *stage, d time.Duration) {
		p := s.plans["gpu/row-remap"]
		p.TakeUpWithin = d
		s.plans["gpu/row-remap"] = p
	}
	on(t, func(s *stage) {
		within(s, 2*time.Hour)
		s.hold(guard.Hold, true)
		s.says(at("gpu/row-remap", "n1"))
		time.Sleep(119 * time.Minute)
		if i := s.only(); !i.Open() {
			t.Fatalf("closed as %s", i.Outcome)
		}
		s.closes(2*time.Minute, Refused)
		s.hold(guard.Hold, false)
		time.Sleep(time.Hour)
		s.wantDid()
	})
	on(t, func(s *stage) {
		within(s, 0)
		s.hold(guard.Hold, true)
		s.says(at("gpu/row-remap", "n1"))
		s.closes(time.Minute, Refused)
	})
}

func TestARankThatRunsAgainWhenTheGuardLetsGoIsLeftAlone(t *testing.T) {
	on(t, func(s *stage) {
		s.hold(guard.KillSwitch, true)
		s.says(s.rankDies("train", 1))
		time.Sleep(time.Hour)
		s.mu.Lock()
		s.gangs["job-train"].dead = map[int]bool{}
		s.mu.Unlock()
		s.hold(guard.KillSwitch, false)
		s.closes(time.Minute, NotConfirmed)
		s.wantDid()
	})
}

func TestAHeldIncidentOutlivesItsLeader(t *testing.T) {
	on(t, func(s *stage) {
		s.hold(guard.KillSwitch, true)
		s.says(at("gpu/row-remap", "n1"))
		s.reaches(time.Minute, Correlated)
		time.Sleep(time.Second)
		s.stop()
		time.Sleep(time.Hour)
		s.hold(guard.KillSwitch, false)
		s.start()
		i := s.closes(2*time.Minute, Recovered)
		s.wantOnce()
		if i.TakenUp.IsZero() {
			t.Error("it does not say that it was taken up")
		}
	})
}

func TestAKillSwitchThatIsTurnedOffWakesWhatItHeld(t *testing.T) {
	on(t, func(s *stage) {
		s.hold(guard.KillSwitch, true)
		s.says(at("gpu/row-remap", "n1"))
		time.Sleep(time.Minute + 3*time.Second)
		synctest.Wait()
		s.hold(guard.KillSwitch, false)
		s.e.Wake()
		s.until(2*time.Second, "cordoned", func(i Incident) bool { return i.reached(Cordoned) })
	})
}

func (s *stage) mode(mode policy.Mode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for signal, p := range s.plans {
		p.Mode = mode
		s.plans[signal] = p
	}
}

// all are the incidents in the order in which they were opened.
func (s *stage) all() (out []Incident) {
	_, all := s.e.Incidents()
	for k := len(all) - 1; k >= 0; k-- {
		out = append(out, *all[k])
	}
	return out
}

func TestWhatWasOnlyObservedIsTakenUpOnceWhenThePolicyActs(t *testing.T) {
	for name, first := range map[string]func(*stage){
		"observed":                func(*stage) {},
		"observed, and held back": func(s *stage) { s.hold(guard.Hold, true) },
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				s.mode(policy.Observe)
				first(s)
				ev := at("gpu/row-remap", "n1")
				s.says(ev)
				time.Sleep(3 * time.Hour)
				if i := s.only(); i.Open() || len(s.did) > 0 {
					t.Fatalf("%s, did %q", i.State, s.did)
				}
				s.hold(guard.Hold, false)
				s.mode("enforce")
				time.Sleep(2 * time.Minute)
				s.mu.Lock()
				s.nodes["n1"].quarantined = "" // a person thinks that it is well
				s.mu.Unlock()
				s.stop() // a new leader does not take it up again
				s.start()
				s.says(ev)
				time.Sleep(3 * time.Hour)
				all := s.all()
				if len(all) != 2 || all[1].Outcome != Recovered || s.count("cordon n1") != 1 || s.count("evict train-0-1") != 1 {
					t.Fatalf("%d incidents, did %q", len(all), s.did)
				}
				if !strings.Contains(fmt.Sprint(all[1].Notes), all[0].ID+" only observed it") || all[1].TakenUp.IsZero() {
					t.Errorf("its story does not say where it comes from: %v", all[1].Notes)
				}
			})
		})
	}
}

func TestWhatWasOnlyObservedStaysSoWhereItEndedOrIsTooLongAgoOrThePolicyStillObserves(t *testing.T) {
	for name, then := range map[string]func(*stage){
		"it ended":                     func(s *stage) { s.stand("gpu/row-remap", "n1", Ended); s.mode("enforce") },
		"nobody can say":               func(s *stage) { s.stand("gpu/row-remap", "n1", Unknown); s.mode("enforce") },
		"the agent is silent":          func(s *stage) { s.stand("gpu/row-remap", "n1", Silent); s.mode("enforce") },
		"too long ago":                 func(s *stage) { time.Sleep(25 * time.Hour); s.mode("enforce") },
		"the policy policy.Observe on": func(*stage) {},
		"the rule is gone":             func(s *stage) { s.mu.Lock(); delete(s.plans, "gpu/row-remap"); s.mu.Unlock() },
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				s.mode(policy.Observe)
				s.says(at("gpu/row-remap", "n1"))
				s.closes(time.Minute, Observed)
				then(s)
				time.Sleep(3 * time.Hour)
				s.only()
				s.wantDid()
			})
		})
	}
}

func TestACrashWhileWhatWasObservedIsTakenUpDoesNothingTwice(t *testing.T) {
	on(t, func(s *stage) {
		s.mode(policy.Observe)
		s.says(at("gpu/row-remap", "n1"))
		s.closes(time.Minute, Observed)
		s.mode("enforce")
		s.mu.Lock()
		s.seenErr = fmt.Errorf("no responders") // opened, and not remembered
		s.mu.Unlock()
		time.Sleep(2 * time.Minute)
		s.stop()
		s.mu.Lock()
		s.seenErr = nil
		s.mu.Unlock()
		s.start()
		time.Sleep(5 * time.Minute)
		if all := s.all(); len(all) != 2 {
			t.Errorf("%d incidents", len(all))
		}
		s.wantOnce()
	})
}

func TestAWaitThatTimeAloneWillEndSaysUntilWhenOnceAndKeepsTheVerdictThatTripped(t *testing.T) {
	on(t, func(s *stage) {
		began := time.Now()
		lets := began.Add(9 * time.Minute)
		s.guards(func(Facts) guard.Verdict {
			v := guard.Verdict{Guard: guard.Breaker, Asked: true, Current: time.Now().String(), Limit: "1", Tripped: true}
			if time.Since(began) > 4*time.Minute {
				v.Until, v.Tripped = lets, false
			}
			return v
		})
		s.says(at("gpu/row-remap", "n1"))
		time.Sleep(3 * time.Minute)
		first := s.only()
		if strings.Contains(first.Waiting, "until") {
			t.Fatalf("waits for %q", first.Waiting)
		}
		time.Sleep(4 * time.Minute)
		i := s.only()
		if !strings.Contains(i.Waiting, ", until "+lets.UTC().Format(time.RFC3339)) || len(i.Notes) != len(first.Notes)+1 || len(s.did) > 0 {
			t.Errorf("waits for %q, %d notes after %d, did %q", i.Waiting, len(i.Notes), len(first.Notes), s.did)
		}
		if !slices.ContainsFunc(i.Guards, func(v guard.Verdict) bool { return v.Tripped }) {
			t.Errorf("nobody knows any more that the breaker tripped: %v", i.Guards)
		}
	})
}
