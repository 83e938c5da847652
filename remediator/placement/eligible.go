package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pitcrew/pitcrew/remediator/fleet"
)

// order is the order in which reasons are looked for; the first that applies is recorded. A reason's place in it is its rank.
var order = []Reason{NotSameNode, Faulty, FailedDomain, NotReady, Quarantined, Cordoned, Held, OpenCondition, ReservedOther, HoldsPeer, Tainted, Selector,
	AffinityNo, VolumeAway, AntiAffinity, DRAClaim, Class, NoRoom, TooFar}

// Ranks of the reasons that depend on the move, or that a move changes.
var (
	rankNotSame = rank(NotSameNode)
	rankFaulty  = rank(Faulty)
	rankFailed  = rank(FailedDomain)
	rankClass   = rank(Class)
	rankTooFar  = rank(TooFar)
	eligible    = uint8(len(order)) // no reason against it
)

func rank(r Reason) uint8 { return uint8(slices.Index(order, r)) }

// fixed are the tests whose outcome is the same for all members of a gang until one of them takes the node.
var fixed = []struct {
	reason Reason
	hit    func(c *Chooser, at int, n *fleet.Node) (why string, hit bool)
}{
	{NotReady, func(_ *Chooser, _ int, n *fleet.Node) (string, bool) { return "", !n.Ready }},
	{Quarantined, func(_ *Chooser, _ int, n *fleet.Node) (string, bool) {
		// Looked for before cordon and tolerations: a pod that tolerates everything does not tolerate a broken GPU.
		i := slices.IndexFunc(n.Taints, func(t Taint) bool { return t.Key == QuarantineTaint })
		if i < 0 {
			return "", false
		}
		return "by incident " + n.Taints[i].Value, true
	}},
	{Cordoned, func(_ *Chooser, _ int, n *fleet.Node) (string, bool) { return "", n.Unschedulable }},
	{Held, func(_ *Chooser, _ int, n *fleet.Node) (string, bool) { return n.Held, n.Held != "" }},
	{OpenCondition, func(c *Chooser, _ int, n *fleet.Node) (string, bool) {
		if c.Mode == SameNode { // there it is what the job goes back in spite of
			return "", false
		}
		why := n.Condition
		if why == "" && c.Unfit != nil {
			why = c.Unfit(n.Name)
		}
		return why, why != ""
	}},
	{ReservedOther, func(c *Chooser, _ int, n *fleet.Node) (string, bool) {
		if n.Reserved != "" && n.Reserved != c.Incident {
			return "for incident " + n.Reserved, true
		}
		i := slices.IndexFunc(n.Taints, func(t Taint) bool { return t.Key == ReservedTaint && t.Value != c.Incident })
		if i < 0 {
			return "", false
		}
		return "for incident " + n.Taints[i].Value, true
	}},
	{HoldsPeer, func(c *Chooser, at int, _ *fleet.Node) (string, bool) {
		return "it holds another member of the gang", c.holds[at] > 0 && !c.Share
	}},
	{Tainted, func(c *Chooser, _ int, n *fleet.Node) (string, bool) {
		for _, t := range n.Taints {
			if t.Key != ReservedTaint && repels(t) && !slices.ContainsFunc(c.Tolerations, func(l Toleration) bool { return l.tolerates(t) }) {
				return t.String(), true
			}
		}
		return "", false
	}},
	{Selector, func(c *Chooser, _ int, n *fleet.Node) (string, bool) {
		for _, k := range c.selectorKeys {
			if got, ok := n.Labels[k]; !ok || got != c.NodeSelector[k] {
				return fmt.Sprintf("%s is %q, wanted %q", k, got, c.NodeSelector[k]), true
			}
		}
		return "", false
	}},
	{AffinityNo, func(c *Chooser, _ int, n *fleet.Node) (string, bool) {
		if c.Affinity == nil {
			return "", false
		}
		ok, why := c.Affinity(n)
		return why, !ok
	}},
	{VolumeAway, func(c *Chooser, _ int, n *fleet.Node) (string, bool) {
		if c.Volumes == nil || c.Mode == SameNode { // it was mounted there before
			return "", false
		}
		ok, why := c.Volumes(n)
		return why, !ok
	}},
	{AntiAffinity, func(c *Chooser, _ int, n *fleet.Node) (string, bool) { return c.near(n) }},
	{DRAClaim, func(c *Chooser, _ int, _ *fleet.Node) (string, bool) {
		return "where the devices of its resource claims are cannot be judged: " + strings.Join(c.Claims, ", "), len(c.Claims) > 0 && c.Mode != SameNode
	}},
	{NoRoom, func(c *Chooser, at int, n *fleet.Node) (string, bool) {
		for _, r := range c.requestKeys {
			want := c.Requests[r]
			if free := n.Free[r] - int64(c.taken[at])*want; want > 0 && free < want {
				return fmt.Sprintf("%d of %s free, %d wanted", max(0, free), r, want), true
			}
		}
		return "", false
	}},
}

// fixedRank is the rank of the first fixed reason against a node.
func (c *Chooser) fixedRank(at int) uint8 {
	for _, t := range fixed {
		if _, hit := t.hit(c, at, c.nodes[at]); hit {
			return rank(t.reason)
		}
	}
	return eligible
}

// why explains the reason of a rank against a node.
func (c *Chooser) why(m *measure, at int, of uint8, k *Candidate) string {
	n := c.nodes[at]
	switch of {
	case rankNotSame:
		return "the job goes back to " + m.Faulty
	case rankFaulty:
		if n.Name != m.Faulty {
			return "it is faulty as well"
		}
		return "it is the node to be replaced"
	case rankFailed:
		return c.Failed + " " + n.Labels[c.Failed] + " has failed"
	case rankClass:
		for _, l := range c.HardLabels {
			if want, asked := m.class[l]; asked && n.Labels[l] != want {
				return fmt.Sprintf("%s is %q, wanted %q", l, n.Labels[l], want)
			}
		}
	case rankTooFar:
		return fmt.Sprintf("%s farther from the gang than %s, %d allowed", tiers(k.TierLoss), m.Faulty, c.MaxTierLoss)
	}
	for _, t := range fixed {
		if t.reason == order[of] {
			why, _ := t.hit(c, at, n)
			return why
		}
	}
	return ""
}

// repels reports whether the taint keeps pods off; PreferNoSchedule only asks.
func repels(t Taint) bool { return t.Effect != "PreferNoSchedule" }

// tolerates follows Kubernetes: an empty key with Exists takes all, an empty effect takes all effects, Equal is the default.
func (l Toleration) tolerates(t Taint) bool {
	switch {
	case l.Effect != "" && l.Effect != t.Effect:
		return false
	case l.Key == "":
		return l.Operator == "Exists"
	case l.Key != t.Key:
		return false
	case l.Operator == "Exists":
		return true
	}
	return (l.Operator == "" || l.Operator == "Equal") && l.Value == t.Value
}

// classOf is what the hard labels must be: the faulty node's value, or, if that has none (a GPU that fell off the bus takes its
// labels along), the one that all peers share. If nobody knows, nothing is asked.
func classOf(labels []string, faulty *fleet.Node, peers []*fleet.Node) map[string]string {
	want := map[string]string{}
	for _, l := range labels {
		if v, ok := faulty.Labels[l]; ok {
			want[l] = v
			continue
		}
		for i, p := range peers {
			v, ok := p.Labels[l]
			if !ok || i > 0 && v != want[l] {
				delete(want, l)
				break
			}
			want[l] = v
		}
	}
	return want
}

// inClass says of each node whether it has the class that is wanted. Members of a gang mostly want the same one.
func (c *Chooser) inClass(want map[string]string) []bool {
	labels := slices.Sorted(maps.Keys(want))
	var b strings.Builder
	for _, l := range labels {
		b.WriteString(l + "\x00" + want[l] + "\x00")
	}
	key := b.String()
	if in, ok := c.classes[key]; ok {
		return in
	}
	in := make([]bool, len(c.nodes))
	for i, n := range c.nodes {
		in[i] = true
		for _, l := range labels {
			if n.Labels[l] != want[l] {
				in[i] = false
				break
			}
		}
	}
	c.classes[key] = in
	return in
}
