package placement_test

import (
	"testing"

	"github.com/pitcrew/pitcrew/remediator/placement"
)

const rackLabel = "pitcrew.dev/rack"

// racked are nodes of two in each of four racks.
func racked() (out []placement.Node) {
	for _, name := range []string{"a1", "a2", "b1", "b2", "c1", "c2", "d1", "d2"} {
		out = append(out, node(name, rackLabel, name[:1]))
	}
	return out
}

func TestAMemberIsKeptApartFromTheOthersAsItsAntiAffinityDemands(t *testing.T) {
	r := placement.Request{Faulty: "a1", Peers: []string{"b1", "c1"}, Requests: map[string]int64{gpu: 8}, Mode: placement.Any, Now: now, Apart: []string{rackLabel}}
	d := placement.Choose(r, racked())
	for _, k := range d.Candidates {
		want := map[string]placement.Reason{"a1": placement.Faulty, "a2": placement.Chosen, "b1": placement.HoldsPeer, "b2": placement.AntiAffinity, "c1": placement.HoldsPeer,
			"c2": placement.AntiAffinity, "d1": placement.RankedLower, "d2": placement.RankedLower}[k.Node]
		if k.Reason != want {
			t.Errorf("%s: %s (%s), want %s", k.Node, k.Reason, k.Detail, want)
		}
	}
	if r.Apart = nil; placement.Choose(r, racked()).Eligible <= d.Eligible {
		t.Error("without anti-affinity no more nodes are eligible: nothing was tested")
	}
}

func TestTwoMembersThatMoveAtOnceAreKeptApartFromEachOther(t *testing.T) {
	nodes := racked()
	r := placement.Request{Peers: []string{"c1"}, Exclude: []string{"a1", "a2", "b1"}, Requests: map[string]int64{gpu: 8}, Mode: placement.Any, Now: now, Apart: []string{rackLabel}}
	c := placement.NewChooser(r, addresses(nodes))
	first := c.Choose(placement.Move{Faulty: "a1"})
	c.Take(first.Node)
	second := c.Choose(placement.Move{Faulty: "b1"})
	c.Take(second.Node)
	if first.Node == "" || second.Node == "" || first.Node[0] == second.Node[0] || first.Node[0] == 'c' || second.Node[0] == 'c' {
		t.Errorf("%q and %q, which must be in two racks, none of them c", first.Node, second.Node)
	}
	if third := c.Choose(placement.Move{Faulty: "a2"}); third.Node != "" || third.Rejected[placement.AntiAffinity] == 0 {
		t.Errorf("%q, but no rack is left: %s", third.Node, third.Reason)
	}
	// A replacement that came down where it may not stay is no neighbor of itself.
	if k, ok := c.Check(placement.Move{Faulty: "b1", At: second.Node}, second.Node[:1]+"2"); !ok || k.Reason == placement.AntiAffinity {
		t.Errorf("%+v", k)
	}
}

func TestAMemberIsKeptAwayFromOtherPodsThatItsAntiAffinityNames(t *testing.T) {
	r := placement.Request{Faulty: "a1", Requests: map[string]int64{gpu: 8}, Mode: placement.Any, Now: now,
		Barred: map[string]map[string]string{rackLabel: {"a": "ml/other", "b": "ml/other"}}}
	d := placement.Choose(r, racked())
	if d.Node == "" || d.Node[0] == 'a' || d.Node[0] == 'b' || d.Rejected[placement.AntiAffinity] != 3 {
		t.Errorf("%q: %+v", d.Node, d.Rejected)
	}
}

func addresses(nodes []placement.Node) (out []*placement.Node) {
	for i := range nodes {
		out = append(out, &nodes[i])
	}
	return out
}
