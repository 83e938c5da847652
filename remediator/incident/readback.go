package incident

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/policy"
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
func (v *view) readBack(ctx context.Context) (sent bool, err error) {
	for _, mv := range v.Moves {
		m := v.gang.Member(mv.Index)
		where := placeOf(m)
		if mv.To == "" {
			gone, err := v.unsteered(ctx, m, mv)
			if err != nil {
				return sent, err
			}
			sent = sent || gone
			continue
		}
		if mv.To == "" || m.PodUID == "" || m.PodUID == mv.OldUID || m.Deleting || ended(m) || where == mv.To {
			continue
		}
		if where == "" && v.now.Sub(m.Created) < bindWithin || m.Node != "" && v.willDo(m, v.Plan, mv, m.Node) {
			continue
		}
		if err := v.sendAway(ctx, m, mv); err != nil {
			return sent, err
		}
		sent = true
	}
	return sent, nil
}

// unsteered looks at a replacement that the scheduler placed by its own choice. On a node that is not equivalent it is reported, and by policy
// it is sent away: a few times, and only while there is an equivalent node for it. Otherwise a job on a worse node is better than none.
func (v *view) unsteered(ctx context.Context, m cluster.Member, mv Move) (sent bool, err error) {
	if m.Node == "" || m.PodUID == "" || m.PodUID == mv.OldUID || m.Deleting || ended(m) || v.willDo(m, v.Plan, mv, m.Node) {
		return false, nil
	}
	if v.mayUndo(m, mv) {
		return true, v.sendAway(ctx, m, mv)
	}
	return false, v.noteNow(ctx, func(i *Incident) {
		for k := range i.Moves {
			if i.Moves[k].Index == mv.Index && i.Moves[k].To == "" {
				i.Moves[k].To = m.Node // it counts as placed there, so it is reported once
				i.note(v.e.Now(), fmt.Sprintf("replacement %s of pod %d is on %s by the scheduler's choice, which is not equivalent to %s; it stays", m.Pod, mv.Index, m.Node, mv.From))
			}
		}
	})
}

func (v *view) mayUndo(m cluster.Member, mv Move) bool {
	if v.Plan.Unsteered != policy.UnsteeredUndo || len(v.Strays) >= maxStrays || v.Path != launcherPath && !v.Plan.With().FastReplace {
		return false
	}
	move := mv
	move.OldUID = m.PodUID
	dec := v.choosing(v.Plan, v.FaultyNodes(), move).choose(m, move)
	return dec.Node != "" && dec.Node != m.Node
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
func (v *view) sendAway(ctx context.Context, m cluster.Member, mv Move) error {
	story := fmt.Sprintf("replacement %s of pod %d is not for its reserved node %s but for %s, which would not do", m.Pod, mv.Index, mv.To, or(placeOf(m), "any"))
	if mv.To == "" {
		story = fmt.Sprintf("replacement %s of pod %d is on %s by the scheduler's choice, which is not equivalent to %s", m.Pod, mv.Index, m.Node, mv.From)
	}
	switch again := slices.Contains(v.Strays, m.PodUID); {
	case !again && len(v.Strays) >= maxStrays:
		return fmt.Errorf("%w: %s, and %d were sent away for that before", errBroken, story, len(v.Strays))
	case v.Path != launcherPath && !v.Plan.With().FastReplace: // a pod that is lost alone counts as a failure, of which a Job has only so many
		return fmt.Errorf("%w: %s", errBroken, story)
	}
	o := v.replacing(ctx, m)
	o.Intent = func(ctx context.Context) error {
		return v.noteNow(ctx, func(i *Incident) {
			if !slices.Contains(i.Strays, m.PodUID) {
				i.Strays = append(i.Strays, m.PodUID)
				i.note(v.e.Now(), story+"; sent away")
			}
		})
	}
	asGood := func(node string) bool { return v.willDo(m, v.Plan, mv, node) }
	_, err := v.e.Cluster.ReadBack(ctx, m, mv.To, asGood, o)
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
