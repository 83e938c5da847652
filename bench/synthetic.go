package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Synthetic makes training runs that resemble the recorded ones, for where there are no recordings: whole milliseconds, twelve steps
// of warm-up, evaluations every 125 steps after which some clocks run short, half of the records alternating between odd and even
// steps, some with a slow step every ten, and shifts of the schedule by 20 % and more that recur at much the same step in every run of
// a record. It is a simulation: it shows that the parts do what they are for, not how well they do on real runs.
func Synthetic(seed uint64, records, runs int) (out []*TrainingRun) {
	for k := range records {
		rng := rand.New(rand.NewPCG(seed, uint64(k)))
		s := shape{
			ms: 30 * math.Exp(2*rng.Float64()), noise: 0.004 + 0.012*rng.Float64(), refill: rng.IntN(2) == 0,
			change: []int{900 + rng.IntN(200), 1800 + rng.IntN(200)}, factor: []float64{1.3 + 0.5*rng.Float64(), 0.65 + 0.1*rng.Float64()},
		}
		if k%2 == 0 {
			s.odd = 0.03 + 0.07*rng.Float64()
		}
		if k%5 == 4 {
			s.tenth = 1.3 + rng.Float64()
		}
		for i := range runs {
			out = append(out, s.run(fmt.Sprintf("%d-%d", k, i), fmt.Sprintf("record-%d", k), rng))
		}
	}
	return out
}

const (
	synthSteps = 2800
	synthEval  = 125
)

// shape is what the runs of a record share.
type shape struct {
	ms, noise, odd, tenth float64
	refill                bool
	change                []int
	factor                []float64
}

func (s shape) run(id, record string, rng *rand.Rand) *TrainingRun {
	r := &TrainingRun{ID: id, Record: record}
	own := math.Exp(0.01 * rng.NormFloat64())
	late := rng.IntN(4)
	level, work := s.ms*own, uint32(1)
	for step := range synthSteps {
		for i, c := range s.change {
			if step == c+late {
				level, work = level*s.factor[i], work+1
				r.Changes = append(r.Changes, len(r.Rows))
			}
		}
		if step > 0 && step%synthEval == 0 {
			r.add(Row{Step: step, Eval: true, MS: math.Round(level)}, work)
		}
		v := level * math.Exp(s.noise*rng.NormFloat64())
		if step%2 == 1 {
			v *= 1 + s.odd
		}
		if s.tenth > 0 && step%10 == 0 {
			v *= s.tenth
		}
		if rng.IntN(400) == 0 { // a straggling step
			v *= 1 + rng.ExpFloat64()/2
		}
		if since := step % synthEval; s.refill && step >= synthEval && since < 3 {
			v *= 0.4 + 0.2*float64(since)
		}
		if step <= warmupSteps {
			v *= 3 + 20*rng.Float64()
		}
		r.add(Row{Step: step, MS: math.Max(1, math.Round(v))}, work)
	}
	return r
}

func (r *TrainingRun) add(row Row, work uint32) {
	r.Rows, r.Workload = append(r.Rows, row), append(r.Workload, work)
}
