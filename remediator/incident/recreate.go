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
	if len(i.Moves) < g.Size { // the record of whom this step replaces, before it does; it is complete from then on
		if g.Suspended {
			return d.closes(ctx, Gone, fmt.Sprintf("%s %s/%s is suspended", g.Job.Kind, g.Job.Namespace, g.Job.Name))
		}
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
	if len(rest.Members) > 0 || g.Suspended { // suspended by this very step, before a crash: to be resumed
		done, err := d.e.Cluster.RecreateGang(ctx, rest, d.recreation(ctx, i))
		if errors.Is(err, cluster.ErrUnsupported) {
			return d.closes(ctx, Failed, err.Error())
		}
		if err != nil {
			return err
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
		missing = g.Size
		for _, m := range g.Members {
			if mv, moved := i.move(m.Index); moved && m.Node == "" {
				d.resend(ctx, m, mv, i)
			}
			if m.PodUID != "" && m.Node != "" && !meant[m.PodUID] && !m.Deleting && !ended(m) {
				missing--
			}
		}
		if missing > 0 {
			return false, nil
		}
		return true, d.change(ctx, func(i *Incident) { seatMoves(i, g) })
	})
	switch {
	case errors.Is(err, errTimeout):
		return fmt.Errorf("%d of %d new pods have no node yet after %s", missing, g.Size, appearWithin)
	case err != nil || !d.now.Load().Open():
		return err
	}
	return d.to(ctx, Restarted, fmt.Sprintf("all %d pods replaced", g.Size), func(i *Incident) { i.Restarts++ })
}

// recreation is how a gang is made to begin anew.
func (d *driver) recreation(ctx context.Context, i Incident) cluster.RecreateOptions {
	return cluster.RecreateOptions{Incident: i.ID, FastReplace: i.Plan.FastReplace, GraceSeconds: evictGrace,
		Force: func(m cluster.Member) bool { return d.unreachable(ctx, d.snapshot(), m.Node) }}
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
