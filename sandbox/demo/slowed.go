package demo

import (
	"fmt"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/sandbox"
)

// Slowed is what a slow fault cost and what moving the rank saved, measured from the ranks' own logs.
type Slowed struct {
	StepBeforeS float64 `json:"step_time_before_s"`
	StepFaultS  float64 `json:"step_time_fault_s"` // right before the ranks were held to save
	StepAfterS  float64 `json:"step_time_after_s"`
	FullSpeedS  float64 `json:"full_speed_s"` // from the fault until all ranks stepped at full speed
	// SavedPerHour is how many GPU-seconds of an hour the job would have lost without the move, of one GPU a rank.
	SavedPerHour float64 `json:"gpu_seconds_saved_per_hour"`
}

// healed are the faults that the demo heals, in a fixed order.
var healed = slices.Concat(sandbox.FaultKinds, sandbox.SlowFaults)

// on is the stage that the scenario needs. To compare ranks takes a gateway, and one rack that holds the job and a node for the moved rank.
func (c Scenario) on(o StageOptions) StageOptions {
	if !c.Slow() {
		return o
	}
	o.Gateway, o.Nodes = true, nil
	for k := range PeerWorld + 1 {
		o.Nodes = append(o.Nodes, sandbox.NodeSpec{Name: fmt.Sprint("a", k+1), Rack: "rack-a", Spine: "spine-1", Zone: "zone-1", GPUCount: 8})
	}
	return o
}

const (
	paceOver  = 20  // steps that a pace is the median of
	backShare = 0.2 // of the excess that may be left when the pace is back
	slowLeast = 1.1 // what did not slow the steps by so much shows nothing
	inARow    = 5   // steps whose mean is no accident
)

// full reports whether a step is as fast as before the fault.
func (x *Slowed) full(step float64) bool {
	return step <= x.StepBeforeS+backShare*(x.StepFaultS-x.StepBeforeS)
}

// measure reads the pace of the job's steps before the fault, under it and after the move.
func (r *Result) measure(j *Job, i incident.Incident, in sandbox.Injected) {
	logs := make([][]Line, j.World)
	for rank := range logs {
		var err error
		if logs[rank], err = ReadLog(j.Dir, rank); err != nil {
			r.fail("%v", err)
			return
		}
	}
	held := heldAt(i)
	if held.IsZero() || i.ResumedStep == nil {
		r.fail("the incident does not record when the ranks were held")
		return
	}
	r.slowed(logs, in.At, held, *i.ResumedStep)
}

// heldAt is when the ranks were asked to save.
func heldAt(i incident.Incident) (at time.Time) {
	for _, n := range i.Notes {
		if n.State == incident.Cordoned && n.TookS > 0 {
			at = n.At
		}
	}
	return at
}

// slowed fills in what the logs show of a fault, of ranks that were held, and of an attempt that began after the step resumed.
func (r *Result) slowed(logs [][]Line, fault, held time.Time, resumed int64) {
	x := &Slowed{}
	r.Slowed = x
	unix := func(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
	before := func(t time.Time) func(Line) bool { return func(l Line) bool { return l.At < unix(t) } }
	own := logs[r.Rank]
	cut := slices.IndexFunc(own, func(l Line) bool { return l.At >= unix(held) && l.Step > resumed })
	if cut < 0 {
		r.fail("rank %d has logged no step after the move", r.Rank)
		return
	}
	x.StepBeforeS = pace(last(own, before(fault)))
	x.StepFaultS = pace(last(own, before(held)))
	x.StepAfterS = pace(own[cut:])
	switch {
	case x.StepBeforeS == 0 || x.StepFaultS == 0 || x.StepAfterS == 0:
		r.fail("too few steps to measure a pace: %+v", *x)
		return
	case x.StepFaultS < slowLeast*x.StepBeforeS:
		r.fail("the fault did not slow the steps: %.3f s before, %.3f s with it", x.StepBeforeS, x.StepFaultS)
	case !x.full(x.StepAfterS):
		r.fail("the pace is not back: a step takes %.3f s, %.3f s before the fault, %.3f s with it", x.StepAfterS, x.StepBeforeS, x.StepFaultS)
	}
	for rank, l := range logs {
		at := x.fullSpeed(l, unix(held), resumed)
		if at == 0 {
			r.fail("rank %d did not step at full speed", rank)
			return
		}
		x.FullSpeedS = max(x.FullSpeedS, at-unix(fault))
	}
	x.SavedPerHour = max(0, 1-x.StepAfterS/x.StepFaultS) * time.Hour.Seconds() * float64(len(logs))
}

// fullSpeed is when a rank began the first steps in a row after the move that together took no longer than before the fault; 0: there are none.
func (x *Slowed) fullSpeed(l []Line, held float64, resumed int64) float64 {
	from := slices.IndexFunc(l, func(s Line) bool { return s.At >= held && s.Step > resumed })
	if from < 0 {
		return 0
	}
	for l = l[from:]; len(l) > inARow; l = l[1:] {
		if l[inARow].Step == l[0].Step+inARow && x.full((l[inARow].At-l[0].At)/inARow) {
			return l[0].At
		}
	}
	return 0
}

// last are the last lines of a log for which a condition holds from its beginning on.
func last(l []Line, holds func(Line) bool) []Line {
	n := slices.IndexFunc(l, func(x Line) bool { return !holds(x) })
	if n < 0 {
		n = len(l)
	}
	return l[max(0, n-paceOver-1):n]
}

// pace is the median time of the last steps, in seconds; 0: there are too few.
func pace(l []Line) float64 {
	var took []float64
	for k := max(1, len(l)-paceOver); k < len(l); k++ {
		if l[k].Step == l[k-1].Step+1 {
			took = append(took, l[k].At-l[k-1].At)
		}
	}
	if len(took) < inARow {
		return 0
	}
	slices.Sort(took)
	return took[len(took)/2]
}

func (x *Slowed) write(p func(string, ...any)) {
	p("  a step took %.3f s before the fault, %.3f s with it and %.3f s after the move", x.StepBeforeS, x.StepFaultS, x.StepAfterS)
	p("  all ranks stepped at full speed %.1f s after the fault; the move saves %.0f GPU-seconds an hour", x.FullSpeedS, x.SavedPerHour)
}
