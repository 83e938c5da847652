package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/remediator/fleet"
)

// Choose picks the node for a request among all nodes of the cluster; names are unique.
func Choose(r Request, nodes []Node) Decision {
	all := make([]*fleet.Node, len(nodes))
	for i := range nodes {
		all[i] = &nodes[i]
	}
	return NewChooser(r, all).Choose(Move{Faulty: r.Faulty})
}

// Choose picks the node for a member. Among the eligible the order is: fewest tiers lost, smallest sum of distances, a spare, least left
// over, no recent fault, name. It takes nothing: call Take when the choice is used.
func (c *Chooser) Choose(move Move) Decision {
	defer c.stepOut(move.At)()
	m := c.measure(move)
	keep := c.Keep
	if keep <= 0 {
		keep = len(c.nodes)
	}
	best := shortlist{keep: keep, less: func(a, b int) bool { return c.before(m, a, b) }}
	prefer := -1
	if move.Prefer != "" {
		prefer = c.find(move.Prefer)
	}
	preferred := prefer >= 0 && c.reason(m, prefer) == eligible
	counts := c.survey(m, prefer, &best)
	d := Decision{Eligible: counts[eligible]}
	if m.faulty < 0 { // without its labels nobody can tell what is equivalent to it, and a guess would be a silent downgrade
		d.Eligible = 0
		for i := range min(keep, len(c.nodes)) {
			d.Candidates = append(d.Candidates, c.unmeasured(c.candidate(m, i, c.reason(m, i))))
		}
		d.Reason = fmt.Sprintf("node %q is not among the nodes; give its last known labels", m.Faulty)
		return d
	}
	ranked := best.sorted()
	if preferred {
		ranked = append([]int{prefer}, ranked[:min(len(ranked), keep-1)]...)
	}
	for at, i := range ranked {
		k := c.candidate(m, i, eligible)
		if at == 0 {
			k.Chosen, k.Reason, k.Detail = true, Chosen, c.about(m, k)
			if preferred {
				k.Detail += ", chosen before"
			}
		} else {
			k.Reason, k.Detail = RankedLower, c.difference(m, ranked[0], i)
		}
		d.Candidates = append(d.Candidates, k)
	}
	for i := 0; i < len(c.nodes) && len(d.Candidates) < keep; i++ {
		if r := c.reason(m, i); r != eligible {
			d.Candidates = append(d.Candidates, c.candidate(m, i, r))
		}
	}
	d.Rejected = map[Reason]int{}
	for r, n := range counts[:eligible] {
		if n > 0 {
			d.Rejected[order[r]] = n
		}
	}
	if len(ranked) == 0 {
		d.Reason = c.nothing(m, d.Rejected)
		return d
	}
	first := d.Candidates[0]
	d.Node, d.TierLoss, d.Equivalent, d.Reason = first.Node, first.TierLoss, first.TierLoss == 0, first.Detail
	return d
}

// candidate is a node with its distance and, if there is one, the reason against it.
func (c *Chooser) candidate(m *measure, i int, r uint8) Candidate {
	k := Candidate{Node: c.nodes[i].Name}
	place := m.topology.of[i]
	k.MaxDistance, k.SumDistance = m.topology.toGang(place)
	k.TierLoss = int(c.losses[place])
	if r != eligible {
		k.Reason, k.Detail = order[r], c.why(m, i, r, &k)
	}
	return k
}

// unmeasured is a candidate for a node that is not known.
func (c *Chooser) unmeasured(k Candidate) Candidate {
	return Candidate{Node: k.Node, Reason: cmp.Or(k.Reason, Class), Detail: cmp.Or(k.Detail, "the node to be replaced is not known")}
}

// criterion is one criterion of the ranking; less is better.
type criterion struct {
	what string
	of   func(c *Chooser, m *measure, at int) int64
}

var ranking = []criterion{
	{"tiers lost", func(c *Chooser, m *measure, at int) int64 { return int64(c.losses[m.topology.of[at]]) }},
	{"distance to the gang", func(_ *Chooser, m *measure, at int) int64 { return int64(m.topology.sum[m.topology.of[at]]) }},
	{"not a spare", func(c *Chooser, _ *measure, at int) int64 { return c.notSpare(at) }},
	{"devices left over", func(c *Chooser, _ *measure, at int) int64 { return c.leftOver(at) }},
	{"recent faults", func(c *Chooser, _ *measure, at int) int64 { return c.recentFault(at) }},
}

// before ranks two eligible nodes; the name decides at last, so that no two are equal.
func (c *Chooser) before(m *measure, a, b int) bool {
	p, q := m.topology.of[a], m.topology.of[b]
	if p != q {
		if x, y := c.losses[p], c.losses[q]; x != y {
			return x < y
		}
		if x, y := m.topology.sum[p], m.topology.sum[q]; x != y {
			return x < y
		}
	}
	if c.keys[a] != c.keys[b] {
		return c.keys[a] < c.keys[b]
	}
	return a < b
}

// key packs the criteria that do not depend on the move in their order: 1 bit, 46 bits, 17 bits.
func (c *Chooser) key(i int) uint64 {
	left := uint64(min(max(c.leftOver(i), 0), 1<<46-1))
	return uint64(c.notSpare(i))<<63 | left<<17 | uint64(c.recentFault(i))
}

func (c *Chooser) notSpare(i int) int64 {
	if c.nodes[i].Labels[SpareLabel] == "true" {
		return 0
	}
	return 1
}

// leftOver is how many devices (extended resources that were asked for) stay free: a node that fits exactly leaves whole nodes whole.
func (c *Chooser) leftOver(i int) (sum int64) {
	for _, r := range c.requestKeys {
		if want := c.Requests[r]; strings.Contains(r, "/") && want > 0 {
			sum += c.nodes[i].Free[r] - want*int64(c.taken[i]+1)
		}
	}
	return sum
}

// recentFault is 0 without a fault in the window, else the greater the more recent, in seconds.
func (c *Chooser) recentFault(i int) int64 {
	n := c.nodes[i]
	if n.LastFault.IsZero() {
		return 0
	}
	age := c.Now.Sub(n.LastFault)
	if age >= RecentFault {
		return 0
	}
	return int64((RecentFault - max(age, 0)) / time.Second)
}

// difference says which criterion put a node behind the best.
func (c *Chooser) difference(m *measure, best, i int) string {
	for _, r := range ranking {
		if x, y := r.of(c, m, best), r.of(c, m, i); x != y {
			if r.what == "recent faults" {
				return "it had a fault in the last " + RecentFault.String()
			}
			return r.what + ": " + strconv.FormatInt(y, 10) + ", " + c.nodes[best].Name + " has " + strconv.FormatInt(x, 10)
		}
	}
	return "equal to " + c.nodes[best].Name + ", which comes first by name"
}

func (c *Chooser) about(m *measure, k Candidate) string {
	to := "the gang"
	if m.alone {
		to = m.Faulty
	}
	var out string
	switch {
	case c.Mode == SameNode:
		return "the job goes back to where it was"
	case k.TierLoss == 0:
		out = "same class, not farther from " + to + " than " + m.Faulty
	default:
		out = "same class, " + tiers(k.TierLoss) + " farther from " + to + " than " + m.Faulty
	}
	if c.nodes[c.find(k.Node)].Labels[SpareLabel] == "true" {
		out += ", a spare"
	}
	return out
}

// nothing says what stood in the way, most frequent first.
func (c *Chooser) nothing(m *measure, rejected map[Reason]int) string {
	if c.Mode == SameNode {
		k := c.candidate(m, m.faulty, c.reason(m, m.faulty))
		return strings.TrimSuffix(fmt.Sprintf("the node itself cannot take it back: %s, %s", k.Reason, k.Detail), ", ")
	}
	type line struct {
		r Reason
		n int
	}
	var lines []line
	for r, n := range rejected {
		if r == Faulty {
			n-- // the one to be replaced
		}
		if n > 0 && r != NotSameNode {
			lines = append(lines, line{r, n})
		}
	}
	slices.SortFunc(lines, func(a, b line) int { return cmp.Or(b.n-a.n, strings.Compare(string(a.r), string(b.r))) })
	parts := make([]string, len(lines))
	for i, l := range lines {
		parts[i] = fmt.Sprintf("%d %s", l.n, l.r)
	}
	what := "no free equivalent node"
	if c.Mode == Any {
		what = "no free node"
	}
	if len(parts) == 0 {
		return what + ": there is no other node"
	}
	out := what + ": " + strings.Join(parts, ", ")
	if ill := slices.IndexFunc(c.reasonsOf(m), func(r uint8) bool { return r < eligible && order[r] == OpenCondition }); ill >= 0 {
		k := c.candidate(m, ill, rank(OpenCondition))
		out += fmt.Sprintf("; mend %s (%s): a node is free again as soon as its agent says that it is well", k.Node, k.Detail)
	}
	return out
}

// shortlist keeps the best few of many without sorting all.
type shortlist struct {
	keep int
	less func(a, b int) bool
	list []int // sorted, unless keep is beyond sortAll
}

// sortAll is the length from which a list is sorted at the end and not as it grows.
const sortAll = 128

// offer reports whether a node is among the best so far.
func (s *shortlist) offer(i int) bool {
	if s.keep > sortAll {
		s.list = append(s.list, i)
		return true
	}
	if len(s.list) == s.keep {
		if !s.less(i, s.list[s.keep-1]) {
			return false
		}
		s.list = s.list[:s.keep-1]
	}
	at, end := 0, len(s.list)
	for at < end {
		if mid := (at + end) / 2; s.less(s.list[mid], i) {
			at = mid + 1
		} else {
			end = mid
		}
	}
	s.list = slices.Insert(s.list, at, i)
	return true
}

func (s *shortlist) sorted() []int {
	if s.keep > sortAll {
		slices.SortFunc(s.list, func(a, b int) int {
			if s.less(a, b) {
				return -1
			}
			return 1
		})
	}
	return s.list[:min(len(s.list), s.keep)]
}
