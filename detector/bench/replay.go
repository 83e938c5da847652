package bench

import (
	"math"
	"time"

	"github.com/pitcrew/pitcrew/detector/series"
)

// Mode is what the detector is given beside the values.
type Mode string

// Modes.
const (
	Told     Mode = "told"     // phase and workload
	Siblings Mode = "siblings" // earlier runs of the same record, and the phase
	Untold   Mode = "untold"   // values only
)

// point is what was said at one row.
type point struct {
	t        float64 // s
	alarm    bool
	rise     bool
	known    bool
	severity series.Severity
	joins    bool
	what     series.What
}

// replay runs one series. ms replaces the run's values where given.
func replay(r *TrainingRun, ms []float64, m Mode, asked float64, ref *series.Reference) []point {
	return replayFrom(nil, r, ms, m, asked, ref)
}

// replayFrom starts the series from a prior, if there is one.
func replayFrom(prior *series.Prior, r *TrainingRun, ms []float64, m Mode, asked float64, ref *series.Reference) []point {
	e, err := series.New(series.Config{Asked: asked})
	if err != nil {
		panic(err)
	}
	id, _ := e.Add(series.Ratio)
	if prior != nil {
		e.Prime(id, *prior)
	}
	out := make([]point, len(r.Rows))
	clock := time.Duration(0)
	was := false
	for i, row := range r.Rows {
		v := row.MS
		if ms != nil {
			v = ms[i]
		}
		x := series.Sample{V: v}
		if row.Eval {
			if m == Untold || math.IsNaN(v) {
				out[i] = point{t: clock.Seconds(), alarm: was}
				continue
			}
			x.T, x.Phase = int64(clock)+int64(time.Microsecond), 1
		} else {
			if !math.IsNaN(v) {
				clock += time.Duration(v * float64(time.Millisecond))
			}
			x.T = int64(clock)
		}
		if m != Untold {
			x.Told = true
			if row.Step <= warmupSteps {
				x.Phase = series.Warmup
			}
		}
		switch m {
		case Told:
			x.Workload = r.Workload[i]
		case Siblings:
			if !row.Eval {
				x.Ref, x.Workload = ref.At(row.Step), ref.Work(row.Step)
			}
		}
		v1 := e.Observe(id, x)
		p := point{t: clock.Seconds(), alarm: v1.Alarm, rise: v1.Alarm && !was, known: v1.Known}
		if p.rise {
			f := e.Finding(id)
			p.severity, p.joins, p.what = f.Severity, f.Joins, f.What
		}
		out[i], was = p, v1.Alarm
	}
	return out
}
