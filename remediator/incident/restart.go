package incident

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

const (
	appearWithin = 2 * time.Minute // a replacement pod, from eviction to running
	stepEvery    = 50 * time.Millisecond
	evictGrace   = 1 // seconds: what could be saved is saved
	portBase     = 20000
	portRange    = 10000
)

// restartJob begins the next attempt: survivors stay with the launcher, all pods are replaced without it.
func restartJob(ctx context.Context, v *view) Result {
	if v.gang == nil || !v.Plan.Has(policy.RestartJob) {
		return GoOn(Restarted, "no job to restart")
	}
	if v.gang.Suspended && !v.Suspended && !v.Recreated && v.Path != launcherPath { // a person or a queue wants it so
		return Close(Gone, fmt.Sprintf("%s %s/%s is suspended", v.gang.Job.Kind, v.gang.Job.Namespace, v.gang.Job.Name))
	}
	if r := v.mayAct(ctx); r != nil {
		return *r
	}
	if r := v.renew(ctx); r != nil {
		return *r
	}
	if !v.Begun {
		if r := v.begin(ctx); r != nil {
			return *r
		}
	}
	if r := v.lossUnproven(ctx); r != nil { // the node may be found lost only now
		return *r
	}
	if v.Path != launcherPath {
		return v.recreate(ctx)
	}
	attempt, err := v.beginAttempt(ctx)
	if err != nil {
		return failed(err)
	}
	done, err := v.replace(ctx, attempt)
	switch {
	case errors.Is(err, errBroken):
		return PlanAgain(err.Error(), 1)
	case errors.Is(err, cluster.ErrUnsupported):
		return Close(Failed, err.Error())
	case err != nil:
		return halfway(err)
	case done:
		return GoOn(Restarted, fmt.Sprintf("attempt %d, %d of %d pods replaced", attempt, len(v.Moves), v.gang.Size), func(i *Incident) {
			i.Attempt = attempt
			i.Restarts++
		})
	case v.now.Sub(v.d.appearing(v.now)) >= appearWithin:
		return PlanAgain(fmt.Sprintf("attempt %d was not complete within %s", attempt, appearWithin), 1)
	}
	return WaitFor(ReasonPods, "", watchEvery)
}

// begin does what must be known or asked before the first rank is stopped. nil: ranks may be stopped.
func (v *view) begin(ctx context.Context) *Result {
	if why := v.unfit(); why != "" { // nothing is stopped yet
		return result(PlanAgain(why, 0))
	}
	if err := v.leave(ctx); err != nil {
		if what := forbids(err); what != nil {
			return result(PlanAgain(meanings[what.all].begins+err.Error(), 0))
		}
		return result(failed(err))
	}
	if r := v.lossUnproven(ctx); r != nil {
		return r
	}
	if v.d.now.Load().Replan {
		return result(Again("")) // a fault joined meanwhile: it is planned for before anything is stopped
	}
	if err := v.did(ctx, policy.RestartJob, v.Faults[0].Node); err != nil {
		return result(failed(err))
	}
	replaced := v.Replaced
	if v.Path != launcherPath { // the record of whom this step replaces, before it does; a second run after a crash must not kill the new ones
		for _, m := range v.gang.Members {
			if m.PodUID != "" {
				replaced = append(replaced, m.PodUID)
			}
		}
	}
	if err := v.noteNow(ctx, func(i *Incident) { i.Begun, i.Replaced = true, replaced }); err != nil {
		return result(failed(err))
	}
	if v.d.now.Load().Replan {
		return result(Again(""))
	}
	return nil
}

// appearing is since when new pods are waited for: a wait for something else begins it anew.
func (d *driver) appearing(now time.Time) time.Time {
	if w := d.pending.Load(); w != nil && w.Reason == ReasonPods {
		return w.Since
	}
	return now
}

// errBroken says that an attempt cannot come about any more, whatever is waited for.
var errBroken = errors.New("the attempt cannot be completed")

// tag names a restart of an incident, so that after a crash the attempt that it began is known as its own.
func (i *Incident) tag() string { return fmt.Sprintf("%s/%d.%d", i.ID, i.Round, i.Restarts) }

// beginAttempt writes the record that the agents reconcile their launchers with. Written before any pod is touched, it fences
// the older attempt: its workers are ended, a late one cannot come back.
func (v *view) beginAttempt(ctx context.Context) (int, error) {
	tag, g, i := v.tag(), v.gang, &v.Incident
	for {
		if err := v.e.fence(); err != nil {
			return 0, err
		}
		a, rev, err := v.e.Attempts.Get(ctx, g.Job.UID)
		if err != nil && !errors.Is(err, bus.ErrNotFound) {
			return 0, err
		}
		if rev > 0 && a.Incident == tag { // this very step, before a crash
			return a.Attempt, nil
		}
		if a.Term > v.e.Term {
			return 0, fmt.Errorf("%w: attempt %d was begun in term %d", errLost, a.Attempt, a.Term)
		}
		next := bus.Attempt{
			Term: v.e.Term, Job: g.Job, Attempt: max(a.Attempt, i.Attempt) + 1, Incident: tag, NProc: i.NProc, WorldSize: i.NProc * g.Size,
		}
		next.MasterPort = port(g.Job.UID, next.Attempt)
		for index := range g.Size {
			m, place := g.Member(index), bus.Member{NodeRank: index}
			switch mv, moved := i.move(index); {
			case seatable(m, *i):
				place.Node, place.PodUID = m.Node, m.PodUID
				if index == 0 {
					next.MasterAddr = m.PodIP
				}
			case moved:
				place.Node = mv.To
			}
			next.Members = append(next.Members, place)
		}
		if _, err = v.e.Attempts.Put(ctx, g.Job.UID, next, rev); err == nil {
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

// replace moves the faulty pods and gives their replacements the free places of the attempt. It reports whether all are filled.
func (v *view) replace(ctx context.Context, attempt int) (bool, error) {
	if err := v.remove(ctx); err != nil {
		return false, err
	}
	if sent, err := v.readBack(ctx); sent || err != nil {
		return false, err
	}
	return v.seat(ctx, attempt)
}

// remove makes the pods go that are still where they are not to be. A pod that is leaving is left alone, except on a lost node, where
// no kubelet will ever end it.
func (v *view) remove(ctx context.Context) error {
	for _, mv := range v.Moves {
		m := v.gang.Member(mv.Index)
		if mv.OldUID == "" || m.PodUID != mv.OldUID || ended(m) {
			continue
		}
		o := v.replacing(ctx, m)
		if m.Deleting && !o.Force {
			continue
		}
		if _, err := v.e.Cluster.ReplacePod(ctx, m, o); err != nil && !errors.Is(err, cluster.ErrStale) && !errors.Is(err, cluster.ErrFinished) {
			return err
		}
	}
	return nil
}

// replacing is how a pod is made to go.
func (v *view) replacing(ctx context.Context, m cluster.Member) cluster.ReplaceOptions {
	return cluster.ReplaceOptions{FastReplace: v.Plan.With().FastReplace, GraceSeconds: evictGrace, Incident: v.ID, Force: v.unreachable(ctx, m.Node)}
}

// probeWithin bounds the wait for a kubelet that may be behind a cut cable.
const probeWithin = time.Second

// unreachable reports that no kubelet will end the pod: the node was found lost, something proves that nothing of the job runs there any
// more, and right now its kubelet still does not answer, or the node is no more. What may run there all the same is fenced: by the attempt
// it cannot join, report, or have a checkpoint admitted, and by the claim of the checkpoint directory it cannot write.
func (v *view) unreachable(ctx context.Context, node string) bool {
	if v.d.now.Load().LossProof[node] == "" {
		return false
	}
	for _, f := range v.d.now.Load().Faults { // the node may be found lost only now
		if f.Signal == nodeLost && f.Node == node && node != "" {
			probe, cancel := context.WithTimeout(ctx, probeWithin)
			defer cancel()
			err := v.e.Cluster.ProbeKubelet(probe, node)
			return ctx.Err() == nil && (errors.Is(err, cluster.ErrSilent) || errors.Is(err, cluster.ErrNotFound))
		}
	}
	return false
}

// seat fills the attempt's empty places with pods as they appear, also in place of one that ended by itself, and reports whether all
// are filled and the master's address is known.
func (v *view) seat(ctx context.Context, attempt int) (bool, error) {
	g := v.gang
	a, rev, err := v.e.Attempts.Get(ctx, g.Job.UID)
	if err != nil {
		return false, err
	}
	if a.Attempt != attempt {
		return false, errLost
	}
	a.Members = slices.Clone(a.Members)
	changed, full := false, true
	for k, place := range a.Members {
		m := g.Member(place.NodeRank)
		if !seatable(m, v.Incident) {
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
		switch _, err := v.e.Attempts.Put(ctx, g.Job.UID, a, rev); {
		case errors.Is(err, bus.ErrConflict):
			return false, nil
		case err != nil:
			return false, err
		}
		if err := v.noteNow(ctx, func(i *Incident) { seatMoves(i, g, v.now) }); err != nil {
			return false, err
		}
	}
	return full && a.MasterAddr != "", nil
}
