package incident

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// current are the gang's present ranks of the attempt that is to step again.
func (v *view) current(ctx context.Context) checkpoint.Gang {
	replaced := map[string]bool{}
	for _, mv := range v.Moves {
		replaced[mv.OldUID] = true
	}
	for _, uid := range v.Replaced {
		replaced[uid] = true
	}
	live, _ := v.e.Checkpoint.Observe(ctx, members(v.gang, func(m cluster.Member) bool { return replaced[m.PodUID] || m.Deleting }))
	if v.Path == launcherPath && live.Attempt != v.Attempt {
		return checkpoint.Gang{Fallen: live.Fallen}
	}
	return live
}

// fallsFor is how long a worker's end is looked at before the incident acts on it: a fault of the hardware that ended it may be found by then.
const fallsFor = time.Second

// fallen looks for a worker that ended while the attempt came up, which may be before anything but its launcher knew it. What is transient
// at a start (a port that is taken, a peer that just left) is gone at a second try, so that is made at once; what is not gets the time
// that the plan gives it.
func (v *view) fallen(live checkpoint.Gang) *Result {
	k := slices.IndexFunc(live.Fallen, func(f checkpoint.Fallen) bool { return f.Attempt == v.Incident.Attempt })
	switch {
	case k < 0 || v.Restarts > 1 || v.Path != launcherPath:
		return nil
	case v.d.starting.IsZero():
		v.d.starting = v.now
	case v.now.Sub(v.d.starting) >= fallsFor:
		return result(PlanAgain(fmt.Sprintf("a worker ended while the attempt came up: on %s, its pod's log says why", live.Fallen[k].Node), 0))
	}
	return nil
}

// every reports whether every rank of the world is there and passes.
func every(live checkpoint.Gang, world int, passes func(rank int) bool) bool {
	for rank := range world {
		if _, there := live.Ranks[rank]; !there || !passes(rank) {
			return false
		}
	}
	return world > 0
}

// late reports whether the plan's time for the present step is over.
func (v *view) late() bool { return v.now.Sub(v.StateAt) >= v.Plan.within() }

// resume waits until every rank has loaded a checkpoint and says from which step it goes on.
func resume(ctx context.Context, v *view) Result {
	if v.gang == nil || !v.Plan.Has(policy.RestartJob) {
		return GoOn(Resumed, "no job to resume")
	}
	live := v.current(ctx)
	if r := v.fallen(live); r != nil {
		return *r
	}
	world := max(v.WorldSize, live.World)
	if every(live, world, func(rank int) bool { return live.Ranks[rank].ResumedStep != nil }) {
		from := *live.Ranks[0].ResumedStep
		return GoOn(Resumed, fmt.Sprintf("from step %d", from), func(i *Incident) {
			lost := max(0, i.MaxStep-from)
			i.WorldSize, i.ResumedStep, i.LostSteps = world, &from, &lost
		})
	}
	switch {
	case !v.late():
		return WaitFor(ReasonStepping, "", stepEvery)
	case world == 0: // to kill it again would not make it speak
		return Close(Failed, "the job was restarted, but none of its ranks carries the hook, so nobody can say whether it steps")
	}
	return PlanAgain(fmt.Sprintf("not every rank was back within %s", v.Plan.within()), 0)
}

// verify waits until every rank has finished a step past the one it resumed from: only then does the job step again.
func verify(ctx context.Context, v *view) Result {
	if v.gang == nil || !v.Plan.Has(policy.RestartJob) {
		return GoOn(Verified, "nothing was restarted")
	}
	live := v.current(ctx)
	if r := v.fallen(live); r != nil {
		return *r
	}
	stepped := every(live, v.WorldSize, func(rank int) bool {
		r := live.Ranks[rank]
		lives := r.Exit == "clean" || r.Connected && r.Exit != "exception" // not one that stepped and died
		return lives && r.Step > *v.ResumedStep
	})
	switch {
	case stepped && v.Plan.ByPace && v.Pace != nil:
		return v.verifyPace(ctx, live)
	case stepped:
		now := v.e.Now()
		return GoOn(Verified, fmt.Sprintf("all %d ranks stepped past %d", v.WorldSize, *v.ResumedStep), func(i *Incident) { i.FirstStep = &now })
	case v.late():
		return PlanAgain(fmt.Sprintf("not every rank stepped within %s", v.Plan.within()), 0)
	}
	return WaitFor(ReasonStepping, "", stepEvery)
}

// finish closes; what was reserved is given back by that.
func finish(_ context.Context, v *view) Result {
	switch {
	case v.Job == nil:
		return Close(Quarantined, "no job ran there")
	case !v.Plan.Has(policy.RestartJob):
		return Close(Quarantined, "no job had to be restarted")
	}
	text := fmt.Sprintf("stepping again from step %d, %s lost, %.1f s after it began", *v.ResumedStep, count(*v.LostSteps, "step"), v.FirstStep.Sub(v.Began()).Seconds())
	job := cluster.Ref{APIVersion: v.Job.APIVersion, Kind: v.Job.Kind, Namespace: v.Job.Namespace, Name: v.Job.Name, UID: v.Job.UID}
	return Close(Recovered, text).tells(func(ctx context.Context) { v.tell(ctx, job, "Normal", "PitcrewRecovered", text) })
}
