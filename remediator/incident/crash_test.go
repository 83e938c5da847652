package incident

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/guard"
)

var crashed = map[string]func(*stage){
	"launcher":           func(*stage) {},
	"recreate":           func(s *stage) { s.gangs["job-train"].Launcher = false },
	"a stray":            func(s *stage) { s.slip(1, true) },
	"a stray, recreated": func(s *stage) { s.gangs["job-train"].Launcher = false; s.slip(1, true) },
	"held back at first": func(s *stage) {
		lifted := time.Now().Add(10 * time.Second)
		s.guards(func(Facts) guard.Verdict {
			return guard.Verdict{Guard: guard.Hold, Allowed: !time.Now().Before(lifted), Asked: true, Detail: "node n1 is held"}
		})
	},
	"a second fault": func(s *stage) {
		s.attempts.put = func(string, bus.Attempt) error {
			s.mu.Lock()
			s.attempts.put = nil
			s.mu.Unlock()
			go s.e.Handle(context.Background(), at("gpu/row-remap", "n2"), Origin{})
			return nil
		}
	},
}

// The process ends behind the nth write of any kind, to the cluster, to the ranks or to the bus: what was written has taken effect, and
// nobody has heard of it.
func TestACrashBehindAnyWriteIsResumedWithoutDoingAStepTwice(t *testing.T) {
	for name, set := range crashed {
		writes := 0
		on(t, func(s *stage) {
			set(s)
			s.says(at("gpu/row-remap", "n1"))
			s.closes(5*time.Minute, Recovered)
			synctest.Wait()
			writes = s.wrote
		})
		if writes < 10 {
			t.Fatalf("%s: %d writes seen", name, writes)
		}
		for n := 3; n <= writes; n++ { // the first takes the ledger over, the second opens the incident, in the test's own goroutine
			t.Run(fmt.Sprintf("%s, write %d", name, n), func(t *testing.T) {
				on(t, func(s *stage) {
					set(s)
					dead := make(chan struct{})
					s.crash = func(nth int) {
						if nth == n {
							close(dead)
							runtime.Goexit()
						}
					}
					s.says(at("gpu/row-remap", "n1"))
					select {
					case <-dead:
					case <-time.After(5 * time.Minute):
						t.Skip("the writes came out in another order")
					}
					s.stop() // of the others in that process
					s.mu.Lock()
					s.crash = nil
					s.mu.Unlock()
					s.start()
					i := s.closes(10*time.Minute, Recovered)
					s.wantOnce()
					if name != "a second fault" && i.Restarts != 1 || name == "launcher" && i.Attempt != 1 {
						t.Errorf("%d restarts, attempt %d", i.Restarts, i.Attempt)
					}
				})
			})
		}
	}
}

func TestACrashBetweenDoingAndRecordingAStepIsResumed(t *testing.T) {
	for state := range order {
		if state == Detected {
			continue
		}
		t.Run(string(state), func(t *testing.T) {
			on(t, func(s *stage) {
				s.stop()
				ctx, cancel := context.WithCancel(context.Background())
				e := s.engine()
				e.AfterStep = func(done State) {
					if done == state {
						cancel()
						runtime.Goexit()
					}
				}
				if err := e.Start(ctx); err != nil {
					t.Fatal(err)
				}
				s.e = e
				s.says(at("gpu/row-remap", "n1"))
				<-ctx.Done()
				e.Wait()
				s.start()
				s.closes(5*time.Minute, Recovered)
				s.wantOnce()
			})
		})
	}
}

func TestAFaultThatJoinedBeforeTheCrashIsPlannedForAfterIt(t *testing.T) {
	on(t, func(s *stage) {
		s.says(at("gpu/row-remap", "n1"))
		s.reaches(time.Minute, Restarted)
		s.stop()
		for key, have := range s.incidents.values { // joined and recorded, and then the process ended
			ev := at("gpu/row-remap", "n2")
			have.v.Faults = append(have.v.Faults, Fault{EventID: ev.ID, Signal: "gpu/row-remap", Node: "n2", Moves: true, Usable: true, Event: ev, Seen: time.Now()})
			have.v.Replan = true
			s.incidents.values[key] = have
		}
		s.start()
		i := s.closes(time.Minute, Recovered)
		if n := s.gangs["job-train"].Member(1).Node; n == "n2" || i.Round != 2 {
			t.Errorf("pod 1 on %s, round %d", n, i.Round)
		}
	})
}

func TestAGangThatTheIncidentSuspendedIsResumedWhateverHappensInBetween(t *testing.T) {
	for name, happens := range map[string]func(*stage){
		"nothing": func(*stage) {},
		"a crash": func(s *stage) { s.stop(); s.start() },
		"a second fault": func(s *stage) {
			ev := at("gpu/row-remap", "n2")
			ev.Data.Target.Job = &s.gangs["job-train"].Job
			s.says(ev)
		},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				g := s.gangs["job-train"]
				g.Launcher = false
				s.resumeErr = func() error { return cluster.ErrRetry }
				s.says(at("gpu/row-remap", "n1"))
				s.until(time.Minute, "suspended", func(Incident) bool { return s.count("suspend") == 1 })
				time.Sleep(10 * time.Second)
				happens(s)
				time.Sleep(10 * time.Second)
				s.mu.Lock()
				s.resumeErr = nil
				s.mu.Unlock()
				s.closes(2*time.Minute, Recovered)
				if g.Suspended {
					t.Error("left suspended")
				}
			})
		})
	}
}

func TestAGangIsResumedBeforeAPersonIsAskedAboutASecondFault(t *testing.T) {
	on(t, func(s *stage) {
		g, asks := s.gangs["job-train"], s.plans["xid/79"]
		asks.NeedsApproval, g.Launcher = true, false
		s.plans["xid/79"] = asks
		s.resumeErr = func() error { return cluster.ErrRetry }
		s.says(at("gpu/row-remap", "n1"))
		s.until(time.Minute, "suspended", func(Incident) bool { return s.count("suspend") == 1 })
		ev := at("xid/79", "n2")
		ev.Data.Target.Job = &g.Job
		s.says(ev)
		time.Sleep(10 * time.Second)
		s.mu.Lock()
		s.resumeErr = nil
		s.mu.Unlock()
		i := s.until(time.Minute, "asking", func(i Incident) bool { return i.NeedsPerson() })
		if g.Suspended || i.Suspended {
			t.Errorf("suspended while it asks: %s", i.Waiting)
		}
	})
}

func TestAGangThatAPersonSuspendsWhileItsPodsAreMadeAnewIsNotResumed(t *testing.T) {
	on(t, func(s *stage) {
		g := s.gangs["job-train"]
		g.Launcher = false
		s.bindsIn = time.Hour
		s.says(at("gpu/row-remap", "n1"))
		s.until(time.Minute, "resumed", func(i Incident) bool { return s.count("resume") == 1 && !i.Suspended })
		s.mu.Lock()
		g.Suspended = true
		s.mu.Unlock()
		s.closes(5*time.Minute, Gone)
		if !g.Suspended || s.count("resume") != 1 {
			t.Errorf("did %q", s.did)
		}
	})
}

func TestALostAnswerOfTheStoreIsNoLostRecord(t *testing.T) {
	on(t, func(s *stage) {
		n := 0
		s.incidents.after = func(string, Incident) error {
			if n++; n%2 == 0 {
				return errors.New("timeout")
			}
			return nil
		}
		s.says(at("gpu/row-remap", "n1"))
		s.closes(time.Minute, Recovered)
		s.wantOnce()
	})
}

func TestAStoreThatIsAwayIsWaitedFor(t *testing.T) {
	on(t, func(s *stage) {
		s.says(at("gpu/row-remap", "n1"))
		i := s.reaches(time.Minute, Cordoned)
		back := time.Now().Add(30 * time.Second)
		s.incidents.put = func(string, Incident) error {
			if time.Now().Before(back) {
				return errors.New("no responders")
			}
			return nil
		}
		if open, _ := s.e.Incidents(); len(open) != 1 || open[0].ID != i.ID { // readers do not wait for it
			t.Errorf("open %v", open)
		}
		s.closes(2*time.Minute, Recovered)
		s.wantOnce()
	})
}

func TestWhoLosesACompareAndSwapDoesNothingMore(t *testing.T) {
	on(t, func(s *stage) {
		s.says(at("gpu/row-remap", "n1"))
		s.reaches(time.Minute, Approved)
		s.mu.Lock()
		for key, have := range s.incidents.values { // another leader was faster
			have.v.State, have.v.StateAt = Cordoned, time.Now()
			have.v.Notes = append(have.v.Notes, Note{At: time.Now(), State: Cordoned, TookS: 1})
			s.incidents.rev++
			s.incidents.values[key] = kept[Incident]{have.v, s.incidents.rev}
		}
		s.mu.Unlock()
		time.Sleep(time.Second) // what was under way
		s.mu.Lock()
		did := len(s.did)
		s.mu.Unlock()
		time.Sleep(standBack - 3*time.Second)
		synctest.Wait()
		s.mu.Lock()
		if len(s.did) != did {
			t.Errorf("did %q after it lost", s.did[did:])
		}
		s.mu.Unlock()
		s.closes(2*time.Minute, Recovered) // the other is dead, and this one still leads
	})
}

func TestTwoLeadersForAMomentDoNothingTwice(t *testing.T) {
	on(t, func(s *stage) {
		s.says(at("gpu/row-remap", "n1"))
		for _, state := range []State{Approved, Checkpointed, Restarted} {
			s.reaches(time.Minute, state)
			first := s.stop
			s.start() // takes the incident up while the other still drives it
			second := s.stop
			s.stop = func() { first(); second() }
		}
		s.closes(5*time.Minute, Recovered)
		s.wantOnce()
	})
}

func TestAJobThatIsDeletedClosesTheIncidentAndItsAttempts(t *testing.T) {
	for _, state := range []State{Cordoned, Checkpointed, Placed, Restarted, Resumed} {
		t.Run(string(state), func(t *testing.T) {
			on(t, func(s *stage) {
				s.incidents.put = func(_ string, i Incident) error {
					if i.State == state {
						s.mu.Lock()
						s.gangs["job-train"].deleted = true
						s.holding = map[string]string{}
						s.mu.Unlock()
					}
					return nil
				}
				s.says(at("gpu/row-remap", "n1"))
				s.closes(5*time.Minute, Gone)
				if len(s.attempts.values) != 0 {
					t.Errorf("attempts %+v", s.attempts.values)
				}
			})
		})
	}
}

func TestOldRecordsAreTidiedAway(t *testing.T) {
	on(t, func(s *stage) {
		s.says(at("xid/79", "n6"))
		s.closes(time.Minute, Quarantined)
		s.mu.Lock()
		s.attempts.values["job-old"] = kept[bus.Attempt]{bus.Attempt{Job: s.gangs["job-train"].Job, Attempt: 4}, 9}
		gone := s.attempts.values["job-old"]
		gone.v.Job.UID = "job-old"
		s.attempts.values["job-old"] = gone
		s.attempts.values["job-train"] = kept[bus.Attempt]{bus.Attempt{Job: s.gangs["job-train"].Job, Attempt: 1}, 10}
		s.mu.Unlock()
		time.Sleep(2 * keepEvery)
		s.mu.Lock()
		if _, there := s.attempts.values["job-old"]; there || len(s.attempts.values) != 1 || len(s.incidents.values) != 1 {
			t.Errorf("attempts %v, %d incidents", s.attempts.values, len(s.incidents.values))
		}
		s.mu.Unlock()
		time.Sleep(keepFor)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.incidents.values) != 0 {
			t.Errorf("%d incidents", len(s.incidents.values))
		}
	})
}
