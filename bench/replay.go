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
	f := feed{run: r, ms: ms, mode: m, ref: ref}
	was := false
	for i := range r.Rows {
		x, given := f.next()
		if !given {
			out[i] = point{t: f.clock.Seconds(), alarm: was}
			continue
		}
		v := e.Observe(id, x)
		p := point{t: f.clock.Seconds(), alarm: v.Alarm, rise: v.Alarm && !was, known: v.Known}
		if p.rise {
			f := e.Finding(id)
			p.severity, p.joins, p.what = f.Severity, f.Joins, f.What
		}
		out[i], was = p, v.Alarm
	}
	return out
}

// feed makes the samples of a run, row by row.
type feed struct {
	run   *TrainingRun
	ms    []float64 // in place of the run's, where given
	mode  Mode
	ref   *series.Reference
	clock time.Duration
	at    int
}

// next gives the sample of the next row; given is false for an evaluation that nobody told of.
func (f *feed) next() (x series.Sample, given bool) {
	row := f.run.Rows[f.at]
	x.V = row.MS
	if f.ms != nil {
		x.V = f.ms[f.at]
	}
	work := f.run.Workload[f.at]
	f.at++
	if row.Eval {
		if f.mode == Untold || math.IsNaN(x.V) {
			return x, false
		}
		x.T, x.Phase = int64(f.clock)+int64(time.Microsecond), 1
	} else {
		if !math.IsNaN(x.V) {
			f.clock += time.Duration(x.V * float64(time.Millisecond))
		}
		x.T = int64(f.clock)
	}
	if f.mode != Untold {
		x.Told = true
		if row.Step <= warmupSteps {
			x.Phase = series.Warmup
		}
	}
	switch f.mode {
	case Told:
		x.Workload = work
	case Siblings:
		if !row.Eval {
			x.Ref, x.Workload = f.ref.At(row.Step), f.ref.Work(row.Step)
		}
	}
	return x, true
}
