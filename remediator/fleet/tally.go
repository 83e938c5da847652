package fleet

import (
	"maps"
	"sync"
)

// Count is how many nodes there are, and how many of them Pitcrew has quarantined.
type Count struct{ Total, Quarantined int }

// PoolDomain is the name under which Tally.In counts pools; all other domains are labels.
const PoolDomain = "pool"

// Tally counts nodes as they change, so that a limit by rack or pool is checked without looking at every node. All methods may be called
// from any goroutine. Each answer is exact for the views counted so far; two calls may see a change between them.
type Tally struct {
	labels []string

	mu  sync.RWMutex
	all Count
	by  map[domain]Count
}

type domain struct{ label, value string }

// NewTally counts by pool and by the values of these labels.
func NewTally(labels ...string) *Tally {
	return &Tally{labels: labels, by: map[domain]Count{}}
}

// All counts every node.
func (t *Tally) All() Count {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.all
}

// In counts the nodes whose label has this value. PoolDomain as the label counts a pool.
func (t *Tally) In(label, value string) Count {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.by[domain{label, value}]
}

// Domains returns the domains that a node belongs to: its pool and each counted label that it carries, by label.
func (t *Tally) Domains(n *Node) map[string]string {
	out := map[string]string{}
	t.each(n, func(d domain) { out[d.label] = d.value })
	return out
}

// Values returns the counts of a label by its values.
func (t *Tally) Values(label string) map[string]Count {
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := map[string]Count{}
	for d, c := range t.by {
		if d.label == label {
			out[d.value] = c
		}
	}
	return out
}

// Replace counts a change of a node: was is its last view, nil if it is new; is the present one, nil if it is gone.
func (t *Tally) Replace(was, is *Node) {
	if was != nil && is != nil && was.Quarantined == is.Quarantined && was.Pool == is.Pool && t.sameDomains(was, is) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count(was, -1)
	t.count(is, 1)
}

func (t *Tally) sameDomains(a, b *Node) bool {
	for _, l := range t.labels {
		if a.Labels[l] != b.Labels[l] {
			return false
		}
	}
	return true
}

func (t *Tally) count(n *Node, by int) {
	if n == nil {
		return
	}
	t.all = t.all.plus(n, by)
	t.each(n, func(d domain) {
		if c := t.by[d].plus(n, by); c != (Count{}) {
			t.by[d] = c
		} else {
			delete(t.by, d)
		}
	})
}

func (c Count) plus(n *Node, by int) Count {
	c.Total += by
	if n.Quarantined != "" {
		c.Quarantined += by
	}
	return c
}

func (t *Tally) each(n *Node, do func(domain)) {
	if n.Pool != "" {
		do(domain{PoolDomain, n.Pool})
	}
	for _, l := range t.labels {
		if v := n.Labels[l]; v != "" {
			do(domain{l, v})
		}
	}
}

// TallyOf counts nodes that do not change, for tests and simulations.
func TallyOf(nodes []*Node, labels ...string) *Tally {
	t := NewTally(labels...)
	for _, n := range nodes {
		t.Replace(nil, n)
	}
	return t
}

// Equal reports whether two tallies count the same, for tests.
func (t *Tally) Equal(o *Tally) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	o.mu.RLock()
	defer o.mu.RUnlock()
	return t.all == o.all && maps.Equal(t.by, o.by)
}
