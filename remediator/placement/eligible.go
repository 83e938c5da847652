package placement

import (
	"fmt"
	"maps"
	"slices"
)

// chooser holds a request with its defaults and what follows from the faulty node and the peers.
type chooser struct {
	Request
	faulty   Node
	peerAt   map[string]bool
	class    map[string]string // hard label → value wanted
	topology topology
}

// rejects gives the first reason against a node, "" if there is none. Distance comes last, since only it depends on the mode.
func (c *chooser) rejects(n Node, k *Candidate) (Reason, string) {
	for _, t := range tests {
		if why, hit := t.hit(c, n, k); hit {
			return t.reason, why
		}
	}
	return "", ""
}

var tests = []struct {
	reason Reason
	hit    func(*chooser, Node, *Candidate) (why string, hit bool)
}{
	{NotSameNode, func(c *chooser, n Node, _ *Candidate) (string, bool) {
		return "the job goes back to " + c.Request.Faulty, c.Mode == SameNode && n.Name != c.Request.Faulty
	}},
	{Faulty, func(c *chooser, n Node, _ *Candidate) (string, bool) {
		return "it is the node to be replaced", c.Mode != SameNode && n.Name == c.Request.Faulty
	}},
	{FailedDomain, func(c *chooser, n Node, _ *Candidate) (string, bool) {
		v := c.faulty.Labels[c.Failed]
		return c.Failed + " " + v + " has failed", c.Failed != "" && c.Failed != NodeScope && v != "" && n.Labels[c.Failed] == v
	}},
	{NotReady, func(_ *chooser, n Node, _ *Candidate) (string, bool) { return "", !n.Ready }},
	{Quarantined, func(_ *chooser, n Node, _ *Candidate) (string, bool) {
		// Looked for before cordon and tolerations: a pod that tolerates everything does not tolerate a broken GPU.
		i := slices.IndexFunc(n.Taints, func(t Taint) bool { return t.Key == QuarantineTaint })
		if i < 0 {
			return "", false
		}
		return "by incident " + n.Taints[i].Value, true
	}},
	{Cordoned, func(_ *chooser, n Node, _ *Candidate) (string, bool) { return "", n.Unschedulable }},
	{OpenCondition, func(c *chooser, n Node, _ *Candidate) (string, bool) {
		return n.Condition, n.Condition != "" && c.Mode != SameNode // there it is what the job goes back in spite of
	}},
	{ReservedOther, func(c *chooser, n Node, _ *Candidate) (string, bool) {
		if n.Reserved != "" && n.Reserved != c.Incident {
			return "for incident " + n.Reserved, true
		}
		i := slices.IndexFunc(n.Taints, func(t Taint) bool { return t.Key == ReservedTaint && t.Value != c.Incident })
		if i < 0 {
			return "", false
		}
		return "for incident " + n.Taints[i].Value, true
	}},
	{HoldsPeer, func(c *chooser, n Node, _ *Candidate) (string, bool) {
		return "it holds another member of the gang", c.peerAt[n.Name] && !c.Share
	}},
	{Tainted, func(c *chooser, n Node, _ *Candidate) (string, bool) {
		for _, t := range n.Taints {
			if t.Key != ReservedTaint && t.repels() && !slices.ContainsFunc(c.Tolerations, t.toleratedBy) {
				return t.String(), true
			}
		}
		return "", false
	}},
	{Selector, func(c *chooser, n Node, _ *Candidate) (string, bool) {
		for _, k := range slices.Sorted(maps.Keys(c.NodeSelector)) {
			if got, ok := n.Labels[k]; !ok || got != c.NodeSelector[k] {
				return fmt.Sprintf("%s is %q, wanted %q", k, got, c.NodeSelector[k]), true
			}
		}
		return "", false
	}},
	{AffinityNo, func(c *chooser, n Node, _ *Candidate) (string, bool) {
		if c.Affinity == nil {
			return "", false
		}
		ok, why := c.Affinity(n)
		return why, !ok
	}},
	{Class, func(c *chooser, n Node, _ *Candidate) (string, bool) {
		for _, l := range c.HardLabels {
			if want, asked := c.class[l]; asked && n.Labels[l] != want {
				return fmt.Sprintf("%s is %q, wanted %q", l, n.Labels[l], want), true
			}
		}
		return "", false
	}},
	{NoRoom, func(c *chooser, n Node, _ *Candidate) (string, bool) {
		for _, r := range slices.Sorted(maps.Keys(c.Requests)) {
			if want := c.Requests[r]; want > 0 && n.Free[r] < want {
				return fmt.Sprintf("%d of %s free, %d wanted", max(0, n.Free[r]), r, want), true
			}
		}
		return "", false
	}},
	{TooFar, func(c *chooser, _ Node, k *Candidate) (string, bool) {
		return fmt.Sprintf("%s farther from the gang than %s, %d allowed", tiers(k.TierLoss), c.Request.Faulty, c.MaxTierLoss),
			c.Mode == Equivalent && k.TierLoss > c.MaxTierLoss
	}},
}

// repels reports whether the taint keeps pods off; PreferNoSchedule only asks.
func (t Taint) repels() bool { return t.Effect != "PreferNoSchedule" }

// toleratedBy follows Kubernetes: an empty key with Exists takes all, an empty effect takes all effects, Equal is the default.
func (t Taint) toleratedBy(l Toleration) bool {
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

func (t Taint) String() string {
	s := t.Key
	if t.Value != "" {
		s += "=" + t.Value
	}
	return s + ":" + t.Effect
}

// classOf is what the hard labels must be: the faulty node's value, or, where that has none (a GPU that fell off the bus takes its
// labels along), the one that all peers share. Where nobody knows, nothing is asked.
func classOf(labels []string, faulty Node, peers []Node) map[string]string {
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
