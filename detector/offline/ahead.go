package offline

import (
	"slices"
	"strings"
	"time"
)

// A timestamp far ahead of the one before is a gap, or a clock that was wrong once. Only the next row tells: until then the row is held, and written as
// not judged. Where time goes on from it, it is taken in before that row; where time goes on from before, it is named and passed over.

const (
	aheadLeast = int64(time.Hour)
	aheadSpans = 100 // intervals
)

// pace is the time of the rows that --series-by calls one.
type pace struct {
	seen        bool
	last, usual int64 // ns; usual is 0 while no interval is known
	held        *heldRow
}

type heldRow struct {
	t    int64
	line int
	row  []string
}

// ahead says whether t is so far ahead that the next row has to bear it out. The first row of a series is, as long as holding it changes nothing.
func (p *pace) ahead(t int64, first bool) bool {
	if !p.seen {
		return first
	}
	return t-p.last > max(aheadLeast, aheadSpans*p.usual)
}

func (p *pace) take(t int64) {
	if gap := t - p.last; p.seen && gap > 0 {
		if p.usual == 0 {
			p.usual = gap
		}
		p.usual += (min(gap, 4*p.usual) - p.usual) / 8
	}
	p.seen, p.last = true, max(t, p.last)
}

// hold keeps a row back until the next one, and reports whether it did.
func (r *run) hold(all []*one, t int64, row []string) bool {
	p := &all[0].pace
	if h := p.held; h != nil {
		switch {
		case t >= h.t, !p.seen && h.t-t <= aheadLeast: // it was no mistake
			r.release(all)
		case !p.seen, t > p.last:
			r.tally.doubt(ahead, h.line, cell(h.row, r.cols.time))
			p.let(all)
		default: // late: says nothing of it
			return false
		}
	}
	fresh := !slices.ContainsFunc(all, func(s *one) bool { return s.engine != nil || s.past != nil })
	if !p.ahead(t, fresh) {
		p.take(t)
		return false
	}
	p.held = &heldRow{t: t, line: r.at, row: make([]string, len(row))}
	for i, c := range row {
		p.held.row[i] = strings.Clone(c)
	}
	for _, s := range all {
		s.waits = true
	}
	return true
}

func (p *pace) let(all []*one) {
	p.held = nil
	for _, s := range all {
		s.waits = false
	}
}

// release takes in the row that is held.
func (r *run) release(all []*one) {
	p := &all[0].pace
	h := p.held
	if h == nil {
		return
	}
	p.let(all)
	p.take(h.t)
	line, at := r.line, r.at
	r.line, r.at = nil, h.line
	r.tally.values -= int64(len(r.cols.values)) // they were counted when it was held
	r.take(all, h.t, h.row)
	r.line, r.at = line, at
}
