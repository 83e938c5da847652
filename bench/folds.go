package bench

import (
	"hash/fnv"

	"github.com/pitcrew/pitcrew/detector/series"
)

// FoldFigures are the told and the siblings' figures of one half of the records. The constants were chosen on both halves together, so
// the folds show how much a figure depends on which records it is taken from; neither was held out.
type FoldFigures struct {
	Fold    int         `json:"fold"`
	Records int         `json:"records"`
	Modes   []FoldModes `json:"modes"`
}

// FoldModes are some of a mode's figures.
type FoldModes struct {
	Mode        Mode           `json:"mode"`
	Runs        int            `json:"runs"`
	Hours       float64        `json:"hours"`
	FalseOnsets int            `json:"false_onsets"`
	Faults      []FaultFigures `json:"faults"`
}

// foldOf a record is by its name, so that it is the same in every run of the benchmark.
func foldOf(record string) int {
	h := fnv.New32a()
	h.Write([]byte(record))
	return int(h.Sum32()>>7) % 2
}

func folds(runs []*TrainingRun, past map[string]*series.Reference) (out []FoldFigures) {
	for k := range 2 {
		f := FoldFigures{Fold: k}
		records := map[string]bool{}
		var all, related []*TrainingRun
		for _, r := range runs {
			if foldOf(r.Record) != k {
				continue
			}
			records[r.Record] = true
			all = append(all, r)
			if past[r.ID] != nil {
				related = append(related, r)
			}
		}
		f.Records = len(records)
		for _, m := range []struct {
			mode   Mode
			runs   []*TrainingRun
			faults []Fault
		}{{Told, all, Faults}, {Siblings, related, []Fault{Faults[0], Subtle}}} {
			g := FoldModes{Mode: m.mode, Runs: len(m.runs)}
			for _, r := range m.runs {
				ps := replay(r, nil, m.mode, 0, past[r.ID])
				g.Hours += ps[len(ps)-1].t / 3600
				for _, p := range ps {
					if p.rise {
						g.FalseOnsets++
					}
				}
			}
			for _, x := range m.faults {
				g.Faults = append(g.Faults, fault(m.mode, x, m.runs, past))
			}
			f.Modes = append(f.Modes, g)
		}
		out = append(out, f)
	}
	return out
}
