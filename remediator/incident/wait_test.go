package incident

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/cluster"
)

func TestAJobWhosePodsNeverEndIsReportedAndGivenUpAndNotLeftSuspended(t *testing.T) {
	on(t, func(s *stage) {
		g := s.gangs["job-train"]
		g.Launcher = false
		s.resumeErr = func() error { return &cluster.StuckError{Pods: g.Members[:1], Within: time.Minute} }
		s.says(at("gpu/row-remap", "n1"))
		i := s.until(2*time.Minute, "reported", func(i Incident) bool { return i.NeedsPerson() })
		if i.Wait == nil || i.Wait.Reason != ReasonStuck || !i.Suspended || !g.Suspended {
			t.Errorf("waits for %q, suspended %v", i.Waiting, i.Suspended)
		}
		i = s.closes(time.Hour, GaveUp)
		if i.Suspended || g.Suspended || s.count("suspend") != 1 {
			t.Errorf("suspended %v, did %q", g.Suspended, s.did)
		}
	})
}

// The pause between two tries is at most a sixtieth of the wait so far, so a wait that ends costs no more than that.
func TestWhatIsWaitedForIsFoundWithinASixtiethOfTheWait(t *testing.T) {
	for _, after := range []time.Duration{20 * time.Second, 5 * time.Minute, 10 * time.Hour} {
		on(t, func(s *stage) {
			allowed := time.Now().Add(after)
			s.budget = func() error {
				if time.Now().Before(allowed) {
					return errBudget
				}
				return nil
			}
			s.says(at("gpu/row-remap", "n1"))
			s.until(after+askEvery+min(after/backOff, maxRest)+time.Second, "restarting", func(i Incident) bool { return i.reached(Checkpointed) })
			s.closes(time.Minute, Recovered)
		})
	}
}

func TestAStepThatKeepsFailingIsTriedLessAndLess(t *testing.T) {
	on(t, func(s *stage) {
		tries := 0
		s.budget = func() error { tries++; return errors.New("the API server is overloaded") }
		s.says(at("gpu/row-remap", "n1"))
		i := s.closes(2*time.Hour, GaveUp)
		if tries > 1200 || !strings.Contains(i.Reason, "overloaded") { // each quarter of a second they would be 14,400
			t.Errorf("%d tries: %s", tries, i.Reason)
		}
	})
}

func TestAnIncidentWhoseFirstWriteOnlySeemedToFailIsDriven(t *testing.T) {
	on(t, func(s *stage) {
		lost := true
		s.incidents.after = func(string, Incident) error {
			if lost {
				lost = false
				return errors.New("nats: timeout")
			}
			return nil
		}
		s.says(at("gpu/row-remap", "n1"))
		s.closes(time.Minute, Recovered)
		s.wantOnce()
	})
}
