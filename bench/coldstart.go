package bench

import (
	"slices"

	"github.com/pitcrew/pitcrew/detector/class"
	"github.com/pitcrew/pitcrew/detector/series"
)

// ColdFigures compare runs that start from their class's prior with runs that learn from nothing; both have the class's reference.
type ColdFigures struct {
	N         int      `json:"n"`
	Fault     string   `json:"fault_at_the_first_step_after_warmup"`
	Primed    Interval `json:"recall_with_prior"`
	Bare      Interval `json:"recall_without"`
	DelayP50  float64  `json:"delay_with_prior_p50_s"`
	Hours     float64  `json:"hours_without_faults"`
	False     int      `json:"false_onsets_with_prior"`
	FalseBare int      `json:"false_onsets_without"`
	FirstMin  int      `json:"false_onsets_with_prior_in_the_first_minute"`
}

// ColdStart measures what a prior is worth: every run that has siblings, with what a store of classes knows of them.
func ColdStart(runs []*TrainingRun) (*ColdFigures, error) {
	byRecord := map[string][]*TrainingRun{}
	for _, r := range runs {
		byRecord[r.Record] = append(byRecord[r.Record], r)
	}
	f := Faults[0]
	out := &ColdFigures{Fault: f.Name}
	tries, primed, bare := map[string]float64{}, map[string]float64{}, map[string]float64{}
	var delays []float64
	for _, r := range runs {
		prior, ref, err := fromClass(r, byRecord[r.Record])
		if err != nil {
			return nil, err
		}
		if ref == nil {
			continue
		}
		for i, p := range [2]*series.Prior{prior, nil} {
			last := 0.0
			for _, x := range replayFrom(p, r, nil, Siblings, 0, ref) {
				last = x.t
				switch {
				case !x.rise:
				case i == 1:
					out.FalseBare++
				default:
					out.False++
					if x.t < 60 {
						out.FirstMin++
					}
				}
			}
			if i == 0 {
				out.Hours += last / 3600
			}
		}
		at := slices.IndexFunc(r.Rows, func(row Row) bool { return !row.Eval && row.Step > warmupSteps })
		in, ok := Injected{}, false
		if at > 0 {
			in, ok = inject(r, f, at)
		}
		if !ok {
			continue
		}
		out.N++
		tries[r.Record]++
		for i, p := range [2]*series.Prior{prior, nil} {
			ps := replayFrom(p, r, in.MS, Siblings, 0, ref)
			hit := slices.IndexFunc(ps[in.First:in.End], func(x point) bool { return x.rise })
			switch {
			case hit < 0:
			case i == 1:
				bare[r.Record]++
			default:
				primed[r.Record]++
				delays = append(delays, ps[in.First+hit].t-ps[in.First-1].t)
			}
		}
	}
	out.Primed, out.Bare = bootstrap(primed, tries), bootstrap(bare, tries)
	slices.Sort(delays)
	out.DelayP50 = finite(quantile(delays, 0.5))
	return out, nil
}

// fromClass gives a run what a store knows of the other runs of its record.
func fromClass(r *TrainingRun, record []*TrainingRun) (*series.Prior, *series.Reference, error) {
	s, err := class.New(class.Config{})
	if err != nil {
		return nil, nil, err
	}
	k := class.Key{Signature: class.Signature{Model: r.Record}, Signal: "step"}
	me := slices.Index(record, r)
	for d := 1; d < len(record) && d <= maxSiblings; d++ {
		o := record[(me+d)%len(record)]
		for i, row := range o.Rows {
			if !row.Eval && row.Step > warmupSteps {
				s.Observe(k, o.ID, int64(row.Step), int64(d)<<32+int64(i), row.MS)
			}
		}
	}
	p, ok := s.Prior(k, r.ID)
	if !ok {
		return nil, nil, nil
	}
	return &series.Prior{Noise: p.Noise, Between: p.Between, Reference: true}, s.Reference(k, r.ID), nil
}
