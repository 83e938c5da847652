package series

import "math/bits"

// Direction is the side of the expected on which values of a signal are bad.
type Direction uint8

// Directions.
const (
	Both Direction = iota // either side may be a fault: power, communication wait
	High                  // only more is: step time, launch latency, data wait, temperature
	Low                   // only less is: throughput, utilisation, clock
)

func (d Direction) String() string { return [...]string{"both", "high", "low"}[d] }

// better says whether a deviation upwards, or downwards, is one that nobody minds.
func (d Direction) better(up bool) bool { return d == High && !up || d == Low && up }

// SetBad says which side of a series is bad; before, and after Reset, it is both. A deviation to the other side is found, is never more
// than information, becomes the baseline once it has stayed for some seconds, and stands in the way of no finding on the bad side.
func (e *Engine) SetBad(id ID, d Direction) {
	s := &e.states[id]
	s.signal = s.signal&kindBits | uint8(d)<<kindShift
}

// The kind of a series and its direction share a byte.
const (
	kindShift = 4
	kindBits  = 1<<kindShift - 1
)

func (s *state) kind() Kind     { return Kind(s.signal & kindBits) }
func (s *state) bad() Direction { return Direction(s.signal >> kindShift) }

// badly gives the evidence as it points to the bad side, and how many of the last eight residuals lie there; now is whether the newest does.
func (s *state) badly() (fast, slow float32, of8 int, now bool) {
	if s.bad() == Low {
		return -s.fast, -s.slow, bits.OnesCount8(s.below), s.below&1 != 0
	}
	return s.fast, s.slow, bits.OnesCount8(s.above), s.above&1 != 0
}

// turned takes in a sample on the bad side while a finding for the better is open. The evidence for the better is dropped, so that a
// fault is found as soon as it is elsewhere, and not taken for the end of what was better; over says that it is.
func (e *Engine) turned(s *state, f *Finding) (now, over bool) {
	fast, slow, of8, now := s.badly()
	if !now {
		return false, false
	}
	if fast < 0 {
		s.fast, fast = 0, 0
	}
	if slow < 0 {
		s.slow, slow = 0, 0
	}
	if of8 < mostOfRing || max(fast*s.fastTail.per, slow*s.slowTail.per) < 1 {
		return true, false
	}
	fast, slow = s.fast, s.slow
	e.ends(s, f, StateCleared)
	s.fast, s.slow, s.lead = fast, slow, float32(of8)*s.every
	return true, true
}
