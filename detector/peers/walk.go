package peers

import "github.com/pitcrew/pitcrew/detector/durable"

const most = 1 << 50 // of what is counted in rounds

// Walk writes the group's state, or reads it into a group of the same number of members: it goes on then as if nothing had been. A
// group into which reading failed is of no use.
func (g *Group) Walk(w *durable.Walk) {
	n := len(g.m)
	if w.Int(&n, least, max(least, len(g.m))); w.Reads() && n != len(g.m) {
		w.Fail("a group of %d members, not of %d", n, len(g.m))
	}
	for _, p := range []*int{&g.rounds, &g.held, &g.abstained} {
		w.Int(p, 0, most)
	}
	w.Flag(&g.apart)
	for i := range g.times[:min(g.rounds+1, history)] {
		w.Int64(&g.times[i])
	}
	g.noise.walk(w)
	g.load.walk(w)
	g.level.walk(w)
	open := 0
	for i := range g.m {
		m := &g.m[i]
		m.walk(w)
		if m.open {
			open++
		}
		if m.static {
			open++
		}
	}
	g.open = open
}

func (n *noise) walk(w *durable.Walk) {
	w.Finite(&n.scale)
	w.Int(&n.learnt, 0, most)
	for k := range n.mean {
		t := &n.tail[k]
		w.Finite(&n.mean[k])
		w.Int(&n.rounds[k], 0, most)
		w.Finite(&t.q)
		w.Finite(&t.b)
		w.Finite(&t.peak)
		w.Int(&t.rounds, 0, most)
		w.Int(&t.blocks, 0, most)
	}
	w.Finite(&n.doubt)
	w.Finite(&n.share)
}

func (l *load) walk(w *durable.Walk) {
	w.Finite(&l.scale)
	w.Int(&l.rounds, 0, most)
	w.Finite(&l.xx)
	w.Finite(&l.xy)
	w.Int(&l.pairs, 0, loadPairs)
	w.Flag(&l.given)
}

func (l *level) walk(w *durable.Walk) {
	w.Finite(&l.mean)
	w.Finite(&l.scale)
	w.Int(&l.rounds, 0, most)
	w.Int(&l.up, 0, most)
	w.Int64(&l.since)
	w.Flag(&l.open)
}

func (m *member) walk(w *durable.Walk) {
	w.Finite(&m.offset)
	w.Finite(&m.scale)
	w.Int(&m.rounds, 0, most)
	w.Int64(&m.onset)
	x := &m.window
	w.Int(&x.n, 0, resum)
	for k := range x.sum {
		w.Finite(&x.sum[k])
	}
	for i := range x.last[:min(x.n, history)] {
		w.Finite32(&x.last[i])
	}
	for _, p := range []*bool{&m.suspect, &m.open, &m.static, &m.judged, &m.absent} {
		w.Flag(p)
	}
	far := m.peak != [windows]float64{}
	if w.Flag(&far); far {
		for k := range m.peak {
			w.Finite(&m.peak[k])
		}
	}
	for _, p := range []*int{&m.good, &m.high, &m.silent} {
		w.Int(p, 0, most)
	}
	w.Finite(&m.opened)
	w.Int64(&m.gone)
}
