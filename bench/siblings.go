package bench

import (
	"math"

	"github.com/pitcrew/pitcrew/detector/series"
)

// byStep gives a run's step times by step, NaN where there is none.
func byStep(r *TrainingRun) []float64 {
	out := make([]float64, r.Rows[len(r.Rows)-1].Step+1)
	for i := range out {
		out[i] = math.NaN()
	}
	for _, row := range r.Rows {
		if !row.Eval {
			out[row.Step] = row.MS
		}
	}
	return out
}

// maxSiblings of one reference: the earliest by run number would favour old runs, so the nearest are taken.
const maxSiblings = 9

// refs gives each run the reference of the other runs of its record; nil where it has none.
func refs(runs []*TrainingRun) map[string]*series.Reference {
	byRecord := map[string][]*TrainingRun{}
	for _, r := range runs {
		byRecord[r.Record] = append(byRecord[r.Record], r)
	}
	out := map[string]*series.Reference{}
	for _, rs := range byRecord {
		for i, r := range rs {
			var other [][]float64
			for d := 1; d < len(rs) && len(other) < maxSiblings; d++ {
				other = append(other, byStep(rs[(i+d)%len(rs)]))
			}
			if len(other) > 0 {
				out[r.ID] = series.NewReference(other)
			}
		}
	}
	return out
}
