package job

import (
	"math"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

// Sample is what is known of one step of one rank, or a part of it: what a device tells comes some steps later. Times are in seconds,
// NaN where they are not known (yet).
type Sample struct {
	Job    string // its UID; empty: the pod is all there is of it
	Role   string // of parallel training: pipeline stage, tensor index, kind of worker; empty: all ranks do the same
	Target event.Target
	Step   int64     // -1: the one that ended at Time
	Time   time.Time // of the step's end, by the clock of the rank's node; all parts of a step have the same
	Stands bool      // no step ended: the rank is still at Step at this time

	Duration float64 // of the step
	Wait     float64 // of it, for other ranks
	Compute  float64 // of it, neither for other ranks nor for data
	Rate     float64 // samples or tokens a second
	Launch   float64 // from issuing the step's first work to its start on the accelerator
}

// Signal is what ranks are compared on. The duration of a step is none: in a synchronous job it is the same for all.
type Signal uint8

// The signals, in the order in which they are asked.
const (
	Compute       Signal = iota
	Communication        // the culprit waits least, so what is compared is the step without the wait
	Launch
	signals
)

// table says how each signal is named and made; metric is what a PromQL expression reads, floor is what was added to its values.
var table = [signals]struct {
	name, says string
	floor      float64
	metric     func(selector string) string
	value      func(times) float64
}{
	{"compute", semconv.TrainComputeDuration, 0, over("pitcrew_train_compute_duration_seconds"), func(s times) float64 { return s.compute }},
	{
		"communication", "pitcrew.train.step.duration - pitcrew.train.communication.wait", 0,
		func(sel string) string {
			return over("pitcrew_train_step_duration_seconds")(sel) + " - " + over("pitcrew_train_communication_wait_seconds")(sel)
		},
		func(s times) float64 { return s.duration - s.wait },
	},
	{
		"launch", semconv.TrainLaunchLatency, launchFloor, over("pitcrew_train_launch_latency_seconds"),
		func(s times) float64 { return s.launch + launchFloor },
	},
}

// times are those of a sample. They are handed on by value: a sample that a table's functions saw could not stay on the stack.
type times struct{ compute, duration, wait, launch float64 }

func over(metric string) func(string) string {
	return func(selector string) string { return "avg_over_time(" + metric + "{" + selector + "}[1m])" }
}

// launchFloor, in seconds, is added to launch latencies before their ratios are taken: ten times of next to nothing is no matter.
const launchFloor = 0.02

func (s Signal) String() string { return table[s].name }

// of is the value of a sample as it is compared, NaN where there is none.
func (s Signal) of(x *Sample) float64 {
	v := table[s].value(times{x.Compute, x.Duration, x.Wait, x.Launch})
	if !(v > 0) || math.IsInf(v, 0) {
		return math.NaN()
	}
	return v
}

// maxText bounds names that a pod chooses: job and role.
const maxText = 128

// sound reports whether the sample names a rank and a step that can be.
func (s *Sample) sound() bool {
	t := s.Target
	return t.PodUID != "" && t.Rank != nil && *t.Rank >= 0 && t.WorldSize > *t.Rank && s.Step >= -1 && !s.Time.IsZero() &&
		len(s.Job) <= maxText && len(s.Role) <= maxText && len(t.PodUID) <= maxText
}

// compares reports whether the sample has a value that is compared.
func (s *Sample) compares() bool {
	for k := range table {
		if !math.IsNaN(Signal(k).of(s)) {
			return true
		}
	}
	return false
}
