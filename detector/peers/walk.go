package peers

import (
	"math"

	"github.com/pitcrew/pitcrew/detector/durable"
)

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
	g.runs.at = uint(g.rounds)
	for i := range g.times[:min(g.rounds+1, history)] {
		w.Int64(&g.times[i])
	}
	g.noise.walk(w)
	g.load.walk(w)
	g.level.walk(w)
	open := 0
	g.silent = false
	for i := range g.m {
		m, of := &g.m[i], &g.of[i]
		m.walk(w)
		g.runs.walk(w, i, int(m.heard))
		of.walk(w)
		if of.open {
			m.marks |= suspect
			open++
		}
		if of.static {
			open++
		}
		g.silent = g.silent || of.silent > 0
	}
	g.open = open
}

// units are at most most away from none.
func units(w *durable.Walk, x *fixed, most fixed) {
	v := int(*x)
	w.Int(&v, -int(most)-1, int(most))
	*x = fixed(v)
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
	units(w, &m.offset, farthest<<finer)
	units(w, &m.scale, farthest<<finer)
	small(w, &m.rounds, offsetN)
	small(w, &m.heard, history)
	slow := m.marks&suspect != 0
	if w.Flag(&slow); w.Reads() {
		m.marks = m.age()
		if slow {
			m.marks |= suspect
		}
	}
}

func (r *runs) walk(w *durable.Walk, i, heard int) {
	if w.Reads() {
		r.begin(i)
	}
	for n := range heard {
		run := fixed(r.back(n)[i])
		units(w, &run, math.MaxInt32)
		r.back(n)[i] = int32(run)
	}
}

func small(w *durable.Walk, n *uint8, most int) {
	v := int(*n)
	w.Int(&v, 0, most)
	*n = uint8(v)
}

func (s *standing) walk(w *durable.Walk) {
	w.Int64(&s.onset)
	for _, p := range []*bool{&s.open, &s.static, &s.judged, &s.absent} {
		w.Flag(p)
	}
	far := s.peak != [windows]float64{}
	if w.Flag(&far); far {
		for k := range s.peak {
			w.Finite(&s.peak[k])
		}
	}
	for _, p := range []*int{&s.good, &s.high, &s.silent} {
		w.Int(p, 0, most)
	}
	w.Finite(&s.opened)
	w.Int64(&s.gone)
}
