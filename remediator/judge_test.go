package remediator

import (
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

func TestACordonForOneGangIsNotHeldAgainstTheNextGangOnTheNode(t *testing.T) {
	other := &incident.Incident{ID: "a", Faults: []incident.Fault{{EventID: "e1", Node: "n1", Moves: true}, {EventID: "e2", Node: "n2", Moves: true}}}
	mine := &incident.Incident{ID: "b", Faults: []incident.Fault{{EventID: "e1", Node: "n1", Moves: true}}}
	later := &incident.Incident{ID: "c", Faults: []incident.Fault{{EventID: "e9", Node: "n1", Moves: true}}}
	if !sameCause(other, mine) || sameCause(other, later) {
		t.Error("the cause of an incident is its events")
	}
	s := state{guard.State{Nodes: []guard.Node{{Node: policy.Node{Name: "n1"}}, {Node: policy.Node{Name: "n2"}}}}}
	at := time.Unix(1_800_000_000, 0)
	if !s.taken(guard.Done{Verb: policy.Cordon, Node: "n1", At: at}, "n1") || !s.Nodes[0].Quarantined {
		t.Error("the cordon shows on the node instead")
	}
	for _, d := range []guard.Done{{Verb: policy.Cordon, Node: "n2", At: at}, {Verb: policy.RestartJob, Node: "n1", At: at}} {
		if s.taken(d, "n1") || s.Nodes[1].Quarantined {
			t.Errorf("%+v is another thing", d)
		}
	}
}
