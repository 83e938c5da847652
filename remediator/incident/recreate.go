package incident

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// recreate replaces every pod of the gang.
func (v *view) recreate(ctx context.Context) Result {
	rest := *v.gang
	rest.Members = slices.DeleteFunc(slices.Clone(v.gang.Members), func(m cluster.Member) bool { return !v.Replaced.Has(m.PodUID) })
	if !v.Recreated && (len(rest.Members) > 0 || v.gang.Suspended) { // suspended by this very step, before a crash: to be resumed
		done, err := v.e.Cluster.RecreateGang(ctx, rest, v.recreation(ctx))
		switch {
		case errors.Is(err, cluster.ErrUnsupported):
			return Close(Failed, err.Error())
		case errors.Is(err, cluster.ErrSuspended):
			return Close(Gone, err.Error())
		case errors.Is(err, cluster.ErrStuck):
			return WaitFor(ReasonStuck, err.Error(), watchEvery)
		case err != nil:
			return halfway(err)
		}
		if err := v.noteNow(ctx, func(i *Incident) { i.Suspended, i.Recreated = false, true }); err != nil { // once: a second time would take the new pods
			return failed(err)
		}
		if done.Backoff > 0 {
			return WaitFor(ReasonBackoff, fmt.Sprintf("%s, since pods had failed before the fault was known", done.Backoff.Round(time.Second)), min(done.Backoff, watchEvery))
		}
		return Again("")
	}
	switch sent, err := v.readBack(ctx); {
	case errors.Is(err, errBroken):
		return PlanAgain(err.Error(), 1)
	case err != nil:
		return halfway(err)
	case sent:
		return WaitFor(ReasonPods, "", watchEvery)
	}
	missing := v.gang.Size
	for _, m := range v.gang.Members {
		if m.PodUID != "" && m.Node != "" && !v.Replaced.Has(m.PodUID) && !m.Deleting && !ended(m) {
			missing--
		}
	}
	if w := v.d.pending.Load(); v.gang.Suspended && w != nil && w.Reason == ReasonPending && v.now.Sub(w.Since) > lagsFor {
		return Close(Gone, fmt.Sprintf("%s %s/%s is suspended", v.gang.Job.Kind, v.gang.Job.Namespace, v.gang.Job.Name))
	}
	if missing > 0 {
		return WaitFor(ReasonPending, fmt.Sprintf("%d of %d", missing, v.gang.Size), watchEvery)
	}
	return GoOn(Restarted, fmt.Sprintf("all %d pods replaced", v.gang.Size), func(i *Incident) {
		seatMoves(i, v.gang, v.now)
		i.Restarts++
	})
}

// lagsFor bounds how long the watch may still show a suspension that was lifted.
const lagsFor = 10 * time.Second

// recreation is how a gang is made to begin anew. That it will be suspended is recorded before it is: whoever goes on from there resumes it
// then, and does not resume what a person has suspended.
func (v *view) recreation(ctx context.Context) cluster.RecreateOptions {
	return cluster.RecreateOptions{Incident: v.ID, FastReplace: v.Plan.With().FastReplace, GraceSeconds: evictGrace,
		May:   func() error { return v.mayStill(ctx) },
		Force: func(m cluster.Member) bool { return v.unreachable(ctx, m.Node) },
		Intent: func(ctx context.Context, w cluster.Way) error {
			if w != cluster.BySuspend || v.d.now.Load().Suspended {
				return nil
			}
			return v.noteNow(ctx, func(i *Incident) {
				i.Suspended = true
				i.note(v.e.Now(), "suspending the job, to be resumed when its pods have gone")
			})
		}}
}
