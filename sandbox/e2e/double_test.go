package e2e

import (
	"slices"
	"testing"

	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/demo"
)

// The node to which a rank was just moved fails as well, or the node of the rank that survived the first fault.
func TestASecondFaultDuringARecoveryEndsOnAThirdNode(t *testing.T) {
	for _, c := range []struct {
		name     string
		when     incident.State
		survivor bool
	}{
		{"replacement's node, chosen", incident.Placed, false},
		{"replacement's node, restarted", incident.Restarted, false},
		{"replacement's node, resumed", incident.Resumed, false},
		{"survivor's node, chosen", incident.Placed, true},
		{"survivor's node, restarted", incident.Restarted, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			j := r.training(sandbox.LauncherPitcrew)
			b := r.before(j)
			then := r.whenReached(j, b.at, did(c.when))
			first := r.fault(sandbox.XID79, 1)
			second := then().Moves[0].To
			if c.survivor {
				for _, p := range b.pods {
					if p.Spec.NodeName != first.Node {
						second = p.Spec.NodeName
					}
				}
			}
			_, err := r.Box().Fault(r.ctx, sandbox.Fault{Kind: sandbox.XID79, Node: second})
			r.must(err)
			i := r.follow(j, first)
			if i.Outcome != incident.Recovered {
				// It ended between the two; then the second fault is an incident of its own.
				t.Fatalf("incident %s ended as %s: %s", i.ID, i.Outcome, i.Reason)
			}
			if !slices.Contains(i.FaultyNodes(), second) {
				t.Log("the first recovery was over before the second fault was known")
				i = r.follow(j, sandbox.Injected{Kind: sandbox.XID79, Node: second, At: i.ClosedAt.Add(-1)})
			}
			r.must(r.Reached(r.ctx, j, *i.ResumedStep+10, healsWithin))
			log, err := demo.ReadAudit(r.Box().AuditLog(), b.at, j.Name)
			r.must(err)
			for uid, n := range log.Removed {
				if n > 1 {
					t.Errorf("pod %s was evicted or deleted %d times", uid, n)
				}
			}
			if len(log.Strangers) > 0 {
				t.Errorf("somebody else's pods were touched: %v", log.Strangers)
			}
			if len(log.Removed) > 3 {
				t.Errorf("%d pods were removed for two faults: %v", len(log.Removed), log.Removed)
			}
			r.resumedFromCheckpoint(j, i)
			r.nothingReserved()
			for _, p := range r.pods(j) {
				if n := p.Spec.NodeName; n == first.Node || n == second || n == far {
					t.Errorf("pod %s stands on %s", p.Name, n)
				}
			}
			for rank := range demo.WorldSize {
				if err := sameLosses(j.Dir, rank); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
