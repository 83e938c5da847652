package guard_test

import (
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

func breakerOf(t *testing.T, s guard.State, a guard.Action) guard.Verdict {
	t.Helper()
	for _, v := range guard.Check(s, a, now) {
		if v.Guard == guard.Breaker {
			return v
		}
	}
	t.Fatal("no breaker")
	return guard.Verdict{}
}

func TestOneRackAtItsLimitKeepsNoOtherRackWaiting(t *testing.T) {
	a := action(policy.Cordon)
	a.Policy.Spec.Guards.MaxNodesQuarantined = policy.Share{Count: 10, PerRack: 1}
	a.Wants = []guard.Place{{Node: "n39", Rack: "r1"}}
	s := guard.State{Total: 40, Quarantined: []guard.Place{{Node: "n00", Rack: "r1"}}}
	if v := breakerOf(t, s, a); v.Allowed || v.Tripped {
		t.Errorf("a rack at its limit: %+v; it must refuse, and must not open the breaker of the whole policy", v)
	}
}

func TestANodeThatTheIncidentWasGrantedIsNotRefusedBeforeItIsCordoned(t *testing.T) {
	a := action(policy.Cordon)
	a.Wants = []guard.Place{{Node: "n39"}}
	own := guard.Grant{Incident: "me", At: ago(time.Minute), Active: true, Charged: 2, Nodes: a.Wants}
	if v := breakerOf(t, guard.State{Total: 40, Tripped: ago(time.Minute), Grants: []guard.Grant{own}}, a); !v.Allowed {
		t.Errorf("granted before the breaker tripped: %+v; its grant counts against the others until it acts", v)
	}
	own.Incident = "other"
	if v := breakerOf(t, guard.State{Total: 40, Tripped: ago(time.Minute), Grants: []guard.Grant{own}}, a); !v.Allowed {
		t.Errorf("another incident was granted the same node: %+v", v)
	}
	if v := breakerOf(t, guard.State{Total: 40, Tripped: ago(time.Minute)}, a); v.Allowed {
		t.Errorf("granted nothing: %+v", v)
	}
}
