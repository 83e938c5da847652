package incident

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// turns is a stage on which one incident acts at a time.
func turns(t *testing.T, f func(*stage)) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{world: newWorld(t)}
		s.startsIn = 20 * time.Second // the recovery of the job takes that long
		g := policy.DefaultGuards()
		g.MaxConcurrentIncidents, g.MaxNodesQuarantined = 1, policy.Share{Count: 6}
		real := &realGuards{world: s.world, policy: policy.Policy{Metadata: policy.Metadata{Name: "gpu"}, Spec: policy.Spec{Mode: policy.Enforce, Guards: g}}}
		s.lead(1, func(e *Engine) { e.Judge = real })
		defer func() { s.stop() }()
		f(s)
	})
}

func TestACriticalLateComerIsLetInBeforeAnEarlierWarning(t *testing.T) {
	for late := range 8 { // whoever polls is served at some moments by chance
		t.Run(fmt.Sprint("later by ", late), func(t *testing.T) {
			turns(t, func(s *stage) {
				s.says(at("xid/79", "n1")) // of the job, which takes the only place
				time.Sleep(2 * time.Second)
				s.says(at("xid/79", "n4", func(e *event.Event) { e.Data.Severity = event.Warning }))
				time.Sleep(time.Second + time.Duration(late)*250*time.Millisecond)
				s.says(at("xid/79", "n5"))
				time.Sleep(time.Second)
				if got := len(s.e.Ledger.Waiting()); got != 2 {
					t.Fatalf("%d wait in the ledger's queue, want 2", got)
				}
				time.Sleep(2 * time.Minute)
				s.mu.Lock()
				defer s.mu.Unlock()
				warning, critical := slices.Index(s.did, "cordon n4"), slices.Index(s.did, "cordon n5")
				if warning < 0 || critical < 0 || critical > warning {
					t.Errorf("did %q", s.did)
				}
			})
		})
	}
}

// What waits for its turn is planned, and the policy may have changed when its turn comes.
func TestWhatWaitedForItsTurnIsJudgedAgainByThePolicyOfThen(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*stage)
		want   Outcome
	}{
		"no rule acts any more": {func(s *stage) { delete(s.plans, "xid/79") }, Refused},
		"it only observes": {func(s *stage) {
			p := s.plans["xid/79"]
			p.Mode = policy.Observe
			s.plans["xid/79"] = p
		}, Refused},
		"the same": {func(*stage) {}, Quarantined},
	} {
		t.Run(name, func(t *testing.T) {
			turns(t, func(s *stage) {
				s.says(s.rankDies("train", 1))
				time.Sleep(2 * time.Second)
				s.says(at("xid/79", "n4"))
				time.Sleep(2 * time.Second)
				s.mu.Lock()
				c.change(s)
				s.mu.Unlock()
				time.Sleep(2 * time.Minute)
				if c.want != Quarantined && s.count("cordon n4") != 0 {
					t.Error("cordoned")
				}
				for _, i := range s.all() {
					if i.Faults[0].Node == "n4" && i.Outcome != c.want {
						t.Errorf("%s %s (%s), want %s", i.State, i.Outcome, i.Reason, c.want)
					}
				}
			})
		})
	}
}
