package series

import "unsafe"

// phases that a series may tell apart.
const phases = 4

// state is all that a series keeps between two samples: fields are ordered and sized for 192 bytes.
type state struct {
	t    int64   // of the last sample, ns
	prev float64 // raw value before

	// Baselines by phase, in the space of the kind (logarithm or value), and the last values that were taken into one.
	loc, scale [phases]float32
	ring       [ringSize]float32
	par        float32 // odd steps lie that much above, even ones below

	recent     float32 // mean of the last residuals; while a told change is learnt, what of a fault crosses it
	old        float32 // level before the last told change
	fast, slow float32 // evidence

	fastTail, slowTail tail

	every   float32 // interval, s
	quantum float32 // least change seen
	lead    float32 // s since the evidence was within what it often is
	until   float32 // s left of the refractory time

	n                   [phases]uint16 // samples behind each baseline
	blocks, block       uint16         // of the tail models, and samples in the running one
	equal, since        uint16         // equal values in a row; samples since a change
	work                uint16         // workload, folded
	longest             uint8          // run of equal values before
	phase, signal, what uint8          // signal: kind and direction
	good, at            uint8          // samples back in the band or, with no finding open, for which an announcement was waited; next place in the ring
	flags, above, below uint8          // above, below: of the last eight residuals, those beyond half a threshold
	leaning             int8           // samples in a row on one side
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
	flagOdd                       // the next step is an odd one
	flagHeld                      // has waited before its first weak finding
)

func (s *state) is(f uint8) bool { return s.flags&f != 0 }
func (s *state) set(f uint8, on bool) {
	if on {
		s.flags |= f
	} else {
		s.flags &^= f
	}
}
