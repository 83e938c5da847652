package witness

import (
	"slices"
	"sort"
	"time"
)

// mass is how many others fell silent together with a node.
type mass int

const (
	alone       mass = iota
	wholeDomain      // all of its rack or pool
	mostOfFleet
)

const (
	// together is how close in time silences count as one.
	together = time.Minute
	// domainsFor is how long a node's domains are remembered.
	domainsFor = 10 * time.Minute
)

// masses answers how many fell silent with each node of one look.
type masses struct {
	times   []time.Time // since when each silent node is silent, rising
	heard   int         // nodes that are not silent
	most    float64
	domains map[string][]string // of the silent nodes
	lost    map[string][]time.Time
	alive   map[string]int // heard nodes by domain
}

// mass counts. Domains are looked up only if two or more nodes are silent.
func (w *Watch) mass(silent []quiet, heard int) *masses {
	m := &masses{heard: heard, most: w.o.MostOfFleet}
	for _, q := range silent {
		m.times = append(m.times, q.since)
	}
	slices.SortFunc(m.times, time.Time.Compare) // an adopted loss may be out of order
	if w.o.Domains == nil || len(silent) < 2 {
		return m
	}
	m.domains, m.lost, m.alive = map[string][]string{}, map[string][]time.Time{}, map[string]int{}
	for _, q := range silent {
		m.domains[q.name] = w.domainsOf(q.name)
		for _, d := range m.domains[q.name] {
			m.lost[d] = append(m.lost[d], q.since)
		}
	}
	for _, name := range w.heardOf(silent) {
		for _, d := range w.domainsOf(name) {
			if m.lost[d] != nil {
				m.alive[d]++
			}
		}
	}
	return m
}

// heardOf lists the nodes that are not silent.
func (w *Watch) heardOf(silent []quiet) (out []string) {
	quietNow := make(map[string]bool, len(silent))
	for _, q := range silent {
		quietNow[q.name] = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for el := w.order.Back(); el != nil; el = el.Prev() {
		if n := el.Value.(*node); !quietNow[n.name] {
			out = append(out, n.name)
		}
	}
	return out
}

// domainsOf asks for a node's domains, at most every ten minutes, and without the lock: the answer comes from the cluster.
func (w *Watch) domainsOf(name string) []string {
	w.mu.Lock()
	el, now := w.at[name], w.o.Now()
	if el == nil {
		w.mu.Unlock()
		return nil
	}
	n := el.Value.(*node)
	domains, fresh := n.domains, !n.domainsAt.IsZero() && now.Sub(n.domainsAt) < domainsFor
	w.mu.Unlock()
	if fresh {
		return domains
	}
	domains = w.o.Domains(name)
	w.mu.Lock()
	n.domains, n.domainsAt = domains, now
	w.mu.Unlock()
	return domains
}

// of is how many fell silent with q.
func (m *masses) of(q quiet) mass {
	if n := within(m.times, q.since); n > 1 && float64(n) > m.most*float64(n+m.heard) {
		return mostOfFleet
	}
	for _, d := range m.domains[q.name] {
		times := slices.Clone(m.lost[d])
		slices.SortFunc(times, time.Time.Compare)
		if m.alive[d] == 0 && within(times, q.since) > 1 {
			return wholeDomain
		}
	}
	return alone
}

// within counts the times that are at most together from t.
func within(times []time.Time, t time.Time) int {
	from := sort.Search(len(times), func(i int) bool { return !times[i].Before(t.Add(-together)) })
	to := sort.Search(len(times), func(i int) bool { return times[i].After(t.Add(together)) })
	return to - from
}
