package incident

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

func TestAFaultIsHealedStepByStep(t *testing.T) {
	on(t, func(s *stage) {
		s.says(at("gpu/row-remap", "n1"))
		i := s.closes(time.Minute, Recovered)
		s.wantDid("cordon n1", "save "+i.ID+"-1", "reserve n3", "evict train-0-1", "release")
		if i.Restarts != 1 || i.Attempt != 1 || *i.ResumedStep != 700 || *i.LostSteps != 0 || i.WorldSize != 4 || i.NProc != nproc {
			t.Errorf("restarts %d attempt %d resumed %d lost %d world %d nproc %d", i.Restarts, i.Attempt, *i.ResumedStep, *i.LostSteps, i.WorldSize, i.NProc)
		}
		if m := s.gangs["job-train"].Member(0); m.Node != "n3" || s.gangs["job-train"].Member(1).PodUID != "train-1-2" {
			t.Errorf("members %+v", s.gangs["job-train"].Members)
		}
	})
}

func TestADeadRankIsStartedAgainOnItsNodeWithoutARound(t *testing.T) {
	on(t, func(s *stage) {
		s.says(s.rankDies("train", 1))
		i := s.closes(time.Minute, Recovered)
		s.wantDid()
		if i.Attempt != 1 || i.Checkpoint.Taken || len(i.Moves) != 0 {
			t.Errorf("attempt %d, checkpoint %+v, moves %+v", i.Attempt, i.Checkpoint, i.Moves)
		}
	})
}

func TestWithoutALauncherEveryPodIsReplacedOnce(t *testing.T) {
	on(t, func(s *stage) {
		s.gangs["job-train"].Launcher = false
		s.says(at("gpu/row-remap", "n1"))
		i := s.closes(time.Minute, Recovered)
		s.wantDid("cordon n1", "save "+i.ID+"-1", "reserve n3", "suspend", "recreate train-0-1", "recreate train-1-2", "resume", "release")
		if len(s.attempts.values) != 0 {
			t.Errorf("attempts %+v", s.attempts.values)
		}
	})
}

func TestAJobOfOnePodIsMoved(t *testing.T) {
	on(t, func(s *stage) {
		delete(s.gangs, "job-train")
		s.gang("train", "n2")
		s.says(at("gpu/row-remap", "n2"))
		if i := s.closes(time.Minute, Recovered); i.WorldSize != nproc {
			t.Errorf("world %d", i.WorldSize)
		}
	})
}

func TestTwoFaultyNodesAtOnceAreLeftTogether(t *testing.T) {
	on(t, func(s *stage) {
		s.says(at("gpu/row-remap", "n1"))
		s.says(at("gpu/row-remap", "n2"))
		i := s.closes(time.Minute, Recovered)
		for _, m := range s.gangs["job-train"].Members {
			if m.Node == "n1" || m.Node == "n2" {
				t.Errorf("pod %d is still on %s", m.Index, m.Node)
			}
		}
		if s.gangs["job-train"].Members[0].Node == s.gangs["job-train"].Members[1].Node || len(i.Cordons) != 2 {
			t.Errorf("members %+v, cordons %v", s.gangs["job-train"].Members, i.Cordons)
		}
	})
}

func TestEachGangOnAFaultyNodeHasItsOwnIncident(t *testing.T) {
	on(t, func(s *stage) {
		s.gang("other", "n1", "n4")
		s.says(at("gpu/row-remap", "n1"))
		time.Sleep(time.Minute)
		s.mu.Lock()
		if len(s.incidents.values) != 2 {
			t.Fatalf("%d incidents", len(s.incidents.values))
		}
		for _, i := range s.incidents.values {
			if i.v.Outcome != Recovered {
				t.Errorf("%s: %s %s %s", i.v.Job.Name, i.v.State, i.v.Outcome, i.v.Reason)
			}
		}
		s.mu.Unlock()
		if s.count("cordon n1") != 1 {
			t.Errorf("did %q", s.did)
		}
	})
}

func TestANodeWithoutAJobIsOnlyQuarantined(t *testing.T) {
	on(t, func(s *stage) {
		s.says(at("xid/79", "n6"))
		s.closes(time.Minute, Quarantined)
		s.wantDid("cordon n6")
	})
}

func TestAJobThatHasLeftTheNodeIsNotDisturbed(t *testing.T) {
	on(t, func(s *stage) {
		s.gangs["job-train"].Leaving = append(s.gangs["job-train"].Leaving, s.gangs["job-train"].Members[0])
		ev := at("xid/79", "n1")
		ev.Data.Target.Job = &s.gangs["job-train"].Job
		s.gangs["job-train"].Members[0].Node = "n5"
		s.incidents.put = func(_ string, i Incident) error { // the old pod has gone by the time of the plan
			if i.State == Correlated {
				s.gangs["job-train"].Leaving = nil
			}
			return nil
		}
		s.says(ev)
		s.closes(time.Minute, Quarantined)
		s.wantDid("cordon n1")
	})
}

func TestAGangThatCannotBeRecreatedTrainsOn(t *testing.T) {
	on(t, func(s *stage) {
		s.gangs["job-train"].Launcher = false
		s.recreateErr = cluster.ErrUnsupported
		s.says(at("gpu/row-remap", "n1"))
		s.closes(time.Minute, Failed)
		if s.count("let go") != 1 {
			t.Errorf("did %q", s.did)
		}
	})
}

func TestARoundThatFailsDoesNotKeepTheJobFromBeingMoved(t *testing.T) {
	on(t, func(s *stage) {
		s.saveErr = errors.Join(checkpoint.ErrImpossible, errors.New("rank 3 cannot save"))
		s.says(at("gpu/row-remap", "n1"))
		if i := s.closes(time.Minute, Recovered); i.Checkpoint.Taken || i.Checkpoint.Why == "" {
			t.Errorf("checkpoint %+v", i.Checkpoint)
		}
	})
}

func TestWithoutSteeringTheSchedulerChoosesAndNobodyIsDeletedForIt(t *testing.T) {
	on(t, func(s *stage) {
		s.steered = false
		s.says(at("gpu/row-remap", "n1"))
		i := s.closes(time.Minute, Recovered)
		s.wantDid("cordon n1", "save "+i.ID+"-1", "reserve n3", "release", "evict train-0-1")
	})
}

func TestARestartWithoutTheHookIsTriedOnceAndSaidToBeUnknown(t *testing.T) {
	on(t, func(s *stage) {
		s.mute = true
		s.saveErr = checkpoint.ErrImpossible
		s.says(at("xid/79", "n1"))
		s.closes(5*time.Minute, Failed)
		s.wantOnce()
		if s.count("recreate train-1-2") != 1 {
			t.Errorf("did %q", s.did)
		}
	})
}

func TestAWorkerThatEndsAsItComesBackIsStartedAgainAtOnceAndThenWithPatience(t *testing.T) {
	for name, c := range map[string]struct {
		falls     []int
		outcome   Outcome
		restarts  int
		no, least time.Duration // longer, shorter than this
	}{
		"before":       {[]int{0}, Recovered, 1, 5 * time.Second, 0},
		"once":         {[]int{1}, Recovered, 2, 10 * time.Second, time.Second},
		"twice":        {[]int{1, 2}, Recovered, 3, 30 * time.Second, 20 * time.Second},
		"at each time": {[]int{1, 2, 3}, Failed, 3, time.Minute, 40 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				ev := s.rankDies("train", 1)
				s.mu.Lock()
				s.falls, s.startsIn = map[int]bool{}, 2*time.Second
				for _, a := range c.falls {
					s.falls[a] = true
				}
				s.mu.Unlock()
				begun := time.Now()
				s.says(ev)
				i := s.closes(10*time.Minute, c.outcome)
				if took := time.Since(begun); i.Restarts != c.restarts || took > c.no || took < c.least {
					t.Errorf("%d restarts in %v\n%s", i.Restarts, took, i.story())
				}
			})
		})
	}
}

func TestARecoveryIsDatedFromTheLastSignOfLifeOfARankThatHangs(t *testing.T) {
	on(t, func(s *stage) {
		ev := s.rankDies("train", 1)
		ev.Data.Onset = ev.Time.Add(-1600 * time.Millisecond)
		s.says(ev)
		i := s.closes(time.Minute, Recovered)
		if took := i.FirstStep.Sub(ev.Data.Onset).Seconds(); !strings.HasSuffix(i.Reason, fmt.Sprintf("%.1f s after it began", took)) || took < 1.6 {
			t.Errorf("%.1f s: %s", took, i.Reason)
		}
	})
}

func TestTheTriesAreUsedUpAndAPersonIsAsked(t *testing.T) {
	on(t, func(s *stage) {
		s.says(s.rankDies("train", 1))
		stop := make(chan struct{})
		go func() { // it dies again and again, without a word
			for {
				select {
				case <-stop:
					return
				case <-time.After(30 * time.Millisecond):
					s.mu.Lock()
					s.gangs["job-train"].dead[0] = true
					s.mu.Unlock()
				}
			}
		}()
		i := s.closes(10*time.Minute, Failed)
		close(stop)
		if i.Restarts != 3 || i.Attempt != 3 {
			t.Errorf("restarts %d, attempt %d", i.Restarts, i.Attempt)
		}
	})
}
