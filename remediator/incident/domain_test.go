package incident

import (
	"testing"

	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/placement"
)

func TestOnlyAFaultOfASwitchReachesBeyondItsNode(t *testing.T) {
	nodes := []*fleet.Node{{Name: "n1", Labels: map[string]string{"pitcrew.dev/rack": "r1"}}, {Name: "n2"}}
	for name, c := range map[string]struct{ signal, node, want string }{
		"a GPU":                                {"xid/79", "n1", placement.NodeScope},
		"a switch":                             {"sxid/24001", "n1", "pitcrew.dev/rack"},
		"a switch by DCGM":                     {"nvswitch/lost", "n1", "pitcrew.dev/rack"},
		"a switch of a node without a rack":    {"sxid/24001", "n2", placement.NodeScope},
		"a switch of a node that is not there": {"sxid/24001", "n3", placement.NodeScope},
		"a signal that only begins like one":   {"sxidlike/1", "n1", placement.NodeScope},
	} {
		t.Run(name, func(t *testing.T) {
			v := &view{Incident: Incident{Faults: []Fault{{Signal: c.signal, Node: c.node}}}}
			if got := v.failedDomain(nodes); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// The chooser takes the rack's other nodes out, so the replacement goes behind another switch.
func TestAReplacementLeavesTheRackWhoseSwitchHasAFault(t *testing.T) {
	in := func(rack, name string) *fleet.Node {
		return &fleet.Node{Name: name, Ready: true, Labels: map[string]string{"pitcrew.dev/rack": rack}, Free: map[string]int64{"gpu": 8}}
	}
	nodes := []*fleet.Node{in("r1", "n1"), in("r1", "n2"), in("r2", "n3")}
	for signal, want := range map[string]map[string]bool{"sxid/24001": {"n3": true}, "xid/79": {"n2": true, "n3": true}} {
		v := &view{Incident: Incident{Faults: []Fault{{Signal: signal, Node: "n1"}}}}
		r := placement.Request{Faulty: "n1", Exclude: []string{"n1"}, Requests: map[string]int64{"gpu": 8}, Failed: v.failedDomain(nodes), Mode: placement.Mode("any"), Keep: 8}
		got := placement.NewChooser(r, nodes).Choose(placement.Move{Faulty: "n1"})
		for _, k := range got.Candidates {
			if (k.Reason == placement.FailedDomain) == want[k.Node] && k.Node != "n1" {
				t.Errorf("%s: %s is %q", signal, k.Node, k.Reason)
			}
		}
		if !want[got.Node] {
			t.Errorf("%s: chose %q (%s)", signal, got.Node, got.Reason)
		}
	}
}

func TestPlacementIsToldHowFarTheFaultReaches(t *testing.T) {
	on(t, func(s *stage) {
		g, err := s.Gang(t.Context(), s.gangs["job-train"].Job)
		if err != nil {
			t.Fatal(err)
		}
		v := &view{Incident: Incident{Faults: []Fault{{Signal: "sxid/24001", Node: "n1"}}}, e: s.e, gang: &g}
		c := &choosing{v: v, p: &Plan{}, nodes: []*fleet.Node{{Name: "n1", Labels: map[string]string{"pitcrew.dev/rack": "r1"}}}, by: map[string]*placement.Chooser{}}
		if got := c.of(g.Member(0)).Failed; got != "pitcrew.dev/rack" {
			t.Errorf("%q", got)
		}
	})
}
