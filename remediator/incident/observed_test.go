package incident

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

var everyMode = map[string]func(*stage){"observe": func(s *stage) { s.mode(policy.Observe) }, "approve": asks, "enforce": func(*stage) {}}

// lost is what DCGM says of a GPU after the driver's line.
func (s *stage) lost(node string) event.Event {
	s.mu.Lock()
	s.plans["gpu/lost"] = s.plans["xid/79"]
	s.mu.Unlock()
	return at("gpu/lost", node, func(e *event.Event) { e.Data.Severity = event.Fatal })
}

func TestWhatIsFoundTwiceOfOneFaultIsOneIncidentInEveryMode(t *testing.T) {
	between := map[string]func(*stage){
		"at once":               func(*stage) {},
		"a second later":        func(*stage) { time.Sleep(time.Second) },
		"four minutes later":    func(*stage) { time.Sleep(4 * time.Minute) },
		"by another leader":     func(s *stage) { time.Sleep(time.Second); s.stop(); s.start() },
		"by the same event too": func(s *stage) { time.Sleep(time.Second); s.stop(); clear(s.seen); s.start() },
	}
	for mode, set := range everyMode {
		for name, then := range between {
			t.Run(mode+", "+name, func(t *testing.T) {
				on(t, func(s *stage) {
					s.lost("n1")
					set(s)
					ev := at("xid/79", "n1")
					s.says(ev)
					then(s)
					if time.Since(ev.Time) < time.Minute { // it is stale by then
						s.says(ev)
					}
					second := at("gpu/lost", "n1")
					s.says(second)
					s.says(second)
					time.Sleep(time.Minute)
					i := s.only()
					if mode == "observe" && (i.Outcome != Observed || len(i.Faults) != 2 && name != "at once" || !i.Knows(second.ID) || len(s.did) > 0) {
						t.Errorf("%s, %d faults, joined %v, did %q", i.Outcome, len(i.Faults), i.Joined, s.did)
					}
					s.wantOnce()
				})
			})
		}
	}
}

// onLine calls f for each line that is logged, before whoever logs goes on.
type onLine struct {
	slog.Handler
	f func(string)
}

func (h onLine) Enabled(context.Context, slog.Level) bool      { return true }
func (h onLine) WithAttrs([]slog.Attr) slog.Handler            { return h }
func (h onLine) Handle(_ context.Context, r slog.Record) error { h.f(r.Message); return nil }

func TestAFindingThatMeetsTheCloseJoinsWhatCloses(t *testing.T) {
	on(t, func(s *stage) {
		s.mode(policy.Observe)
		second := s.lost("n1")
		s.e.Log = slog.New(onLine{slog.DiscardHandler, func(line string) {
			if line == "incident closed" {
				s.says(second)
			}
		}})
		s.says(at("xid/79", "n1"))
		time.Sleep(time.Minute)
		if i := s.only(); len(i.Faults) != 2 {
			t.Errorf("%d faults, joined %v", len(i.Faults), i.Joined)
		}
		_, all := s.e.Incidents()
		if len(all) != 1 || len(all[0].Faults) != 2 {
			t.Errorf("the engine itself does not know of it")
		}
	})
}

func TestWhatIsAnotherFaultIsAnIncidentOfItsOwnAlsoWhereNothingIsDone(t *testing.T) {
	for name, next := range map[string]func(*stage) event.Event{
		"of another node to leave": func(*stage) event.Event { return at("xid/79", "n2") },
		"later":                    func(*stage) event.Event { time.Sleep(Correlation + time.Second); return at("xid/79", "n1") },
		"of a rank that was started since": func(s *stage) event.Event {
			s.says(s.rankDies("train", 0)) // an echo
			time.Sleep(time.Second)
			s.mu.Lock()
			s.gangs["job-train"].attempt++
			s.mu.Unlock()
			return s.rankDies("train", 0)
		},
		"of another job": func(s *stage) event.Event {
			s.gang("other", "n4", "n5")
			return at("xid/79", "n4")
		},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				s.mode(policy.Observe)
				s.says(at("xid/79", "n1"))
				s.closes(time.Minute, Observed)
				s.says(next(s))
				time.Sleep(time.Minute)
				if all := s.all(); len(all) != 2 || slices.ContainsFunc(all, func(i Incident) bool { return i.Outcome != Observed }) {
					t.Errorf("%d incidents, the first with faults %v", len(all), all[0].Faults)
				}
			})
		})
	}
}

func TestWhatIsWorseThanItBeganIsSoInTheRecordOfWhatWouldHaveBeenDone(t *testing.T) {
	on(t, func(s *stage) {
		s.mode(policy.Observe)
		var told []Outcome
		s.e.Stepped = func(i *Incident) {
			if !i.Open() {
				told = append(told, i.Outcome)
			}
		}
		s.says(s.rankDies("train", 0))
		if i := s.closes(time.Minute, Observed); i.Plan.Has(policy.Cordon) {
			t.Fatalf("plan %+v", i.Plan)
		}
		s.says(at("node/lost", "n1", func(e *event.Event) { e.Data.Severity = event.Fatal }))
		i := s.only()
		if !i.Plan.Has(policy.Cordon) || len(i.Moves) != 1 || i.Moves[0].From != "n1" || i.Moves[0].To == "" || !slices.Equal(i.FaultyNodes(), []string{"n1"}) || len(s.did) > 0 {
			t.Errorf("plan %+v, moves %+v, did %q", i.Plan, i.Moves, s.did)
		}
		for _, want := range []string{"rule leave would have acted", "node/lost on n1 joined"} {
			if !strings.Contains(i.story(), want) {
				t.Errorf("the story does not say %q:\n%s", want, i.story())
			}
		}
		if len(told) != 1 {
			t.Errorf("closed %d times", len(told))
		}
	})
}

func TestAPolicyThatActsIsNotKeptWaitingByWhatWasObservedOfTheSameFault(t *testing.T) {
	for name, fails := range map[string]bool{"": false, "and the store refuses what is closed": true} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				s.mode(policy.Observe)
				second := s.lost("n1")
				s.says(at("xid/79", "n1"))
				first := s.closes(time.Minute, Observed)
				s.mu.Lock()
				p := s.plans["gpu/lost"]
				p.Mode = "enforce"
				s.plans["gpu/lost"] = p
				s.mu.Unlock()
				s.incidents.put = func(key string, _ Incident) error {
					if fails && key == first.ID {
						return errors.New("no responders")
					}
					return nil
				}
				began := time.Now()
				s.says(second)
				for s.count("cordon n1") == 0 && time.Since(began) < time.Minute {
					time.Sleep(time.Millisecond)
				}
				if took := time.Since(began); took > 500*time.Millisecond {
					t.Errorf("cordoned after %s", took)
				}
				time.Sleep(time.Minute)
				if all := s.all(); len(all) != 2 || all[1].Outcome != Recovered {
					t.Errorf("%d incidents", len(all))
				}
			})
		})
	}
}

func TestAFaultThatJoinedWhatWasObservedIsTakenUpByThePolicyThatActsOnItAlone(t *testing.T) {
	on(t, func(s *stage) {
		s.mode(policy.Observe)
		second := s.lost("n1")
		s.says(at("xid/79", "n1"))
		s.closes(time.Minute, Observed)
		s.says(second)
		s.only()
		s.stop()
		s.start()
		s.mu.Lock()
		p := s.plans["gpu/lost"]
		p.Mode = "enforce"
		s.plans["gpu/lost"] = p
		s.mu.Unlock()
		time.Sleep(2 * time.Minute)
		if all := s.all(); len(all) != 2 || all[1].Outcome != Recovered || s.count("cordon n1") != 1 {
			t.Errorf("%d incidents, did %q", len(all), s.did)
		}
	})
}

func TestOfAJobThatHasNotAgreedOneFaultIsRefusedOnceAndActedOnOnceItHas(t *testing.T) {
	for _, g := range []guard.Name{guard.OptIn, guard.PerJob} {
		t.Run(string(g), func(t *testing.T) {
			on(t, func(s *stage) {
				second, third := s.lost("n1"), s.lost("n1")
				third.ID = "third"
				s.hold(g, true)
				s.says(at("xid/79", "n1"))
				s.closes(time.Minute, Refused)
				s.says(second)
				time.Sleep(time.Minute)
				if i := s.only(); len(i.Faults) != 2 {
					t.Errorf("%d faults", len(i.Faults))
				}
				s.hold(g, false)
				third.Time = time.Now()
				s.says(third)
				time.Sleep(time.Minute)
				if all := s.all(); len(all) != 2 || all[1].Outcome != Recovered {
					t.Errorf("%d incidents, did %q", len(all), s.did)
				}
			})
		})
	}
}

func TestWhatNeedsNobodysConsentIsDoneAfterARefusalThatDid(t *testing.T) {
	on(t, func(s *stage) {
		s.refuses = func(p *Plan, _ Facts) []guard.Verdict {
			return []guard.Verdict{{Guard: guard.OptIn, Asked: p.Has(policy.RestartJob), Allowed: !p.Has(policy.RestartJob)}}
		}
		only := s.plans["xid/79"]
		only.Steps = does(policy.Cordon)
		s.plans["gpu/ecc"] = only
		s.says(at("xid/79", "n1"))
		s.closes(time.Minute, Refused)
		s.says(at("gpu/ecc", "n1"))
		time.Sleep(time.Minute)
		s.wantDid("cordon n1")
	})
}

func TestWhatAPersonOrAnAgeRefusedDoesNotSwallowWhatComesNext(t *testing.T) {
	on(t, func(s *stage) {
		s.lost("n1")
		s.stand("xid/79", "n1", Unknown)
		s.stand("gpu/lost", "n1", Unknown)
		s.hold(guard.EventAge, true)
		s.says(at("xid/79", "n1"))
		s.closes(time.Minute, Refused)
		s.says(at("gpu/lost", "n1"))
		time.Sleep(time.Minute)
		s.hold(guard.EventAge, false)
		s.says(at("gpu/lost", "n1"))
		time.Sleep(time.Minute)
		if all := s.all(); len(all) != 3 || all[1].Outcome != Refused || all[2].Outcome != Recovered {
			t.Errorf("%d incidents", len(all))
		}
	})
	on(t, func(s *stage) {
		s.lost("n1")
		asks(s)
		s.says(at("xid/79", "n1"))
		s.reaches(time.Minute, Planned)
		s.answer("rejected by ann")
		s.closes(time.Minute, Refused)
		s.says(at("gpu/lost", "n1"))
		time.Sleep(time.Minute)
		if all := s.all(); len(all) != 2 || all[1].State != Planned {
			t.Errorf("%d incidents", len(all))
		}
	})
}

func TestAnEventThatJoinedAndWasNotRememberedJoinsOnce(t *testing.T) {
	on(t, func(s *stage) {
		s.mode(policy.Observe)
		second := s.lost("n1")
		s.says(at("xid/79", "n1"))
		s.closes(time.Minute, Observed)
		s.seenErr = errors.New("no responders")
		s.incidents.after = func(string, Incident) error { s.incidents.after = nil; return errors.New("the answer was lost") }
		for range 3 {
			if err := s.e.Handle(context.Background(), second, Origin{}); err == nil {
				t.Fatal("not to be delivered again")
			}
		}
		s.stop()
		s.seenErr = nil
		s.start()
		s.says(second)
		if i := s.only(); len(i.Faults) != 2 || len(i.Joined) != 0 {
			t.Errorf("faults %v, joined %v", i.Faults, i.Joined)
		}
	})
}

func TestAStormAfterAnObservedFaultDoesNotGrowItsRecord(t *testing.T) {
	on(t, func(s *stage) {
		s.mode(policy.Observe)
		s.says(at("xid/79", "n1"))
		s.closes(time.Minute, Observed)
		s.lost("n1")
		for k := range 500 {
			ev := at("gpu/lost", "n1", func(e *event.Event) { e.Data.Target.GPU = fmt.Sprint("GPU-", k) })
			ev.ID = fmt.Sprint("storm-", k)
			s.says(ev)
		}
		s.mu.Lock()
		revisions := s.incidents.rev
		s.mu.Unlock()
		if i := s.only(); len(i.Faults) > maxFaults || len(i.Joined) > maxJoined || revisions > maxFaults+maxJoined+20 {
			t.Errorf("%d faults, %d joined, %d writes", len(i.Faults), len(i.Joined), revisions)
		}
	})
}
