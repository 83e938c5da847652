package placement

import (
	"cmp"
	"slices"
)

// field is the nodes as moves of one kind see them: those that want one class, and that leave one failed domain, if any. It counts the reasons
// against nodes, and keeps those without one by place and by rank, so that a move looks at a few hundred racks and not at 5,000 nodes.
type field struct {
	topology *topology
	inClass  []bool
	failed   []bool // nil: no domain has failed
	counts   [32]int
	free     [][]int32 // by place: the eligible nodes, the best first
}

// fieldFor finds the field of a move, or makes it.
func (c *Chooser) fieldFor(m *measure) *field {
	same := func(a, b []bool) bool { return (a == nil) == (b == nil) && (len(a) == 0 || &a[0] == &b[0]) }
	for _, f := range c.fields {
		if f.topology == m.topology && same(f.inClass, m.inClass) && same(f.failed, m.failed) {
			return f
		}
	}
	f := &field{topology: m.topology, inClass: m.inClass, failed: m.failed, free: make([][]int32, len(m.topology.at))}
	for i := range c.nodes {
		r := c.standing(f, i)
		if f.counts[r]++; r == eligible {
			p := m.topology.of[i]
			f.free[p] = append(f.free[p], int32(i))
		}
	}
	for _, free := range f.free {
		slices.SortFunc(free, c.byKey)
	}
	if !m.alone { // the topology of a move without peers is its own
		c.fields = append(c.fields, f)
	}
	return f
}

// byKey ranks nodes of one place.
func (c *Chooser) byKey(a, b int32) int {
	return cmp.Or(cmp.Compare(c.keys[a], c.keys[b]), cmp.Compare(a, b))
}

// standing is the rank of the first reason against a node that all moves of a field share.
func (c *Chooser) standing(f *field, i int) uint8 {
	r := c.reasons[i]
	switch {
	case c.excluded[i]:
		return rankFaulty
	case f.failed != nil && f.failed[i]:
		return rankFailed
	case r > rankClass && !f.inClass[i]:
		return rankClass
	}
	return r
}

// drop takes a node out of every field before its reason or key changes; put puts it back.
func (c *Chooser) drop(i int) {
	for _, f := range c.fields {
		r := c.standing(f, i)
		if f.counts[r]--; r == eligible {
			p := f.topology.of[i]
			at, _ := slices.BinarySearchFunc(f.free[p], int32(i), c.byKey)
			f.free[p] = slices.Delete(f.free[p], at, at+1)
		}
	}
}

func (c *Chooser) put(i int) {
	for _, f := range c.fields {
		r := c.standing(f, i)
		if f.counts[r]++; r == eligible {
			p := f.topology.of[i]
			at, _ := slices.BinarySearchFunc(f.free[p], int32(i), c.byKey)
			f.free[p] = slices.Insert(f.free[p], at, int32(i))
		}
	}
}

// survey counts the reasons against all nodes for a move, and offers the eligible ones but the preferred.
func (c *Chooser) survey(m *measure, prefer int, best *shortlist) (counts [32]int) {
	if c.Mode == SameNode {
		counts[rankNotSame] = len(c.nodes)
		if m.faulty >= 0 {
			r := c.reason(m, m.faulty)
			counts[rankNotSame]--
			if counts[r]++; r == eligible && m.faulty != prefer {
				best.offer(m.faulty)
			}
		}
		return counts
	}
	f := c.fieldFor(m)
	counts = f.counts
	out := -1 // the faulty node, where it would be eligible
	if m.faulty >= 0 {
		r := c.standing(f, m.faulty)
		counts[r]--
		if counts[rankFaulty]++; r == eligible {
			out = m.faulty
		}
	}
	for p, free := range f.free {
		if c.Mode == Equivalent && int(c.losses[p]) > c.MaxTierLoss {
			n := len(free)
			if out >= 0 && int(m.topology.of[out]) == p {
				n--
			}
			counts[eligible] -= n
			counts[rankTooFar] += n
			continue
		}
		for _, i := range free {
			if int(i) != out && int(i) != prefer && !best.offer(int(i)) {
				break // those behind it rank lower
			}
		}
	}
	return counts
}
