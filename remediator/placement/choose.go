package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Choose picks the node for a request among all nodes of the cluster; names are unique. Among the eligible the order is: fewest
// tiers lost, smallest sum of distances, a spare, least left over, no recent fault, name.
func Choose(r Request, nodes []Node) Decision {
	nodes = slices.SortedStableFunc(slices.Values(nodes), func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	byName := map[string]Node{}
	for _, n := range nodes {
		byName[n.Name] = n
	}
	c := newChooser(r, byName)
	faulty, known := byName[r.Faulty]
	c.faulty = faulty

	d := Decision{}
	var eligible, others []Candidate
	for _, n := range nodes {
		k := Candidate{Node: n.Name}
		k.MaxDistance, k.SumDistance = c.topology.toGang(n.Labels)
		k.TierLoss = c.topology.loss(k.MaxDistance, k.SumDistance)
		if k.Reason, k.Detail = c.rejects(n, &k); k.Reason == "" {
			eligible = append(eligible, k)
		} else {
			others = append(others, k)
		}
	}
	if !known {
		// Without the faulty node's labels nobody can tell what is equivalent to it, and a guess would be a silent downgrade.
		d.Candidates = append(eligible, others...)
		for i := range d.Candidates {
			k := &d.Candidates[i]
			*k = Candidate{Node: k.Node, Reason: cmp.Or(k.Reason, Class), Detail: cmp.Or(k.Detail, "the node to be replaced is not known")}
		}
		slices.SortFunc(d.Candidates, func(a, b Candidate) int { return strings.Compare(a.Node, b.Node) })
		d.Reason = fmt.Sprintf("node %q is not among the nodes; give its last known labels", r.Faulty)
		return d
	}
	slices.SortFunc(eligible, func(a, b Candidate) int { return c.compare(a, b, byName) })
	for i := range eligible {
		k := &eligible[i]
		if i == 0 {
			k.Chosen, k.Reason, k.Detail = true, Chosen, c.about(*k, byName[k.Node])
			continue
		}
		k.Reason, k.Detail = RankedLower, c.difference(eligible[0], *k, byName)
	}
	d.Candidates = append(eligible, others...)
	if len(eligible) == 0 {
		d.Reason = c.nothing(others)
		return d
	}
	d.Node, d.TierLoss, d.Equivalent = eligible[0].Node, eligible[0].TierLoss, eligible[0].TierLoss == 0
	d.Reason = eligible[0].Detail
	return d
}

func newChooser(r Request, byName map[string]Node) *chooser {
	c := &chooser{Request: r, peerAt: map[string]bool{}}
	if c.Mode == "" {
		c.Mode = Equivalent
	}
	if c.Tiers == nil {
		c.Tiers = Tiers()
	}
	if c.HardLabels == nil {
		c.HardLabels = HardLabels()
	}
	var peers []Node
	for _, p := range r.Peers {
		c.peerAt[p] = true
		peers = append(peers, byName[p]) // an unknown peer has no labels and is equally far from all
	}
	c.class = classOf(c.HardLabels, byName[r.Faulty], peers)
	c.topology = newTopology(c.Tiers, byName[r.Faulty], peers)
	return c
}

// key is one criterion of the ranking; less is better.
type key struct {
	what string
	of   func(*chooser, Candidate, Node) int64
}

var ranking = []key{
	{"tiers lost", func(_ *chooser, k Candidate, _ Node) int64 { return int64(k.TierLoss) }},
	{"distance to the gang", func(_ *chooser, k Candidate, _ Node) int64 { return int64(k.SumDistance) }},
	{"not a spare", func(_ *chooser, _ Candidate, n Node) int64 {
		if n.Labels[SpareLabel] == "true" {
			return 0
		}
		return 1
	}},
	{"devices left over", func(c *chooser, _ Candidate, n Node) int64 { return c.leftOver(n) }},
	{"recent faults", func(c *chooser, _ Candidate, n Node) int64 { return c.recentFault(n) }},
}

// compare ranks two candidates; the name decides at last, so that no two are equal.
func (c *chooser) compare(a, b Candidate, byName map[string]Node) int {
	for _, k := range ranking {
		if d := cmp.Compare(k.of(c, a, byName[a.Node]), k.of(c, b, byName[b.Node])); d != 0 {
			return d
		}
	}
	return strings.Compare(a.Node, b.Node)
}

// difference says which criterion put k behind the best.
func (c *chooser) difference(best, k Candidate, byName map[string]Node) string {
	for _, r := range ranking {
		if x, y := r.of(c, best, byName[best.Node]), r.of(c, k, byName[k.Node]); x != y {
			if r.what == "recent faults" {
				return "it had a fault in the last " + RecentFault.String()
			}
			return fmt.Sprintf("%s: %d, %s has %d", r.what, y, best.Node, x)
		}
	}
	return "equal to " + best.Node + ", which comes first by name"
}

// leftOver is how many devices (extended resources that were asked for) stay free: a node that fits exactly leaves whole nodes whole.
func (c *chooser) leftOver(n Node) (sum int64) {
	for r, want := range c.Requests {
		if strings.Contains(r, "/") && want > 0 {
			sum += n.Free[r] - want
		}
	}
	return sum
}

// recentFault is 0 without a fault in the window, else the greater the more recent, in seconds.
func (c *chooser) recentFault(n Node) int64 {
	age := c.Now.Sub(n.LastFault)
	if n.LastFault.IsZero() || age >= RecentFault {
		return 0
	}
	return int64((RecentFault - max(age, 0)) / time.Second)
}

func (c *chooser) about(k Candidate, n Node) string {
	to := "the gang"
	if c.topology.alone {
		to = c.Request.Faulty
	}
	var out string
	switch {
	case c.Mode == SameNode:
		return "the job goes back to where it was"
	case k.TierLoss == 0:
		out = fmt.Sprintf("same class, not farther from %s than %s", to, c.Request.Faulty)
	default:
		out = fmt.Sprintf("same class, %s farther from %s than %s", tiers(k.TierLoss), to, c.Request.Faulty)
	}
	if n.Labels[SpareLabel] == "true" {
		out += ", a spare"
	}
	return out
}

// nothing says what stood in the way, most frequent first.
func (c *chooser) nothing(rejected []Candidate) string {
	count := map[Reason]int{}
	for _, k := range rejected {
		if k.Reason != Faulty && k.Reason != NotSameNode {
			count[k.Reason]++
		}
	}
	if c.Mode == SameNode {
		for _, k := range rejected {
			if k.Node == c.Request.Faulty {
				return strings.TrimSuffix(fmt.Sprintf("the node itself cannot take it back: %s, %s", k.Reason, k.Detail), ", ")
			}
		}
	}
	type line struct {
		r Reason
		n int
	}
	var lines []line
	for r, n := range count {
		lines = append(lines, line{r, n})
	}
	slices.SortFunc(lines, func(a, b line) int { return cmp.Or(b.n-a.n, strings.Compare(string(a.r), string(b.r))) })
	parts := make([]string, len(lines))
	for i, l := range lines {
		parts[i] = fmt.Sprintf("%d %s", l.n, l.r)
	}
	ill := ""
	if k := slices.IndexFunc(rejected, func(k Candidate) bool { return k.Reason == OpenCondition }); k >= 0 {
		ill = fmt.Sprintf("; mend %s (%s): a node is free again as soon as its agent says that it is well", rejected[k].Node, rejected[k].Detail)
	}
	what := "no free equivalent node"
	if c.Mode == Any {
		what = "no free node"
	}
	if len(parts) == 0 {
		return what + ": there is no other node"
	}
	return what + ": " + strings.Join(parts, ", ") + ill
}
