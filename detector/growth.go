package detector

import (
	"fmt"
	"time"
)

// growth is by how much counters grew within a window: those of a switch's links together, or that of a GPU or a port.
type growth struct {
	counters []counted
	last     time.Time
	first    time.Time
	sum      float64 // of all growth since the first value
	marks    []mark  // oldest first
}

// counted is one counter.
type counted struct {
	at    time.Time
	v     float64
	grown float64 // since the counters last rested for a window
}

// mark is what the sum was at a time.
type mark struct {
	at  time.Time
	sum float64
}

// marksPerWindow is how finely the window moves. What is counted lies within the window, and in its last five sixths at the least.
const marksPerWindow = 6

// add takes in a value of one of the counters. A fall is a reset, from which on it is counted anew.
func (g *growth) add(kind, number int, at time.Time, v float64, r *linkRule) {
	kinds := max(1, len(r.kinds))
	place := (max(number, -1)+1)*kinds + kind
	for len(g.counters) <= place {
		g.counters = append(g.counters, counted{})
	}
	c := &g.counters[place]
	if at.Before(c.at) && c.at.Sub(at) < lateWithin {
		return
	}
	if g.first.IsZero() || at.Before(g.last.Add(-lateWithin)) { // the first, or of a clock that was set back
		*g = growth{counters: g.counters, first: at, last: at}
		clear(g.counters)
		*c = counted{at: at, v: v}
		return
	}
	grown := v - c.v
	switch gap := at.Sub(c.at); {
	case c.at.IsZero(), grown < 0:
		grown = 0
	case r.limit > 0 && gap > r.window: // when it grew is not known
		grown = 0
	}
	for len(g.marks) > 0 && at.Sub(g.marks[0].at) > r.window {
		g.marks = g.marks[1:]
	}
	if n := len(g.marks); n == 0 || g.last.Sub(g.marks[n-1].at) >= r.window/marksPerWindow {
		g.marks = append(append(make([]mark, 0, n+1), g.marks...), mark{g.last, g.sum})
	}
	if g.increase() == 0 {
		for i := range g.counters {
			g.counters[i].grown = 0
		}
	}
	g.sum += grown
	c.at, c.v, c.grown = at, v, c.grown+grown
	if at.After(g.last) {
		g.last = at
	}
}

// increase is by how much they grew within the window.
func (g *growth) increase() float64 {
	if len(g.marks) == 0 {
		return 0
	}
	return g.sum - g.marks[0].sum
}

// covered reports whether they were followed for a whole window.
func (g *growth) covered(r *linkRule) bool { return g.last.Sub(g.first) >= r.window }

// where names the link that grew most, where they are counted apart.
func (g *growth) where(r *linkRule) string {
	kinds, most, all := max(1, len(r.kinds)), 0, 0.0
	for i, c := range g.counters {
		all += c.grown
		if c.grown > g.counters[most].grown {
			most = i
		}
	}
	if number := most/kinds - 1; number >= 0 && all > 0 {
		return fmt.Sprintf("link %d: %g of %g", number, g.counters[most].grown, all)
	}
	return ""
}
