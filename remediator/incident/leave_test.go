package incident

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/cluster"
)

var errBudget = fmt.Errorf("%w: namespace ml: The disruption budget train needs 2 healthy pods and has 2 currently", cluster.ErrBudget)

var errFails = fmt.Errorf("%w: Job ml/train: an eviction counts as a failure; it has 0, 1 would be added, and its backoffLimit is 0", cluster.ErrFails)

// forbid lets nothing be evicted, until it is called with nil.
func (s *stage) forbid(by error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.budget = nil
	if by != nil {
		s.budget = func() error { return by }
	}
}

func TestARefusalByADisruptionBudgetOrTheJobsLimitCostsTheJobNothing(t *testing.T) {
	for name, c := range map[string]struct {
		path     string
		by       error
		is, says string
	}{
		"launcher":           {launcherPath, errBudget, meanings[ReasonBudget].begins, "namespace ml: The disruption budget train needs 2 healthy pods"},
		"recreate":           {recreatePath, errBudget, meanings[ReasonBudget].begins, "namespace ml: The disruption budget train needs 2 healthy pods"},
		"launcher, by limit": {launcherPath, errFails, meanings[ReasonFails].begins, "Job ml/train: an eviction counts as a failure; it has 0"},
	} {
		path := c.path
		for _, from := range []State{Detected, Checkpointed, Placed} { // when it comes to be forbidden
			t.Run(name+"/"+string(from), func(t *testing.T) {
				on(t, func(s *stage) {
					s.gangs["job-train"].Launcher = path == launcherPath
					if from == Detected {
						s.forbid(c.by)
					}
					s.e.Stepped = func(i *Incident) {
						if i.State == from && i.Round == 1 {
							s.forbid(c.by)
						}
					}
					s.says(at("gpu/row-remap", "n1"))
					time.Sleep(10 * time.Minute)
					i := s.only()
					if !i.Open() || !i.NeedsPerson() || !strings.HasPrefix(i.Waiting, c.is) || !strings.Contains(i.Waiting, c.says) {
						t.Fatalf("%s, waiting %q", i.State, i.Waiting)
					}
					s.mu.Lock()
					if len(s.attempts.values) > 0 || len(s.holding) > 0 || s.gangs["job-train"].Member(0).Node != "n1" || s.asked > 200 || len(i.Notes) > 40 {
						t.Errorf("attempts %v, holding %v, members %+v, asked %d times, %d notes", s.attempts.values, s.holding, s.gangs["job-train"].Members, s.asked, len(i.Notes))
					}
					s.mu.Unlock()
					s.forbid(nil)
					i = s.closes(time.Minute, Recovered)
					s.wantOnce()
					if *i.LostSteps != 0 || i.Restarts != 1 {
						t.Errorf("%d steps lost, %d restarts", *i.LostSteps, i.Restarts)
					}
				})
			})
		}
	}
}

// Between the question and the eviction a budget can still change its mind, and a Job can lose other pods. The attempt is begun then, and is finished when it may be.
func TestWhatForbidsItAfterAllIsWaitedForAndAskedNoMore(t *testing.T) {
	for begins, by := range map[string]error{meanings[ReasonRest].begins: errBudget, meanings[ReasonFailsRest].begins: errFails} {
		on(t, func(s *stage) {
			s.attempts.stored = func(job string) {
				delete(s.holding, job)
				s.budget = func() error { return by }
				s.attempts.stored = nil
			}
			s.says(at("gpu/row-remap", "n1"))
			time.Sleep(time.Minute)
			if i := s.only(); i.State != Placed || i.Round != 1 || !i.NeedsPerson() || !strings.HasPrefix(i.Waiting, begins) || i.remedy() == "" {
				t.Fatalf("%s, round %d, waiting %q", i.State, i.Round, i.Waiting)
			}
			s.forbid(nil)
			if i := s.closes(time.Minute, Recovered); i.Restarts != 1 || i.Attempt != 1 {
				t.Errorf("%d restarts, attempt %d", i.Restarts, i.Attempt)
			}
		})
	}
}

// The budget took two pods for one when it was asked. Each goes once, when it may, and a person is told meanwhile.
func TestAGangThatABudgetLetsGoOneByOneIsRecreatedToItsEnd(t *testing.T) {
	on(t, func(s *stage) {
		s.gangs["job-train"].Launcher = false
		s.lets = 1
		p := s.plans["gpu/row-remap"]
		p.fast(true)
		s.plans["gpu/row-remap"] = p
		told := false
		s.e.Stepped = func(i *Incident) {
			told = told || i.NeedsPerson() && strings.HasPrefix(i.Waiting, meanings[ReasonRest].begins)
		}
		s.says(at("gpu/row-remap", "n1"))
		i := s.closes(2*time.Minute, Recovered)
		s.wantDid("cordon n1", "save "+i.ID+"-1", "reserve n3", "recreate train-0-1", "recreate train-1-2", "release")
		if i.Restarts != 1 || !told {
			t.Errorf("%d restarts, a person was told: %v", i.Restarts, told)
		}
	})
}

func TestAPodOnALostNodeNeedsNobodysLeave(t *testing.T) {
	on(t, func(s *stage) {
		s.forbid(errBudget)
		s.mu.Lock()
		s.kubelets["n1"] = cluster.ErrSilent
		s.mu.Unlock()
		s.says(at("node/lost", "n1"))
		s.closes(2*time.Minute, Recovered)
		if s.count("force train-0-1") != 1 {
			t.Errorf("did %q", s.did)
		}
	})
}
