package incident

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/ledger"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// finds judges statistical findings by package guard, with what a test says of the finding.
type finds struct {
	realGuards
	finding guard.Finding
	heard   time.Duration // how long ago the source last confirmed it
	without guard.Name    // a guard that is taken out
}

func (f *finds) Guards(p *Plan, x Facts, b *ledger.Book) []guard.Verdict {
	f.mu.Lock()
	finding := f.finding
	finding.Heard = x.Now.Add(-f.heard)
	f.mu.Unlock()
	if p.Terms == nil {
		return f.realGuards.Guards(p, x, b)
	}
	fault := x.Incident.finding()
	finding.Signal, finding.Statistical, finding.For = fault.Signal, true, time.Duration(p.Terms.For)
	finding.Lasted = x.Now.Sub(fault.Event.Data.Onset)
	out := f.realGuards.guards(p, x, b, &finding)
	return slices.DeleteFunc(out, func(v guard.Verdict) bool { return v.Guard == f.without })
}

func (f *finds) set(change func(*finds)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// good is a finding that every guard lets pass, once it has lasted.
func good() guard.Finding {
	return guard.Finding{Confirms: []string{"throttle"}, Loss: 4 * 3600, Cost: 240, Horizon: time.Hour, Margin: 2}
}

// slow lets a plan take the stragglers of the stage, judged by real guards.
func slow(s *stage, mode policy.Mode) *finds {
	guards := policy.DefaultGuards()
	guards.CooldownPerNode = 0
	f := &finds{realGuards: realGuards{world: s.world, policy: policy.Policy{Metadata: policy.Metadata{Name: "stragglers"}, Spec: policy.Spec{Guards: guards}}}, finding: good()}
	s.stop()
	s.startAs(func(e *Engine) { e.Judge = f })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plans[straggles] = Plan{Policy: "stragglers", Rule: "slow-rank", Mode: mode, Steps: does(policy.Cordon, policy.Checkpoint, policy.RestartJob), VerifyWithin: 20 * time.Second,
		TakeUpWithin: time.Hour, ByPace: true, Terms: &policy.Terms{For: policy.DefaultFor, Worth: policy.DefaultWorth(), Statistical: true}}
	return f
}

const straggles = "rank/straggler"

// lags is the finding of a gateway about a rank, which costs half of each step: 4 ranks wait.
func (s *stage) lags(rank int) event.Event {
	e := s.straggler("train", rank)
	e.Data.Onset = e.Time.Add(-2 * time.Second)
	e.Data.Target.WorldSize = 4
	e.Data.Evidence.DurationS, e.Data.Evidence.LostGPUSeconds = 2, 4
	s.mu.Lock()
	s.stepS = 200 * time.Millisecond
	s.mu.Unlock()
	return e
}

func TestAStatisticalFindingThatEveryGuardLetsPassMovesTheRankAndLosesNoStep(t *testing.T) {
	on(t, func(s *stage) {
		slow(s, policy.Enforce)
		began := time.Now()
		s.says(s.lags(0))
		s.until(time.Minute, "approved", func(i Incident) bool { return i.reached(Approved) })
		if took := time.Since(began); took < 13*time.Second || took > 16*time.Second {
			t.Errorf("acted %s after the finding, which was 2 s after its onset", took)
		}
		s.moved() // the node was the cause
		i := s.closes(time.Minute, Recovered)
		s.wantDid("cordon n1", "save "+i.ID+"-1", "reserve n3", "evict train-0-1", "release")
		if *i.LostSteps != 0 || i.Pace == nil || i.Pace.After == 0 || !i.Pace.back(i.Pace.After) {
			t.Errorf("lost %d, pace %+v", *i.LostSteps, i.Pace)
		}
		var asked []guard.Name
		for _, v := range i.Guards {
			if v.Asked && slices.Contains(evidence, v.Guard) {
				asked = append(asked, v.Guard)
			}
		}
		if len(asked) != len(evidence) || !strings.Contains(i.story(), "throttle") {
			t.Errorf("the record has the verdicts of %v\n%s", asked, i.story())
		}
		if c, ok := s.e.costs["job-train"]; !ok || c.RestartS <= 0 || c.GPUSeconds(4, time.Hour) != 4*(c.SaveS+c.RestartS) {
			t.Errorf("the restart has shown %+v", c)
		}
	})
}

// moved lets the job be as fast as before once its rank has left the node.
func (s *stage) moved() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fastAgain = true
}

// Each guard alone holds the action back; with it taken out, everything else the same, the job is moved.
func TestEachGuardOfAFindingHoldsTheActionBackByItself(t *testing.T) {
	for name, c := range map[guard.Name]func(*finds, *event.Event){
		guard.Lasts:      func(_ *finds, e *event.Event) { e.Data.Onset = e.Time.Add(10 * time.Minute) }, // it lasts only then
		guard.SecondSign: func(f *finds, _ *event.Event) { f.finding.Confirms = nil },
		guard.OneCulprit: func(f *finds, _ *event.Event) {
			f.finding.Against = []string{"anomaly/thermal-throttle names rank 3 on n2"}
		},
		guard.WorthIt: func(f *finds, _ *event.Event) { f.finding.Loss = 2*f.finding.Cost - 1 },
		guard.Fresh:   func(f *finds, _ *event.Event) { f.heard = 11 * time.Second },
	} {
		for _, without := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, taken out %v", name, without), func(t *testing.T) {
				on(t, func(s *stage) {
					f := slow(s, policy.Enforce)
					e := s.lags(0)
					f.set(func(f *finds) {
						c(f, &e)
						if without {
							f.without = name
						}
					})
					s.says(e)
					time.Sleep(5 * time.Minute)
					i := s.only()
					if without {
						if !i.reached(Approved) || s.count("cordon n1") != 1 {
							t.Fatalf("without the guard it does not act: %s", i.story())
						}
						return
					}
					if i.State != Correlated || i.acted() || len(s.did) > 0 {
						t.Fatalf("%s, did %q\n%s", i.State, s.did, i.story())
					}
					if i.Wait == nil || i.Wait.Reason != guardReason(name) {
						t.Errorf("waits for %+v", i.Wait)
					}
					s.stand(straggles, "n1", Ended)
					if i = s.closes(time.Minute, Resolved); s.count("cordon n1") != 0 {
						t.Errorf("did %q", s.did)
					}
				})
			})
		}
	}
}

func TestABlipActsOnNothing(t *testing.T) {
	on(t, func(s *stage) {
		slow(s, policy.Enforce)
		s.says(s.lags(0))
		time.Sleep(10 * time.Second)
		s.stand(straggles, "n1", Ended)
		s.closes(time.Minute, Resolved)
		s.wantDid()
	})
}

func TestAnObservingPolicyWaitsForTheEvidenceAndThenRecords(t *testing.T) {
	on(t, func(s *stage) {
		slow(s, policy.Observe)
		s.says(s.lags(0))
		time.Sleep(8 * time.Second)
		if i := s.only(); !i.Open() {
			t.Fatalf("%s", i.story())
		}
		i := s.closes(time.Minute, Observed)
		if i.ClosedAt.Sub(i.Opened) < 13*time.Second {
			t.Errorf("%s", i.story())
		}
		s.wantDid()
	})
}

func TestAMoveThatDoesNotHelpIsUndoneAndRemembered(t *testing.T) {
	on(t, func(s *stage) {
		f := slow(s, policy.Enforce)
		s.says(s.lags(0))
		i := s.closes(3*time.Minute, NotTheCause)
		if s.count("uncordon n1") != 1 || len(i.Cordons) != 0 || !i.NeedsPerson() || !strings.Contains(i.Reason, "n1 was not the cause") {
			t.Errorf("did %q\n%s", s.did, i.story())
		}
		book := s.e.Ledger.Book()
		if g := book.Grant(i.ID); !g.Vain || g.Finding != straggles {
			t.Errorf("grant %+v", g)
		}
		for _, leader := range []string{"the same leader", "a new leader"} { // the same finding does not act again
			if leader == "a new leader" {
				s.stop()
				s.startAs(func(e *Engine) { e.Judge = f })
			}
			e := s.lags(1)
			s.says(e)
			time.Sleep(time.Minute)
			for _, x := range s.incidents.values {
				if x.v.ID != i.ID && (x.v.Outcome != Refused || !strings.Contains(x.v.Reason, "was moved for rank/straggler before")) {
					t.Errorf("%s: %s", leader, x.v.story())
				}
			}
		}
		if n := s.count("cordon n1") + s.count("cordon n2") + s.count("cordon n3"); n != 1 {
			t.Errorf("did %q", s.did)
		}
		if n := len(guard.Blocking(f.Guards(ptr(s.plans[straggles]), s.asks("inc-x"), &book))); n == 0 {
			t.Error("nothing refuses")
		}
	})
}

func ptr[T any](v T) *T { return &v }

// asks are the facts of another incident of the job, about another finding.
func (s *stage) asks(id string) Facts {
	g := s.copy(s.gangs["job-train"])
	e := s.lags(0)
	return Facts{Now: time.Now(), Gang: &g, Incident: &Incident{ID: id, Faults: []Fault{{Signal: straggles, Event: e}}}, Seen: time.Now()}
}

func TestTwoMovesInARowThatDoNotHelpPutTheJobOnHold(t *testing.T) {
	on(t, func(s *stage) {
		slow(s, policy.Enforce)
		s.mu.Lock()
		s.plans["anomaly/degraded"] = s.plans[straggles]
		s.mu.Unlock()
		s.says(s.lags(0))
		s.closes(3*time.Minute, NotTheCause)
		if s.count("hold train") != 0 {
			t.Fatalf("after one move: %q", s.did)
		}
		e := s.lags(0)
		e.Data.Cause = event.Cause{Kind: "anomaly", Name: "degraded"}
		s.says(e)
		time.Sleep(3 * time.Minute)
		held := false
		for _, x := range s.incidents.values {
			held = held || x.v.Outcome == NotTheCause && strings.Contains(x.v.Reason, "2 moves in a row did not help, so the job is on hold")
		}
		if !held || s.count("hold train") != 1 {
			t.Errorf("did %q", s.did)
		}
	})
}

func TestACrashWhileAMoveProvesVainIsResumedAndActsOnce(t *testing.T) {
	for _, at := range []State{Approved, Restarted, Resumed, Closed} {
		t.Run(string(at), func(t *testing.T) {
			on(t, func(s *stage) {
				f := slow(s, policy.Enforce)
				s.stop()
				dead, died := make(chan struct{}), false
				s.startAs(func(e *Engine) {
					e.Judge = f
					e.AfterStep = func(st State) {
						if st == at && !died {
							died = true
							close(dead)
							runtime.Goexit()
						}
					}
				})
				s.says(s.lags(0))
				<-dead
				s.stop()
				s.startAs(func(e *Engine) { e.Judge = f })
				i := s.closes(3*time.Minute, NotTheCause)
				if s.count("uncordon n1") != 1 || s.count("cordon n1") != 1 || i.Restarts != 1 {
					t.Errorf("did %q", s.did)
				}
			})
		})
	}
}

// The source of a finding fell silent while the cordoned node waited for another one. Nobody vouches for the finding by then, so the job is not
// restarted for it.
func TestACordonedJobIsNotRestartedForAFindingOfWhichNobodySpeaksAnyMore(t *testing.T) {
	on(t, func(s *stage) {
		slow(s, policy.Enforce)
		s.moved()
		nodes := []string{"n3", "n4", "n5", "n6"}
		for _, n := range nodes {
			s.sick(n, remap)
		}
		s.says(s.lags(0))
		s.until(time.Minute, "waits for a node", func(i Incident) bool { return i.acted() && i.Wait != nil })
		s.stand(straggles, "n1", Silent)
		time.Sleep(time.Minute)
		for _, n := range nodes {
			s.sick(n, "")
		}
		time.Sleep(10 * time.Minute)
		if i := s.only(); s.count("evict train-0-1") != 0 || !i.Open() || i.Wait == nil || i.Wait.Reason != guardReason(guard.Fresh) {
			t.Fatalf("did %q\n%s", s.did, i.story())
		}
		s.stand(straggles, "n1", Holds) // another gateway found it as well
		s.closes(2*time.Minute, Recovered)
	})
}

// The leader crashed after the ledger had remembered that the move did not help, and then the job became faster by itself.
func TestAMoveOfWhichTheLedgerSaysThatItDidNotHelpIsNotToldAsARecovery(t *testing.T) {
	on(t, func(s *stage) {
		f := slow(s, policy.Enforce)
		s.says(s.lags(0))
		i := s.reaches(time.Minute, Resumed)
		if err := s.e.Ledger.Vain(context.Background(), i.ID); err != nil {
			t.Fatal(err)
		}
		s.stop()
		s.moved()
		s.startAs(func(e *Engine) { e.Judge = f })
		s.closes(3*time.Minute, NotTheCause)
	})
}

func TestAMoveWhosePaceCouldNotBeMeasuredIsKnownNeitherToHaveHelpedNorNot(t *testing.T) {
	for name, moved := range map[string]bool{"measured": true, "not measured": false} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				slow(s, policy.Enforce)
				e := s.lags(0)
				if s.moved(); !moved {
					e.Data.Evidence.LostGPUSeconds = 0 // a share of nothing leaves nothing to expect
				}
				s.says(e)
				i := s.closes(2*time.Minute, Recovered)
				book := s.e.Ledger.Book()
				if g := book.Grant(i.ID); g == nil || g.Helped != moved || g.Vain {
					t.Errorf("grant %+v, pace %+v", g, i.Pace)
				}
			})
		})
	}
}

// Nobody led for a while after the restart. The first steps that the new leader sees are slow by chance; one window of its own does not decide.
func TestANewLeaderMeasuresForAsLongAsOneThatStayed(t *testing.T) {
	for name, c := range map[string]struct {
		away, slow time.Duration
		want       Outcome
		helped     bool
	}{
		"away for less than verify.within, then slow by chance": {25 * time.Second, 6 * time.Second, Recovered, true},
		"away for longer, then slow by chance":                  {5 * time.Minute, 6 * time.Second, Recovered, true},
		"away for longer, and never as fast again":              {5 * time.Minute, time.Hour, NotTheCause, false},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				f := slow(s, policy.Enforce)
				s.says(s.lags(0))
				s.until(time.Minute, "stepping", func(i Incident) bool { return i.FirstStep != nil })
				s.stop()
				time.Sleep(c.away)
				s.startAs(func(e *Engine) { e.Judge = f })
				if c.slow < time.Hour {
					time.Sleep(c.slow)
					s.moved()
				}
				i := s.until(3*time.Minute, "closed", func(i Incident) bool { return i.State == Closed })
				book := s.e.Ledger.Book()
				if g := book.Grant(i.ID); i.Outcome != c.want || g.Helped != c.helped {
					t.Errorf("%s (%s), helped %v", i.Outcome, i.Reason, g.Helped)
				}
			})
		})
	}
}

// Two gateways split, and each finds the onset at another step: two events of one finding.
func TestTwoGatewaysThatSplitMakeOneIncidentAndOneMove(t *testing.T) {
	for name, later := range map[string]time.Duration{"at once": 0, "while it waits": 8 * time.Second, "after the move": 20 * time.Second} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				slow(s, policy.Enforce)
				s.moved()
				one, other := s.lags(0), s.lags(0)
				other.ID, other.Source = "of-another-gateway", event.GatewaySource("c", "gw-1", "detector")
				s.says(one)
				time.Sleep(later)
				s.says(other)
				i := s.closes(2*time.Minute, Recovered)
				s.says(other)
				time.Sleep(time.Minute)
				if i = s.only(); i.Restarts != 1 || s.count("cordon n1") != 1 || s.count("cordon n3") != 0 {
					t.Errorf("did %q\n%s", s.did, i.story())
				}
			})
		})
	}
}

func TestACertainFaultDoesNotWaitForTheGuardsOfAFindingAndTakesNoOtherNodeAlong(t *testing.T) {
	on(t, func(s *stage) {
		f := slow(s, policy.Enforce)
		f.set(func(f *finds) { f.finding.Confirms = nil })
		s.says(s.lags(0)) // on n1, and nothing confirms it
		time.Sleep(5 * time.Second)
		s.says(at("gpu/row-remap", "n2"))
		i := s.until(time.Minute, "closed", func(i Incident) bool { return !i.Open() })
		if i.Outcome != Recovered || s.count("cordon n2") != 1 || s.count("cordon n1") != 0 {
			t.Errorf("did %q\n%s", s.did, i.story())
		}
	})
}

func TestAFindingThatJoinsAnIncidentUnderWayMovesNothing(t *testing.T) {
	on(t, func(s *stage) {
		slow(s, policy.Enforce)
		s.says(at("gpu/row-remap", "n2"))
		s.reaches(time.Minute, Restarted)
		e := s.lags(0)
		s.says(e)
		i := s.closes(time.Minute, Recovered)
		if s.count("cordon n1") != 0 || !slices.Contains(i.Joined, e.ID) {
			t.Errorf("did %q, joined %v", s.did, i.Joined)
		}
	})
}

func TestAFindingAboutARankThatDoesNotRunIsNotConfirmed(t *testing.T) {
	on(t, func(s *stage) {
		slow(s, policy.Enforce)
		e := s.lags(0)
		s.mu.Lock()
		s.gangs["job-train"].dead[0] = true
		s.mu.Unlock()
		s.says(e)
		i := s.closes(time.Minute, NotConfirmed)
		if !strings.Contains(i.Reason, "does not run") {
			t.Error(i.Reason)
		}
		s.wantDid()
	})
}
