package job

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/pitcrew/pitcrew/detector/series"
	"github.com/pitcrew/pitcrew/event"
)

// against is a finding that a job is slower than its class. A level that stays is accepted by the judge, and the finding stays open:
// what the run shows then is still not what its class is to learn.
type against struct {
	a               *attempt
	onset           time.Time
	step            int64
	level           float64 // of siblings at the last step
	value, expected float64 // of the last step
	lower, upper    float64
	score           float64
	shape           series.What
	accepted        bool
	steps           float64
	sum             float64 // of the logarithms of their ratios
	lost            float64 // GPU-seconds
	samples         []event.Sample
	report          *report // nil: it was not said yet
}

func (x *against) ratio() float64 { return math.Exp(x.sum / max(1, x.steps)) }

// judge compares a step of the job with what siblings showed at it.
func (c *classed) judge(now time.Time, a *attempt, step int64, took float64) {
	e := a.e.classes
	level := c.level(step)
	if level == 0 {
		if c.beyond++; c.beyond == classBeyond && c.found != nil {
			c.over(now, a, "no sibling went as far as this")
		}
		return
	}
	c.beyond = 0
	x := series.Sample{T: int64(c.clock * 1e9), V: took, Told: true, Ref: float32(level), Workload: c.ref.Work(int(min(step, math.MaxInt32)))}
	if e.blind {
		x.Told, x.Ref, x.Workload = false, 0, 0
	}
	v := e.judge.Observe(c.id, x)
	f := e.judge.Finding(c.id)
	switch {
	case v.Change == series.Opened && f.Ratio > 1: // a run that is faster than its siblings is no fault
		if x := c.found; x != nil && x.report != nil && len(x.report.acks) > 0 {
			break // someone knows
		}
		if c.found != nil {
			c.over(now, a, "it became slower still")
		}
		c.begin(a, f)
	case v.Change == series.Accepted && c.found != nil:
		c.found.accepted = true
	case v.Change == series.Cleared && c.found != nil:
		c.over(now, a, "it is as fast as its siblings again")
	}
	if c.found != nil {
		c.follow(now, a, took, level)
	}
}

func (c *classed) begin(a *attempt, f *series.Finding) {
	x := &against{a: a, expected: f.Expected, lower: f.Lower, upper: f.Upper, score: f.Score, shape: f.What, onset: c.marks[0].at, step: c.marks[0].step}
	for _, m := range c.marks {
		if m.clock > f.Onset {
			x.onset, x.step = m.at, m.step
			break
		}
	}
	for _, l := range c.held { // what it took before it was seen
		if l.step >= x.step {
			x.lost += max(0, l.took-f.Expected) * float64(a.world)
		}
	}
	c.found = x
	a.open++
}

// follow keeps a finding by the newest step, and says it once it has lasted: one long step is no slowdown.
func (c *classed) follow(now time.Time, a *attempt, took, level float64) {
	x := c.found
	if x.level > 0 { // the schedule goes on beneath it
		change := level / x.level
		x.expected, x.lower, x.upper = x.expected*change, x.lower*change, x.upper*change
	}
	x.level, x.value = level, took
	x.steps++
	x.sum += math.Log(took / x.expected)
	x.lost += max(0, took-x.expected) * float64(a.world)
	at := c.marks[len(c.marks)-1].at
	if len(x.samples) >= event.MaxSamples {
		x.samples = x.samples[1:]
	}
	x.samples = append(x.samples, event.Sample{S: round3(at.Sub(x.onset).Seconds()), V: took})
	if x.report == nil && at.Sub(x.onset) >= brief {
		x.report = a.e.open(now, x, causes[slowdown].Signal()+" "+a.subject("class"), c.say(now, a))
	}
}

func (c *classed) say(now time.Time, a *attempt) event.Event {
	x, e, k, cause := c.found, a.e, a.key, causes[slowdown]
	t := event.Target{Cluster: e.o.Cluster, WorldSize: a.world, Attempt: a.told(), Job: jobOf(k), PodUID: a.anyPod()}
	out := event.Event{
		ID:     event.NewID("//"+e.o.Cluster+"/job/"+k.job, strconv.Itoa(k.attempt), cause.Signal(), "class", "-", strconv.FormatInt(x.step, 10)),
		Source: event.GatewaySource(e.o.Cluster, e.o.Gateway, "detector"), Type: event.Anomaly, Time: now,
		Data: event.Data{Target: t, Cause: cause, Severity: severities[slowdown], Evidence: x.evidence(now, event.StateOpen), Onset: x.onset},
	}
	if t.Job != nil {
		out.Subject = "job/" + t.Job.UID
	}
	return out
}

func (x *against) evidence(now time.Time, state event.State) event.Evidence {
	c := &x.a.class
	if x.accepted && state == event.StateOpen {
		state = event.StateAccepted
	}
	return event.Evidence{
		Signal: classSignal, Unit: "s", Value: num(x.value), Expected: num(x.expected), Lower: num(x.lower), Upper: num(x.upper), Score: num(x.score),
		Ratio: num(x.ratio()), Baseline: fmt.Sprintf("class(%d)", c.runs), BaselineSamples: c.steps, State: state, Shape: x.shape.String(), Asked: series.AskedShipped,
		DurationS: round3(now.Sub(x.onset).Seconds()), LostGPUSeconds: round3(x.lost), Samples: x.samples, PromQL: x.promQL(),
		Raw: fmt.Sprintf("the job is slower than its class from step %d on: %.4g s a step, expected %.4g s (×%.2f) by %d earlier runs of %s at the same steps; %.3g GPU-seconds lost so far",
			x.step, x.value, x.expected, x.ratio(), c.runs, describe(&c.key), x.lost),
	}
}

// promQL fires on much the same while the schedule stays as it is: siblings' steps are not in it.
func (x *against) promQL() string {
	return fmt.Sprintf("quantile by (pitcrew_job_uid) (0.5, avg_over_time(pitcrew_train_step_duration_seconds{pitcrew_job_uid=%q}[1m])) > %.4g", x.a.class.run, x.expected*math.Sqrt(max(1.02, x.ratio())))
}

// over ends the finding.
func (c *classed) over(now time.Time, a *attempt, why string) {
	x := c.found
	a.open--
	c.found = nil
	if x.report == nil {
		a.e.counts.Brief++
		return
	}
	ev := x.evidence(now, event.StateCleared)
	ev.Samples = nil
	ev.Raw = why + fmt.Sprintf("; %.3g GPU-seconds were lost", x.lost)
	a.e.close(now, x.report, ev)
}

// anyPod is a pod by which the job is found, where its own name is not known: the one of its lowest rank.
func (a *attempt) anyPod() string {
	var first *member
	for _, m := range a.members {
		if first == nil || m.rank < first.rank {
			first = m
		}
	}
	if first == nil {
		return ""
	}
	return first.target.PodUID
}
