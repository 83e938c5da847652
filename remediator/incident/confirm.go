package incident

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// correlate looks once at the live state: what the gang is, how far it is, and whether the event still holds.
func (d *driver) correlate(ctx context.Context) error {
	g, ok, err := d.gang(ctx)
	if !ok || err != nil {
		return err
	}
	i := d.snapshot()
	if g == nil {
		return d.to(ctx, Correlated, "no job runs on "+i.Faults[0].Node, nil)
	}
	record, err := d.attempt(ctx, g)
	if err != nil {
		return err
	}
	holding, live, why := d.confirm(ctx, i, g, record)
	if len(holding) == 0 {
		return d.closes(ctx, NotConfirmed, why)
	}
	judged := len(i.Faults)
	world, nproc, path := layout(g, live, record)
	text := fmt.Sprintf("%s %s/%s: %d pods, %d ranks, attempt %d at step %d", i.Job.Kind, i.Job.Namespace, i.Job.Name, len(g.Members), world, live.Attempt, live.MaxStep)
	return d.to(ctx, Correlated, text, func(i *Incident) {
		i.Faults = append(holding, i.Faults[judged:]...) // a refuted one is not to stand in the way of a checkpoint
		i.WorldSize, i.NProc, i.Path = world, nproc, path
		i.MaxStep, i.Attempt = max(i.MaxStep, live.MaxStep), max(i.Attempt, live.Attempt, record.Attempt)
	})
}

// attempt is the job's record in the attempts bucket, the zero value when it has none.
func (d *driver) attempt(ctx context.Context, g *cluster.Gang) (bus.Attempt, error) {
	a, _, err := d.e.Attempts.Get(ctx, g.Job.UID)
	if errors.Is(err, bus.ErrNotFound) {
		return bus.Attempt{}, nil
	}
	return a, err
}

// layout is how the ranks lie on the pods: as the ranks say, else as the launchers or the last attempt's record say. A launcher's job
// of which nobody knows that begins anew as a whole, since an attempt of the wrong size never comes about. It can do so only where no
// record keeps new pods waiting; where there is one, it says the layout.
func layout(g *cluster.Gang, live checkpoint.Gang, record bus.Attempt) (world, nproc int, path string) {
	size := max(1, g.Size)
	switch {
	case live.World > 0 && live.World%size == 0:
		nproc = live.World / size
	case record.NProc > 0:
		nproc = record.NProc
	default:
		nproc = live.NProc
	}
	if world = live.World; world == 0 {
		world = nproc * size
	}
	if g.Launcher && nproc > 0 && (live.World%size == 0 || record.Attempt > 0) {
		return world, nproc, launcherPath
	}
	return world, nproc, recreatePath
}

// confirm gives the incident's faults that live state bears out, and why the others are not.
func (d *driver) confirm(ctx context.Context, i Incident, g *cluster.Gang, record bus.Attempt) (holding []Fault, live checkpoint.Gang, why string) {
	live, missing := d.e.Checkpoint.Observe(ctx, members(g, nil))
	for _, f := range i.Faults {
		ok, reason := confirmed(f, g, live, missing, record)
		if ok {
			holding = append(holding, f)
		} else if why == "" {
			why = reason
		}
	}
	return holding, live, why
}

// confirmed asks for a second witness before a rank's fault acts: rings, processes and peers as they are now. Faults of
// hardware come from the driver and need none; a lost node is confirmed again right before its pod is replaced.
func confirmed(f Fault, g *cluster.Gang, live checkpoint.Gang, missing map[string]error, record bus.Attempt) (bool, string) {
	if f.Rank == nil || !strings.HasPrefix(f.Signal, "rank/") {
		return true, ""
	}
	r, there := live.Ranks[*f.Rank]
	pod := slices.IndexFunc(g.Members, func(m cluster.Member) bool { return m.PodUID == f.PodUID })
	switch {
	case f.Attempt != nil && max(live.Attempt, record.Attempt) > *f.Attempt:
		return false, fmt.Sprintf("the job is at attempt %d by now, the event is about attempt %d", max(live.Attempt, record.Attempt), *f.Attempt)
	case pod < 0:
		return false, fmt.Sprintf("the pod of rank %d has been replaced already", *f.Rank)
	case missing[f.PodUID] != nil || !there:
		return true, "" // nothing speaks against it
	}
	if f.Signal == "rank/dead" {
		if r.Connected && r.Exit == "running" {
			return false, fmt.Sprintf("rank %d answers and runs", *f.Rank)
		}
		return true, ""
	}
	if strings.ContainsAny(r.ProcState, "TtZX") { // stopped, traced or dead: the kernel is the second witness
		return true, ""
	}
	for n, peer := range live.Ranks {
		if n != *f.Rank && peer.StepAgeS > 3*max(peer.P99StepS, 0.1) {
			return r.HeartbeatAgeS > 1, fmt.Sprintf("rank %d beats again", *f.Rank)
		}
	}
	return len(live.Ranks) == 1 && r.HeartbeatAgeS > 2, fmt.Sprintf("rank %d seems hung but no peer waits for it", *f.Rank)
}

// stallFloor is the least time without a step that speaks for a stalled peer.
const stallFloor = 700 * time.Millisecond

// PeersStalled asks the surviving ranks of a gang whether they stand still beyond their own pace: the witness of a lost node. Where no
// surviving rank can be read, known is false.
func (e *Engine) PeersStalled(ctx context.Context, g cluster.Gang, node string) (stalled, known bool) {
	live, _ := e.Checkpoint.Observe(ctx, members(&g, func(m cluster.Member) bool { return m.Node == node }))
	for _, r := range live.Ranks {
		limit := max(stallFloor, time.Duration(3*r.P99StepS*float64(time.Second)))
		stalled = stalled || r.Section != "setup" && r.StepAgeS > limit.Seconds()
	}
	return stalled, len(live.Ranks) > 0
}
