package placement

import "github.com/pitcrew/pitcrew/remediator/fleet"

// apart counts the members of a gang by the values of topology labels that no two of them may share.
type apart struct {
	labels  []string
	members []map[string]int     // by label: members by value
	nodes   []map[string][]int32 // by label: nodes by value
}

func newApart(labels []string, nodes []*fleet.Node) *apart {
	a := &apart{labels: labels}
	for _, l := range labels {
		at := map[string][]int32{}
		for i, n := range nodes {
			if v := n.Labels[l]; v != "" {
				at[v] = append(at[v], int32(i))
			}
		}
		a.members, a.nodes = append(a.members, map[string]int{}), append(a.nodes, at)
	}
	return a
}

// join counts a member on a node in, or out.
func (a *apart) join(n *fleet.Node, by int) {
	if a == nil {
		return
	}
	for k, l := range a.labels {
		if v := n.Labels[l]; v != "" {
			a.members[k][v] += by
		}
	}
}

// near lists the nodes that share a value with a node.
func (a *apart) near(n *fleet.Node) (out []int32) {
	if a == nil {
		return nil
	}
	for k, l := range a.labels {
		out = append(out, a.nodes[k][n.Labels[l]]...)
	}
	return out
}

// near is why required anti-affinity keeps the pod off a node.
func (c *Chooser) near(n *fleet.Node) (why string, near bool) {
	if c.Mode == SameNode { // it was there before
		return "", false
	}
	if c.apart != nil {
		for k, l := range c.apart.labels {
			if v := n.Labels[l]; v != "" && c.apart.members[k][v] > 0 {
				return "another member of the gang is in " + l + "=" + v, true
			}
		}
	}
	for _, l := range c.barredKeys {
		if pod, taken := c.Barred[l][n.Labels[l]]; taken && n.Labels[l] != "" {
			return "pod " + pod + " is in " + l + "=" + n.Labels[l], true
		}
	}
	return "", false
}
