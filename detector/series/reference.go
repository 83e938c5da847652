package series

import (
	"math"
	"slices"
)

// Reference is what earlier runs of a class showed, step by step: the expected shape of a new run. A run's own constant distance
// from it is learnt as any baseline is.
type Reference struct {
	level []float32 // by step; 0: unknown
}

// NewReference takes the values of earlier runs, by step; NaN is no value. The level of a step is the median over the runs of
// each run's value relative to its own median, so that one slow sibling does not bend the shape.
func NewReference(runs [][]float64) *Reference {
	n := 0
	for _, r := range runs {
		n = max(n, len(r))
	}
	ref := &Reference{level: make([]float32, n)}
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
	return ref
}

// At gives the level of a step; 0: unknown.
func (r *Reference) At(step int) float32 {
	if r == nil || step < 0 || step >= len(r.level) {
		return 0
	}
	return r.level[step]
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
