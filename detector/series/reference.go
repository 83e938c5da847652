package series

import (
	"math"
	"slices"
)

// Reference is what earlier runs of a class showed, step by step: the expected shape of a new run. A run's own constant distance
// from it is learnt as any baseline is.
type Reference struct {
	every int       // steps that one entry stands for
	level []float32 // by entry; 0: unknown
	work  []uint32  // by entry; counts the changes of work so far
}

// NewReference takes the values of earlier runs, by step; NaN is no value. The level of a step is the median over the runs of
// each run's value relative to its own median, so that one slow sibling does not bend the shape.
func NewReference(runs [][]float64) *Reference { return NewReferenceEvery(1, runs) }

// NewReferenceEvery takes values that each stand for so many steps, for runs too long to keep every one of.
func NewReferenceEvery(every int, runs [][]float64) *Reference {
	n := 0
	for _, r := range runs {
		n = max(n, len(r))
	}
	ref := &Reference{every: max(1, every), level: make([]float32, n)}
	centre := make([]float64, len(runs))
	var all []float64
	for i, r := range runs {
		centre[i] = middle(r)
		if centre[i] > 0 {
			all = append(all, centre[i])
		}
	}
	common := middle(all)
	v := make([]float64, 0, len(runs))
	for s := range n {
		v = v[:0]
		for i, r := range runs {
			if s < len(r) && r[s] > 0 && centre[i] > 0 {
				v = append(v, r[s]/centre[i]*common)
			}
		}
		if len(v) > 0 {
			ref.level[s] = float32(middle(v))
		}
	}
	ref.changes()
	return ref
}

// At gives the level of a step; 0: unknown.
func (r *Reference) At(step int) float32 {
	if r == nil || step < 0 || step/r.every >= len(r.level) {
		return 0
	}
	return r.level[step/r.every]
}

// Work counts the changes of the siblings' work up to a step. A change is counted lateSteps early: runs of one class change
// within some steps of each other.
func (r *Reference) Work(step int) uint32 {
	if r == nil || step < 0 || step/r.every >= len(r.work) {
		return 0
	}
	return r.work[step/r.every]
}

const (
	lateSteps  = 8
	workWindow = 12   // steps on either side
	workLeast  = 0.04 // relative
)

// changes marks where the middle of the steps before and after differ the most around.
func (r *Reference) changes() {
	n := len(r.level)
	r.work = make([]uint32, n)
	gain := make([]float64, n)
	v := make([]float64, 0, workWindow)
	side := func(lo, hi int) float64 {
		v = v[:0]
		for i := max(0, lo); i < min(n, hi); i += 2 { // pairs: odd and even steps may differ
			if i+1 < n && r.level[i] > 0 && r.level[i+1] > 0 {
				v = append(v, math.Log(float64(r.level[i])*float64(r.level[i+1]))/2)
			}
		}
		if len(v) < 3 {
			return math.NaN()
		}
		slices.Sort(v)
		return v[len(v)/2]
	}
	for i := range gain {
		if g := math.Abs(side(i, i+workWindow) - side(i-workWindow, i)); g >= workLeast {
			gain[i] = g
		}
	}
	for i := range gain {
		lo, hi := max(0, i-workWindow), min(n, i+workWindow+1)
		if gain[i] > 0 && gain[i] == slices.Max(gain[lo:hi]) && !slices.Contains(gain[lo:i], gain[i]) {
			r.work[max(0, i-(lateSteps+r.every-1)/r.every)]++
		}
	}
	for i := 1; i < n; i++ {
		r.work[i] += r.work[i-1]
	}
}

// middle is the median of the positive values.
func middle(v []float64) float64 {
	w := make([]float64, 0, len(v))
	for _, x := range v {
		if x > 0 && !math.IsInf(x, 0) {
			w = append(w, x)
		}
	}
	if len(w) == 0 {
		return 0
	}
	slices.Sort(w)
	return (w[(len(w)-1)/2] + w[len(w)/2]) / 2
}
