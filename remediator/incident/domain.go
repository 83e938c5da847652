package incident

import (
	"slices"
	"strings"

	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/placement"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// ofSwitch are the kinds of faults that a switch has: every node behind it may have the fault as well.
var ofSwitch = []string{"sxid", "nvswitch"}

// failedDomain is how far the incident's faults reach, as placement.Request.Failed: the node, or the label of the rack of a node whose switch
// has a fault. A node without a rack label has its switches inside.
func (v *view) failedDomain(nodes []*fleet.Node) string {
	for _, f := range v.Faults {
		kind, _, _ := strings.Cut(f.Signal, "/")
		if !slices.Contains(ofSwitch, kind) {
			continue
		}
		at := slices.IndexFunc(nodes, func(n *fleet.Node) bool { return n.Name == f.Node })
		if at < 0 {
			continue
		}
		for _, label := range policy.RackLabels() {
			if nodes[at].Labels[label] != "" {
				return label
			}
		}
	}
	return placement.NodeScope
}
