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
func (d *driver) recreate(ctx context.Context, g *cluster.Gang, i Incident) error {
	if g.Suspended && !i.Suspended { // a person or a queue wants it so
		return d.closes(ctx, Gone, fmt.Sprintf("%s %s/%s is suspended", g.Job.Kind, g.Job.Namespace, g.Job.Name))
	}
	if len(i.Moves) < g.Size { // the record of whom this step replaces, before it does; it is complete from then on
		if err := d.change(ctx, func(i *Incident) { i.Moves = allMoves(i.Moves, g) }); err != nil {
			return err
		}
		i = d.snapshot()
	}
	meant := map[string]bool{} // only these pods: a second run after a crash must not kill the new ones
	for _, mv := range i.Moves {
		meant[mv.OldUID] = mv.OldUID != ""
	}
	rest := *g
	rest.Members = slices.DeleteFunc(slices.Clone(g.Members), func(m cluster.Member) bool { return !meant[m.PodUID] })
	if len(rest.Members) > 0 || g.Suspended { // by this very step, before a crash: to be resumed
		done, err := d.e.Cluster.RecreateGang(ctx, rest, d.recreation(ctx, i))
		if errors.Is(err, cluster.ErrUnsupported) {
			return d.closes(ctx, Failed, err.Error())
		}
		if err != nil {
			return err
		}
		if d.now.Load().Suspended { // it is resumed
			if err := d.change(ctx, func(i *Incident) { i.Suspended = false }); err != nil {
				return err
			}
		}
		if done.Backoff > 0 {
			why := fmt.Sprintf("the Job controller backs off for %s: pods had failed before the fault was known", done.Backoff.Round(time.Second))
			if err := d.waits(ctx, "", why); err != nil {
				return err
			}
		}
	}
	missing := 0
	err := d.until(ctx, appearWithin, watchEvery, func() (bool, error) {
		g, ok, err := d.gang(ctx)
		if err != nil || !ok {
			return !ok, err
		}
		if sent, err := d.readBack(ctx, g, i); sent || err != nil {
			return false, err
		}
		missing = g.Size
		for _, m := range g.Members {
			if m.PodUID != "" && m.Node != "" && !meant[m.PodUID] && !m.Deleting && !ended(m) {
				missing--
			}
		}
		if missing > 0 {
			return false, nil
		}
		return true, d.change(ctx, func(i *Incident) { seatMoves(i, g, d.e.Now()) })
	})
	switch {
	case errors.Is(err, errBroken):
		return d.again(ctx, err.Error(), 1)
	case errors.Is(err, errTimeout):
		return fmt.Errorf("%d of %d new pods have no node yet after %s", missing, g.Size, appearWithin)
	case err != nil || !d.now.Load().Open():
		return err
	}
	return d.to(ctx, Restarted, fmt.Sprintf("all %d pods replaced", g.Size), func(i *Incident) { i.Restarts++ })
}

// recreation is how a gang is made to begin anew. That it will be suspended is recorded before it is: whoever goes on from there resumes it
// then, and does not resume what a person has suspended.
func (d *driver) recreation(ctx context.Context, i Incident) cluster.RecreateOptions {
	return cluster.RecreateOptions{Incident: i.ID, FastReplace: i.Plan.FastReplace, GraceSeconds: evictGrace,
		Force: func(m cluster.Member) bool { return d.unreachable(ctx, d.snapshot(), m.Node) },
		Intent: func(ctx context.Context, w cluster.Way) error {
			if w != cluster.BySuspend || d.now.Load().Suspended {
				return nil
			}
			return d.change(ctx, func(i *Incident) {
				i.Suspended = true
				i.note(d.e.Now(), "suspending the job, to be resumed when its pods have gone")
			})
		}}
}

// allMoves has one move for each index, also for one whose pod is not there just now.
func allMoves(moves []Move, g *cluster.Gang) []Move {
	moves = slices.Clone(moves)
	for index := range g.Size {
		if m := g.Member(index); !slices.ContainsFunc(moves, func(v Move) bool { return v.Index == index }) {
			moves = append(moves, Move{Index: index, OldPod: m.Pod, OldUID: m.PodUID, From: m.Node})
		}
	}
	return moves
}
