package incident

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// current are the gang's present ranks of the attempt that is to step again. It has none when the incident has closed.
func (d *driver) current(ctx context.Context) (checkpoint.Gang, error) {
	g, ok, err := d.gang(ctx)
	if !ok || err != nil {
		return checkpoint.Gang{}, err
	}
	i := d.snapshot()
	replaced := map[string]bool{}
	for _, mv := range i.Moves {
		replaced[mv.OldUID] = true
	}
	live, _ := d.e.Checkpoint.Observe(ctx, members(g, func(m cluster.Member) bool { return replaced[m.PodUID] || m.Deleting }))
	if i.Path == launcherPath && live.Attempt != i.Attempt {
		return checkpoint.Gang{Fallen: live.Fallen}, nil
	}
	return live, nil
}

// fallsFor is how long a worker's end is looked at before the incident acts on it: a fault of the hardware that ended it may be found by then.
const fallsFor = time.Second

var errFallen = errors.New("a worker ended while the attempt came up")

// fallen looks for a worker that ended while the attempt came up, which may be before anything but its launcher knew it. What is transient
// at a start (a port that is taken, a peer that just left) is gone at a second try, so that is made at once; what is not gets the time
// that the plan gives it.
func (d *driver) fallen() func(checkpoint.Gang) error {
	var since time.Time
	return func(live checkpoint.Gang) error {
		i := d.snapshot()
		k := slices.IndexFunc(live.Fallen, func(f checkpoint.Fallen) bool { return f.Attempt == i.Attempt })
		switch {
		case k < 0 || i.Restarts > 1 || i.Path != launcherPath:
			return nil
		case since.IsZero():
			since = d.e.Now()
		case d.e.Now().Sub(since) >= fallsFor:
			return fmt.Errorf("%w: on %s, its pod's log says why", errFallen, live.Fallen[k].Node)
		}
		return nil
	}
}

// all reports whether every rank of the world is there and passes.
func all(live checkpoint.Gang, world int, passes func(rank int) bool) bool {
	for rank := range world {
		if _, there := live.Ranks[rank]; !there || !passes(rank) {
			return false
		}
	}
	return world > 0
}

// resume waits until every rank has loaded a checkpoint and says from which step it goes on.
func (d *driver) resume(ctx context.Context) error {
	i := d.snapshot()
	if i.Job == nil || !i.Plan.Restart {
		return d.to(ctx, Resumed, "no job to resume", nil)
	}
	var live checkpoint.Gang
	world, fallen := i.WorldSize, d.fallen()
	err := d.until(ctx, i.Plan.within(), stepEvery, func() (done bool, err error) {
		if live, err = d.current(ctx); err != nil || !d.now.Load().Open() {
			return true, err
		}
		if err := fallen(live); err != nil {
			return false, err
		}
		world = max(i.WorldSize, live.World)
		return all(live, world, func(rank int) bool { return live.Ranks[rank].ResumedStep != nil }), nil
	})
	switch {
	case errors.Is(err, errTimeout) && world == 0: // to kill it again would not make it speak
		return d.closes(ctx, Failed, "the job was restarted, but none of its ranks carries the hook, so nobody can say whether it steps")
	case errors.Is(err, errTimeout):
		return d.again(ctx, fmt.Sprintf("not every rank was back within %s", i.Plan.within()), 0)
	case errors.Is(err, errFallen):
		return d.again(ctx, err.Error(), 0)
	case err != nil || !d.now.Load().Open():
		return err
	}
	from := *live.Ranks[0].ResumedStep
	return d.to(ctx, Resumed, fmt.Sprintf("from step %d", from), func(i *Incident) {
		lost := max(0, i.MaxStep-from)
		i.WorldSize, i.ResumedStep, i.LostSteps = world, &from, &lost
	})
}

// within is how long the job may take to step again.
func (p *Plan) within() time.Duration {
	if p.VerifyWithin <= 0 {
		return time.Minute
	}
	return p.VerifyWithin
}

// verify waits until every rank has finished a step past the one it resumed from: only then does the job step again.
func (d *driver) verify(ctx context.Context) error {
	i := d.snapshot()
	if i.Job == nil || !i.Plan.Restart {
		return d.to(ctx, Verified, "nothing was restarted", nil)
	}
	fallen := d.fallen()
	err := d.until(ctx, i.Plan.within(), stepEvery, func() (bool, error) {
		live, err := d.current(ctx)
		if err != nil || !d.now.Load().Open() {
			return true, err
		}
		if err := fallen(live); err != nil {
			return false, err
		}
		return all(live, i.WorldSize, func(rank int) bool {
			r := live.Ranks[rank]
			lives := r.Exit == "clean" || r.Connected && r.Exit != "exception" // not one that stepped and died
			return lives && r.Step > *i.ResumedStep
		}), nil
	})
	switch {
	case errors.Is(err, errTimeout):
		return d.again(ctx, fmt.Sprintf("not every rank stepped within %s", i.Plan.within()), 0)
	case errors.Is(err, errFallen):
		return d.again(ctx, err.Error(), 0)
	case err != nil || !d.now.Load().Open():
		return err
	}
	now := d.e.Now()
	return d.to(ctx, Verified, fmt.Sprintf("all %d ranks stepped past %d", i.WorldSize, *i.ResumedStep), func(i *Incident) { i.FirstStep = &now })
}

// finish closes; what was reserved is given back by that.
func (d *driver) finish(ctx context.Context) error {
	i := d.snapshot()
	switch {
	case i.Job == nil:
		return d.closes(ctx, Quarantined, "no job ran there")
	case !i.Plan.Restart:
		return d.closes(ctx, Quarantined, "no job had to be restarted")
	}
	text := fmt.Sprintf("stepping again from step %d, %s lost, %.1f s after it began", *i.ResumedStep, count(*i.LostSteps, "step"), i.FirstStep.Sub(i.Began()).Seconds())
	if err := d.closes(ctx, Recovered, text); err != nil {
		return err
	}
	job := cluster.Ref{APIVersion: i.Job.APIVersion, Kind: i.Job.Kind, Namespace: i.Job.Namespace, Name: i.Job.Name, UID: i.Job.UID}
	d.e.wg.Go(func() { d.tell(ctx, job, "Normal", "PitcrewRecovered", text) })
	return nil
}
