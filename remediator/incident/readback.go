package incident

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/remediator/cluster"
)

const (
	// maxStrays bounds how many replacements one incident sends away. Who stamps none of them will not stamp the next: it is planned again
	// from there, which costs one of the job's restarts.
	maxStrays = 3
	// bindWithin is how long a replacement that carries no reservation may take to get a node before it is sent away: it may still come
	// down on one that is as good.
	bindWithin = 2 * time.Second
)

// readBack looks where the replacements are and sends one away that slipped past its reservation: an API server that did not know of it
// stamped nothing, or it was stamped before the reservation was moved. One that came down on a node as good as the reserved one stays.
// errBroken: it is no use, or would cost more than the pod.
func (d *driver) readBack(ctx context.Context, g *cluster.Gang, i Incident) (sent bool, err error) {
	for _, mv := range i.Moves {
		m := g.Member(mv.Index)
		where := placeOf(m)
		if mv.To == "" || m.PodUID == "" || m.PodUID == mv.OldUID || m.Deleting || ended(m) || where == mv.To {
			continue
		}
		if where == "" && d.e.Now().Sub(m.Created) < bindWithin || m.Node != "" && d.willDo(g, m, i.Plan, i, mv, m.Node) {
			continue
		}
		if err := d.sendAway(ctx, g, m, mv); err != nil {
			return sent, err
		}
		sent = true
	}
	return sent, nil
}

// placeOf is the node that a pod is on, or can only go to; empty: not known yet.
func placeOf(m cluster.Member) string {
	if m.Node != "" {
		return m.Node
	}
	return m.SentTo
}

// sendAway makes a stray replacement go, by its UID, so that another one is made. It is recorded first, so that no crash lets it be tried
// for ever.
func (d *driver) sendAway(ctx context.Context, g *cluster.Gang, m cluster.Member, mv Move) error {
	i := d.snapshot()
	story := fmt.Sprintf("replacement %s of pod %d is not for its reserved node %s but for %s, which would not do", m.Pod, mv.Index, mv.To, or(placeOf(m), "any"))
	switch again := slices.Contains(i.Strays, m.PodUID); {
	case !again && len(i.Strays) >= maxStrays:
		return fmt.Errorf("%w: %s, and %d were sent away for that before", errBroken, story, len(i.Strays))
	case i.Path != launcherPath && !i.Plan.FastReplace: // a pod that is lost alone counts as a failure, of which a Job has only so many
		return fmt.Errorf("%w: %s", errBroken, story)
	}
	o := d.replacing(ctx, i, m)
	o.Intent = func(ctx context.Context) error {
		return d.change(ctx, func(i *Incident) {
			if !slices.Contains(i.Strays, m.PodUID) {
				i.Strays = append(i.Strays, m.PodUID)
				i.note(d.e.Now(), story+"; sent away")
			}
		})
	}
	asGood := func(node string) bool { return d.willDo(g, m, i.Plan, i, mv, node) }
	_, err := d.e.Cluster.ReadBack(ctx, m, mv.To, asGood, o)
	for _, gone := range []error{cluster.ErrNotFound, cluster.ErrStale, cluster.ErrFinished} {
		if errors.Is(err, gone) {
			return nil
		}
	}
	return err
}

// seatMoves records which pod took the place of which, and where it is, be it the scheduler's choice.
func seatMoves(i *Incident, g *cluster.Gang, now time.Time) {
	for k, mv := range i.Moves {
		m := g.Member(mv.Index)
		if m.PodUID == "" || m.PodUID == mv.OldUID {
			continue
		}
		i.Moves[k].NewPod, i.Moves[k].NewUID = m.Pod, m.PodUID
		if m.Node == "" || m.Node == mv.To {
			continue
		}
		if i.Moves[k].To = m.Node; mv.To != "" {
			i.note(now, fmt.Sprintf("replacement %s of pod %d is not on its reserved node %s but on %s, which does as well", m.Pod, mv.Index, mv.To, m.Node))
		}
	}
}
