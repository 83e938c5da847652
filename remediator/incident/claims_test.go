package incident

import (
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/claims"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// loses takes the node of rank 0 away while the other ranks are in an evaluation and read the heartbeat.
func (s *stage) loses(beat func(attempt int, since time.Duration) bus.ClaimReading) {
	s.e.Claims = &claims.Watch{Now: time.Now}
	s.mu.Lock()
	node, began := s.gangs["job-train"].Member(0).Node, time.Now()
	s.kubelets[node] = cluster.ErrSilent
	s.beat = func(attempt int) *bus.ClaimReading {
		if attempt > 0 {
			return nil // the successor has a claim of its own
		}
		c := beat(attempt, time.Since(began))
		return &c
	}
	s.mu.Unlock()
	s.says(at("node/lost", node, func(e *event.Event) { e.Data.Severity = event.Fatal }))
}

func TestAHeartbeatThatStandsStillIsProofThatALostNodesRanksAreGone(t *testing.T) {
	on(t, func(s *stage) {
		began := time.Now()
		s.loses(func(attempt int, _ time.Duration) bus.ClaimReading {
			return bus.ClaimReading{Epoch: 1, Attempt: attempt, Step: 40, Count: 9, AgeS: 1}
		})
		s.until(time.Minute, "proof", func(i Incident) bool { return len(i.LossProof) > 0 })
		if took := time.Since(began); took < claims.Watched || took > time.Minute {
			t.Errorf("proved after %s", took)
		}
		s.mu.Lock()
		s.beat = nil
		s.mu.Unlock()
		i := s.closes(2*time.Minute, Recovered)
		for _, proof := range i.LossProof {
			if !strings.Contains(proof, "without a change (claim 1, step 40)") {
				t.Errorf("proof %q", proof)
			}
		}
		if i.Approval != "" {
			t.Errorf("a person was asked: %s", i.Approval)
		}
	})
}

func TestAHeartbeatProvesNoLossUnlessItWasReadTwiceAndStoodStill(t *testing.T) {
	for name, c := range map[string]struct {
		beat func(attempt int, since time.Duration) bus.ClaimReading
		why  string
	}{
		"it steps": {func(a int, d time.Duration) bus.ClaimReading {
			return bus.ClaimReading{Epoch: 1, Attempt: a, Step: 40 + int64(d/time.Second), Count: int64(d / (5 * time.Second)), AgeS: 1}
		}, "shows new steps (claim 1)"},
		"it goes on at the same step": {func(a int, d time.Duration) bus.ClaimReading {
			return bus.ClaimReading{Epoch: 1, Attempt: a, Step: 40, Count: int64(d / (5 * time.Second)), AgeS: 1}
		}, "continues, at one step (claim 1)"},
		"the reading is stale": {func(a int, d time.Duration) bus.ClaimReading {
			return bus.ClaimReading{Epoch: 1, Attempt: a, Step: 40, Count: 9, AgeS: 1 + d.Seconds()}
		}, "not read twice"},
		"it is of another attempt": {func(a int, _ time.Duration) bus.ClaimReading {
			return bus.ClaimReading{Epoch: 1, Attempt: a + 1, Step: 40, Count: 9, AgeS: 1}
		}, "no rank on another node"},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				s.loses(c.beat)
				s.until(time.Minute, "asking", func(i Incident) bool { return i.Wait != nil && i.Wait.Reason == ReasonEvidence })
				time.Sleep(2 * time.Minute)
				i := s.until(time.Minute, "asking", func(i Incident) bool { return strings.Contains(i.Waiting, c.why) })
				if len(i.Notes) > 8 {
					t.Errorf("%d notes of one wait", len(i.Notes))
				}
				if len(i.LossProof) > 0 || !i.NeedsPerson() || s.gangs["job-train"].attempt > 0 || s.count("force") > 0 {
					t.Errorf("waits for %q, proof %v, did %q", i.Waiting, i.LossProof, s.did)
				}
			})
		})
	}
}
