package incident

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/pitcrew/pitcrew/bus"
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
	if ok, err := d.mayAct(ctx, i); !ok || err != nil {
		return err
	}
	if why := d.unfit(g, i); why != "" { // nothing is stopped yet
		d.letGo(ctx, i)
		return d.again(ctx, why, 0)
	}
	if err := d.leave(ctx, g, i); err != nil {
		if what := forbids(err); what != nil {
			d.letGo(ctx, i)
			return d.again(ctx, what.all+err.Error(), 0)
		}
		return err
	}
	if i.Path != launcherPath {
		return d.halfway(ctx, d.recreate(ctx, g, i))
	}
	attempt, err := d.beginAttempt(ctx, g, i)
	if err != nil {
		return err
	}
	switch err := d.replace(ctx, i, attempt); {
	case errors.Is(err, errTimeout):
		return d.again(ctx, fmt.Sprintf("attempt %d was not complete within %s", attempt, appearWithin), 1)
	case errors.Is(err, errBroken):
		return d.again(ctx, err.Error(), 1)
	case errors.Is(err, cluster.ErrUnsupported):
		return d.closes(ctx, Failed, err.Error())
	case err != nil || !d.now.Load().Open():
		return d.halfway(ctx, err)
	}
	return d.to(ctx, Restarted, fmt.Sprintf("attempt %d, %d of %d pods replaced", attempt, len(i.Moves), g.Size), func(i *Incident) {
		i.Attempt = attempt
		i.Restarts++
	})
}

// halfway waits where a budget, or a Job that other pods failed of meanwhile, changed its mind when the first pods had gone: each pod that it lets go is one more that can come back, and
// what it does not let go is not taken.
func (d *driver) halfway(ctx context.Context, err error) error {
	if what := forbids(err); what != nil {
		return d.standsBy(ctx, what.rest, err.Error(), 4*retryWait)
	}
	return err
}

// errBroken says that an attempt cannot come about any more, whatever is waited for.
var errBroken = errors.New("the attempt cannot be completed")

// tag names a restart of an incident, so that after a crash the attempt that it began is known as its own.
func (i *Incident) tag() string { return fmt.Sprintf("%s/%d.%d", i.ID, i.Round, i.Restarts) }

// beginAttempt writes the record that the agents reconcile their launchers with. Written before any pod is touched, it fences
// the older attempt: its workers are ended, a late one cannot come back.
func (d *driver) beginAttempt(ctx context.Context, g *cluster.Gang, i Incident) (int, error) {
	tag := i.tag()
	for {
		a, rev, err := d.e.Attempts.Get(ctx, g.Job.UID)
		if err != nil && !errors.Is(err, bus.ErrNotFound) {
			return 0, err
		}
		if rev > 0 && a.Incident == tag { // this very step, before a crash
			return a.Attempt, nil
		}
		next := bus.Attempt{
			Job: g.Job, Attempt: max(a.Attempt, i.Attempt) + 1, Incident: tag, NProc: i.NProc, WorldSize: i.NProc * g.Size,
		}
		next.MasterPort = port(g.Job.UID, next.Attempt)
		for index := range g.Size {
			m, place := g.Member(index), bus.Member{NodeRank: index}
			switch mv, moved := i.move(index); {
			case seatable(m, i):
				place.Node, place.PodUID = m.Node, m.PodUID
				if index == 0 {
					next.MasterAddr = m.PodIP
				}
			case moved:
				place.Node = mv.To
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

// seatable reports whether a pod can take part in the next attempt: it stays, it has not ended, it has a node, and it is none of those
// that are being moved.
func seatable(m cluster.Member, i Incident) bool {
	mv, moved := i.move(m.Index)
	return m.PodUID != "" && !m.Deleting && m.Node != "" && !ended(m) && !(moved && mv.OldUID == m.PodUID)
}

func ended(m cluster.Member) bool { return m.Phase == "Succeeded" || m.Phase == "Failed" }

// port spreads attempts over a range below the kernel's ephemeral ports, so that a new attempt never meets a port that the
// last one's sockets still hold.
func port(job string, attempt int) int {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s/%d", job, attempt)
	return portBase + int(h.Sum32()%portRange)
}

// replace moves the faulty pods and gives their replacements the free places of the attempt.
func (d *driver) replace(ctx context.Context, i Incident, attempt int) error {
	return d.until(ctx, appearWithin, watchEvery, func() (bool, error) {
		g, ok, err := d.gang(ctx)
		if err != nil || !ok {
			return !ok, err
		}
		i.Faults = d.snapshot().Faults // the node may be found lost only now
		if err := d.remove(ctx, g, i); err != nil {
			return false, err
		}
		if sent, err := d.readBack(ctx, g, i); sent || err != nil {
			return false, err
		}
		return d.seat(ctx, g, i, attempt)
	})
}

// remove makes the pods go that are still where they are not to be. A pod that is leaving is left alone, except on a lost node, where
// no kubelet will ever end it.
func (d *driver) remove(ctx context.Context, g *cluster.Gang, i Incident) error {
	for _, mv := range i.Moves {
		m := g.Member(mv.Index)
		if mv.OldUID == "" || m.PodUID != mv.OldUID || ended(m) {
			continue
		}
		o := d.replacing(ctx, i, m)
		if m.Deleting && !o.Force {
			continue
		}
		if _, err := d.e.Cluster.ReplacePod(ctx, m, o); err != nil && !errors.Is(err, cluster.ErrStale) && !errors.Is(err, cluster.ErrFinished) {
			return err
		}
	}
	return nil
}

// replacing is how a pod is made to go.
func (d *driver) replacing(ctx context.Context, i Incident, m cluster.Member) cluster.ReplaceOptions {
	return cluster.ReplaceOptions{FastReplace: i.Plan.FastReplace, GraceSeconds: evictGrace, Incident: i.ID, Force: d.unreachable(ctx, i, m.Node)}
}

// probeWithin bounds the wait for a kubelet that may be behind a cut cable.
const probeWithin = time.Second

// unreachable reports that no kubelet will end the pod: the node was found lost, and right now its kubelet still does not answer, or
// the node is no more. What may still run there is fenced by the attempt: it cannot join, report, or have a checkpoint admitted.
func (d *driver) unreachable(ctx context.Context, i Incident, node string) bool {
	for _, f := range i.Faults {
		if f.Signal == nodeLost && f.Node == node && node != "" {
			probe, cancel := context.WithTimeout(ctx, probeWithin)
			defer cancel()
			err := d.e.Cluster.ProbeKubelet(probe, node)
			return ctx.Err() == nil && (errors.Is(err, cluster.ErrSilent) || errors.Is(err, cluster.ErrNotFound))
		}
	}
	return false
}

// seat fills the attempt's empty places with pods as they appear, also in place of one that ended by itself, and reports whether all
// are filled and the master's address is known.
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
		if !seatable(m, i) {
			full = false
			continue
		}
		if place.PodUID != m.PodUID {
			if place.NodeRank == 0 && a.MasterAddr != "" { // the others have gone to meet the one that was there
				return false, fmt.Errorf("%w: the pod of node rank 0 was replaced by %s", errBroken, m.Pod)
			}
			a.Members[k].PodUID, a.Members[k].Node, changed = m.PodUID, m.Node, true
		}
		if place.NodeRank == 0 && a.MasterAddr == "" && m.PodIP != "" {
			a.MasterAddr, changed = m.PodIP, true
		}
	}
	if changed {
		switch _, err := d.e.Attempts.Put(ctx, g.Job.UID, a, rev); {
		case errors.Is(err, bus.ErrConflict):
			return false, nil
		case err != nil:
			return false, err
		}
		if err := d.change(ctx, func(i *Incident) { seatMoves(i, g, d.e.Now()) }); err != nil {
			return false, err
		}
	}
	return full && a.MasterAddr != "", nil
}
