package incident

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

const (
	appearWithin = 2 * time.Minute // a replacement pod, from eviction to running
	stepEvery    = 50 * time.Millisecond
	evictGrace   = 1 // seconds: what could be saved is saved
	portBase     = 20000
	portRange    = 10000
)

// restart begins the next attempt: survivors stay with the launcher, all pods are replaced without it.
func (d *driver) restart(ctx context.Context) error {
	g, ok, err := d.gang(ctx)
	if !ok || err != nil {
		return err
	}
	i := d.snapshot()
	if g == nil || !i.Plan.Restart {
		return d.to(ctx, Restarted, "no job to restart", nil)
	}
	if err := d.stillAllowed(ctx, i); err != nil {
		return err
	}
	if !g.Launcher {
		return d.recreate(ctx, g, i)
	}
	attempt, err := d.beginAttempt(ctx, g, i)
	if err != nil {
		return err
	}
	if err := d.replace(ctx, g, i, attempt); err != nil {
		return err
	}
	return d.to(ctx, Restarted, fmt.Sprintf("attempt %d, %d of %d pods replaced", attempt, len(i.Moves), len(g.Members)), func(i *Incident) {
		i.Attempt = attempt
		i.Restarts++
	})
}

// beginAttempt writes the record that the agents reconcile their launchers with. Written before any pod is touched, it fences
// the older attempt: its workers are ended, a late one cannot come back.
func (d *driver) beginAttempt(ctx context.Context, g *cluster.Gang, i Incident) (int, error) {
	for {
		a, rev, err := d.e.Attempts.Get(ctx, g.Job.UID)
		if err != nil && !errors.Is(err, bus.ErrNotFound) {
			return 0, err
		}
		tag := fmt.Sprintf("%s/%d.%d", i.ID, i.Round, i.Restarts)
		if rev > 0 && a.Incident == tag { // this very step, before a crash
			return a.Attempt, nil
		}
		next := bus.Attempt{
			Job: g.Job, Attempt: max(a.Attempt, i.Attempt) + 1, Incident: tag, NProc: i.NProc, WorldSize: i.NProc * g.Size,
		}
		next.MasterPort = port(g.Job.UID, next.Attempt)
		for _, m := range g.Members {
			place := bus.Member{NodeRank: m.Index, Node: m.Node, PodUID: m.PodUID}
			if k := slices.IndexFunc(i.Moves, func(v Move) bool { return v.Index == m.Index }); k >= 0 {
				place = bus.Member{NodeRank: m.Index, Node: i.Moves[k].To}
			} else if m.Index == 0 {
				next.MasterAddr = m.PodIP
			}
			next.Members = append(next.Members, place)
		}
		if _, err = d.e.Attempts.Put(ctx, g.Job.UID, next, rev); err == nil {
			return next.Attempt, nil
		}
		if !errors.Is(err, bus.ErrConflict) {
			return 0, err
		}
	}
}

// port spreads attempts over a range below the kernel's ephemeral ports, so that a new attempt never meets a port that the
// last one's sockets still hold.
func port(job string, attempt int) int {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s/%d", job, attempt)
	return portBase + int(h.Sum32()%portRange)
}

// replace moves the faulty pods and gives their replacements the free places of the attempt.
func (d *driver) replace(ctx context.Context, g *cluster.Gang, i Incident, attempt int) error {
	for _, mv := range i.Moves {
		m := g.Member(mv.Index)
		force := d.unreachable(ctx, i, mv.From)
		if m.PodUID == mv.OldUID && (!m.Deleting || force) {
			o := cluster.ReplaceOptions{FastReplace: i.Plan.FastReplace, GraceSeconds: evictGrace, Incident: i.ID, Force: force}
			if _, err := d.e.Cluster.ReplacePod(ctx, m, o); err != nil && !errors.Is(err, cluster.ErrStale) && !errors.Is(err, cluster.ErrFinished) {
				return err
			}
		}
	}
	return d.until(ctx, appearWithin, watchEvery, func() (bool, error) {
		g, err := d.e.Cluster.Gang(ctx, g.Job)
		if err != nil {
			return false, err
		}
		return d.seat(ctx, &g, i, attempt)
	})
}

// unreachable reports that no kubelet will end the pod: the node was found lost, and right now its kubelet still does not answer.
// What may still run there is fenced by the attempt: it cannot join, report, or have a checkpoint admitted.
func (d *driver) unreachable(ctx context.Context, i Incident, node string) bool {
	wasLost := slices.ContainsFunc(i.Faults, func(f Fault) bool { return f.Signal == "node/lost" && f.Node == node })
	return wasLost && d.e.Cluster.ProbeKubelet(ctx, node) != nil
}

// seat fills the attempt's empty places with replacement pods as they appear, and reports whether all are filled and the
// master's address is known.
func (d *driver) seat(ctx context.Context, g *cluster.Gang, i Incident, attempt int) (bool, error) {
	a, rev, err := d.e.Attempts.Get(ctx, g.Job.UID)
	if err != nil {
		return false, err
	}
	if a.Attempt != attempt {
		return false, errLost
	}
	changed, full := false, true
	for k, place := range a.Members {
		m := g.Member(place.NodeRank)
		mine := slices.IndexFunc(i.Moves, func(v Move) bool { return v.Index == place.NodeRank })
		fresh := mine >= 0 && m.PodUID != "" && m.PodUID != i.Moves[mine].OldUID && !m.Deleting
		if fresh && m.Node != "" && place.PodUID != m.PodUID {
			if m.Node != i.Moves[mine].To && d.strayed(ctx, m, i) {
				return false, nil
			}
			a.Members[k].PodUID, a.Members[k].Node, changed = m.PodUID, m.Node, true
		}
		if place.NodeRank == 0 && a.MasterAddr == "" && fresh && m.PodIP != "" {
			a.MasterAddr, changed = m.PodIP, true
		}
		full = full && a.Members[k].PodUID != ""
	}
	if changed {
		if _, err := d.e.Attempts.Put(ctx, g.Job.UID, a, rev); err != nil && !errors.Is(err, bus.ErrConflict) {
			return false, err
		} else if err != nil {
			return false, nil
		}
		err := d.change(ctx, func(i *Incident) { seatMoves(i, g) })
		if err != nil {
			return false, err
		}
	}
	return full && a.MasterAddr != "", nil
}

func seatMoves(i *Incident, g *cluster.Gang) {
	for k, mv := range i.Moves {
		if m := g.Member(mv.Index); m.PodUID != mv.OldUID {
			i.Moves[k].NewPod, i.Moves[k].NewUID = m.Pod, m.PodUID
			if mv.To == "" { // the scheduler's choice
				i.Moves[k].To = m.Node
			}
		}
	}
}

// strayed deletes a replacement that slipped past the placement policy onto a node that is not the reserved one.
func (d *driver) strayed(ctx context.Context, m cluster.Member, i Incident) bool {
	d.log.Warn("replacement is not on its reserved node; deleting it", "pod", m.Pod, "node", m.Node)
	if err := d.e.Cluster.DeleteByUID(ctx, m, i.ID, 0); err != nil {
		d.log.Warn("delete a stray replacement", "error", err)
	}
	return true
}

// recreate replaces every pod of the gang.
func (d *driver) recreate(ctx context.Context, g *cluster.Gang, i Incident) error {
	if len(i.Moves) < len(g.Members) { // the record of whom this step replaces, before it does
		if err := d.change(ctx, func(i *Incident) { i.Moves = allMoves(i.Moves, g) }); err != nil {
			return err
		}
	}
	i = d.snapshot()
	meant := map[string]bool{} // only these pods: a second run after a crash must not kill the new ones
	for _, mv := range i.Moves {
		meant[mv.OldUID] = true
	}
	rest := *g
	rest.Members = slices.DeleteFunc(slices.Clone(g.Members), func(m cluster.Member) bool { return !meant[m.PodUID] })
	if len(rest.Members) > 0 {
		o := cluster.RecreateOptions{Incident: i.ID, FastReplace: i.Plan.FastReplace, GraceSeconds: evictGrace,
			Force: func(m cluster.Member) bool { return d.unreachable(ctx, i, m.Node) }}
		done, err := d.e.Cluster.RecreateGang(ctx, rest, o)
		if err != nil {
			return err
		}
		if done.Backoff > 0 {
			d.waits(ctx, fmt.Sprintf("the Job controller backs off for %s: pods had failed before the fault was known", done.Backoff.Round(time.Second)))
		}
	}
	err := d.until(ctx, appearWithin, watchEvery, func() (bool, error) {
		g, err := d.e.Cluster.Gang(ctx, *i.Job)
		if err != nil {
			return false, err
		}
		ready := len(g.Members) == g.Size
		for _, m := range g.Members {
			ready = ready && !meant[m.PodUID] && !m.Deleting && m.Node != ""
		}
		if ready {
			return true, d.change(ctx, func(i *Incident) { seatMoves(i, &g) })
		}
		return false, nil
	})
	if err != nil {
		return err
	}
	return d.to(ctx, Restarted, fmt.Sprintf("all %d pods replaced", len(i.Moves)), func(i *Incident) { i.Restarts++ })
}

func allMoves(moves []Move, g *cluster.Gang) []Move {
	moves = slices.Clone(moves)
	for _, m := range g.Members {
		if !slices.ContainsFunc(moves, func(v Move) bool { return v.Index == m.Index }) {
			moves = append(moves, Move{Index: m.Index, OldPod: m.Pod, OldUID: m.PodUID, From: m.Node})
		}
	}
	return moves
}

// current are the gang's present ranks of the attempt that is to step again.
func (d *driver) current(ctx context.Context) (checkpoint.Gang, bool, error) {
	g, ok, err := d.gang(ctx)
	if !ok || err != nil {
		return checkpoint.Gang{}, false, err
	}
	i := d.snapshot()
	replaced := map[string]bool{}
	for _, mv := range i.Moves {
		replaced[mv.OldUID] = true
	}
	live, _ := d.e.Checkpoint.Observe(ctx, members(g, func(m cluster.Member) bool { return replaced[m.PodUID] || m.Deleting }))
	if i.Path == "launcher" && live.Attempt != i.Attempt {
		return checkpoint.Gang{}, true, nil
	}
	return live, true, nil
}

// resume waits until every rank has loaded a checkpoint and says from which step it goes on.
func (d *driver) resume(ctx context.Context) error {
	i := d.snapshot()
	if i.Job == nil || !i.Plan.Restart {
		return d.to(ctx, Resumed, "no job to resume", nil)
	}
	var from int64
	err := d.until(ctx, i.Plan.VerifyWithin, stepEvery, func() (bool, error) {
		live, ok, err := d.current(ctx)
		if !ok || err != nil {
			return d.snapshot().State == Closed, err
		}
		for rank := range i.WorldSize {
			r, there := live.Ranks[rank]
			if !there || r.ResumedStep == nil {
				return false, nil
			}
			from = *r.ResumedStep
		}
		return i.WorldSize > 0, nil
	})
	if errors.Is(err, errTimeout) {
		return d.again(ctx, fmt.Sprintf("not every rank was back within %s", i.Plan.VerifyWithin))
	}
	if err != nil || d.snapshot().State == Closed {
		return err
	}
	return d.to(ctx, Resumed, fmt.Sprintf("from step %d", from), func(i *Incident) {
		lost := max(0, i.MaxStep-from)
		i.ResumedStep, i.LostSteps = &from, &lost
	})
}

// again plans a further recovery from live state; plan closes the incident as failed when the restarts are used up.
func (d *driver) again(ctx context.Context, why string) error {
	return d.change(ctx, func(i *Incident) {
		i.note(d.e.Now(), why+"; planning again")
		restart(i)
	})
}

// verify waits until every rank has finished a step past the one it resumed from: only then does the job step again.
func (d *driver) verify(ctx context.Context) error {
	i := d.snapshot()
	if i.Job == nil || !i.Plan.Restart {
		return d.to(ctx, Verified, "the node is quarantined", nil)
	}
	err := d.until(ctx, i.Plan.VerifyWithin, stepEvery, func() (bool, error) {
		live, ok, err := d.current(ctx)
		if !ok || err != nil {
			return d.snapshot().State == Closed, err
		}
		for rank := range i.WorldSize {
			if r, there := live.Ranks[rank]; !there || r.Step <= *i.ResumedStep {
				return false, nil
			}
		}
		return true, nil
	})
	if errors.Is(err, errTimeout) {
		return d.again(ctx, fmt.Sprintf("not every rank stepped within %s", i.Plan.VerifyWithin))
	}
	if err != nil || d.snapshot().State == Closed {
		return err
	}
	now := d.e.Now()
	return d.to(ctx, Verified, fmt.Sprintf("all %d ranks stepped past %d", i.WorldSize, *i.ResumedStep), func(i *Incident) { i.FirstStep = &now })
}

// finish gives back what was reserved and closes.
func (d *driver) finish(ctx context.Context) error {
	i := d.snapshot()
	if err := d.e.Cluster.Release(ctx, i.ID); err != nil && !errors.Is(err, cluster.ErrNotFound) {
		return err
	}
	if i.Job == nil || !i.Plan.Restart {
		return d.closes(ctx, Quarantined, "no job ran there")
	}
	text := fmt.Sprintf("stepping again from step %d, %d steps lost, %.1f s after the fault", *i.ResumedStep, *i.LostSteps, i.FirstStep.Sub(i.Faults[0].At).Seconds())
	d.tell(ctx, cluster.Ref{APIVersion: i.Job.APIVersion, Kind: i.Job.Kind, Namespace: i.Job.Namespace, Name: i.Job.Name, UID: i.Job.UID}, "Normal", "PitcrewRecovered", text)
	return d.closes(ctx, Recovered, text)
}
