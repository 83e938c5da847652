package series

import "unsafe"

// phases that a series may tell apart.
const phases = 4

// slot is the baseline of one phase, in the space of the kind (logarithm or value).
type slot struct {
	loc, scale float32
	par        float32 // odd samples lie that much above, even ones below
	n          uint16
	odd        bool
}

// state is all that a series keeps between two samples.
type state struct {
	t     int64 // of the last sample, ns
	rise  int64 // when the evidence was last within what it often is
	onset int64 // of the open finding
	until int64 // refractory
	ended int64 // the last finding
	prev  float64

	slots [phases]slot
	ring  [ringSize]float32

	recent, carry, old float32 // mean of the last few residuals; what of a fault crosses a told change
	fast, slow, near   float32 // evidence; near: of the end of a finding
	fastTail, slowTail tail
	every              float32 // interval, s
	quantum            float32 // least change seen
	block              float32 // s in the running block
	workload           uint32

	blockN, equal, longest, since uint16 // samples: in the block, equal in a row, the longest such run, since a change
	phase, kind, what, good       uint8
	severity, at                  uint8
	flags                         uint8
	leaning                       int8
	above, below                  uint8 // of the last eight residuals, those beyond half a threshold
}

// StateSize is the bytes of core state per series.
const StateSize = int(unsafe.Sizeof(state{}))

const (
	flagSeen    uint8 = 1 << iota // has a sample
	flagTold                      // phases or workloads are told
	flagSibling                   // judged against a profile of siblings
	flagRatio                     // by logarithm
	flagAccept                    // its last finding was accepted, not cleared
	flagWork                      // the last change was one of work
)

func (s *state) is(f uint8) bool { return s.flags&f != 0 }
func (s *state) set(f uint8, on bool) {
	if on {
		s.flags |= f
	} else {
		s.flags &^= f
	}
}
