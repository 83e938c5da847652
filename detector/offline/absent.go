package offline

import (
	"container/heap"
	"fmt"
	"math"

	"github.com/pitcrew/pitcrew/detector/series"
)

// A series is absent when three of its intervals pass without a value while rows say that time goes on: its own rows, with an empty
// cell, or those of series that were there before its last value. A file that has one series after another, or a gap in all of
// them, says nothing of the kind.

// absence is what a series keeps of its silence.
type absence struct {
	absent  bool
	noticed int64 // ns, when the silence was
	due     int64 // ns; it may have been put off since
	gap     int64 // ns, its last interval
	place   int   // in the heap; -1: none
	began   int   // line of its first row
	waits   bool  // a row of it is held
	heardAt int   // line of its last value
}

// silence holds the series by when they are due.
type silence []*one

func (h silence) Len() int           { return len(h) }
func (h silence) Less(i, j int) bool { return h[i].due < h[j].due }
func (h silence) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}
func (h *silence) Push(x any) {
	s := x.(*one)
	s.place = len(*h)
	*h = append(*h, s)
}
func (h *silence) Pop() any {
	all := *h
	s := all[len(all)-1]
	*h, s.place = all[:len(all)-1], -1
	return s
}

const (
	absentLeast = 1e9 // ns
	absentSpans = 3   // intervals: what the engine asks for
)

// wait is how long a series may be silent by its last interval; the engine, which knows more of them, has the last word.
func (s *one) wait() int64 { return max(absentLeast, absentSpans*s.gap) }

// heard takes in that a series has a value at t.
func (s *one) heard(r *run, t int64) {
	s.heardAt = r.at
	if s.seen {
		s.gap = t - s.last
	}
	if s.place < 0 && s.engine != nil {
		s.due = t + s.wait()
		heap.Push(&r.silent, s)
	}
}

// back ends the silence of a series that has a value again, which opened what it opened. A silence that was a step that hung is told as that
// stall and not as two findings.
func (s *one) back(r *run, t int64, opened series.Change) {
	if !s.absent {
		return
	}
	s.absent = false
	hung := opened == series.Opened && s.engine.Finding(s.id).What == series.Stall
	r.found.returned(s, t, hung)
}

// look finds the series that are silent at t, which a row of witness says that it is.
func (h *silence) look(r *run, witness *one, t int64) {
	for len(*h) > 0 && (*h)[0].due < t {
		s := (*h)[0]
		switch due := s.last + s.wait(); {
		case due >= t:
			s.due = due
		case s.waits: // its next row is there, and as far ahead
			s.due = t + s.wait()
		case witness.began > s.heardAt || !s.engine.Absent(s.id, t):
			s.due = t + s.wait()
		default:
			heap.Pop(h)
			s.absent = true
			r.found.vanished(s, t)
			continue
		}
		heap.Fix(h, 0)
	}
}

// absentPromQL fires where the metric has had no value for the time that made the finding.
func absentPromQL(metric string, wait int64) string {
	return fmt.Sprintf("absent_over_time(%s[%ds])", metric, int(math.Ceil(float64(wait)*1e-9)))
}
