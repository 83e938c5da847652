package incident

import (
	"slices"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/guard"
)

// The node is cordoned for the fault that holds, though the one that opened the incident has ended.
func TestAnotherFaultOfTheNodeOutlivesTheOneThatOpenedTheIncident(t *testing.T) {
	on(t, func(s *stage) {
		s.hold(guard.Concurrent, true)
		s.says(at("gpu/row-remap", "n1"))
		time.Sleep(time.Second)
		s.says(at("xid/79", "n1"))
		s.stand("gpu/row-remap", "n1", Ended)
		time.Sleep(10 * time.Second)
		s.hold(guard.Concurrent, false)
		s.closes(time.Minute, Recovered)
		if s.nodes["n1"].quarantined == "" {
			t.Errorf("n1 has a fault and is in service: %q", s.did)
		}
	})
}

func TestAFaultThatJoinsWhileTheNodeIsGivenBackTakesItAgain(t *testing.T) {
	on(t, func(s *stage) {
		s.says(at("gpu/row-remap", "n1"))
		s.passes(Cordoned)
		s.hold(guard.Concurrent, true)
		time.Sleep(3 * time.Second)
		joined := false
		s.mu.Lock()
		s.crash = func(int) {
			if !joined && s.count("uncordon n1") == 1 {
				joined = true
				s.says(at("xid/79", "n1"))
			}
		}
		s.mu.Unlock()
		s.stand("gpu/row-remap", "n1", Ended)
		time.Sleep(5 * time.Second)
		s.hold(guard.Concurrent, false)
		i := s.closes(time.Minute, Recovered)
		if !joined || s.nodes["n1"].quarantined == "" || !slices.Contains(i.Cordons, "n1") {
			t.Errorf("joined %v, quarantined by %q: %q", joined, s.nodes["n1"].quarantined, s.did)
		}
	})
}
