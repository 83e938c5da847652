package incident

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/placement"
)

// preview chooses nodes without reserving them.
func (d *driver) preview(g *cluster.Gang, p *Plan, i Incident) []Move {
	if g == nil || !p.Restart || !p.Cordon {
		return nil
	}
	faulty := i.FaultyNodes()
	var moves []Move
	for _, m := range g.Members {
		if m.Node = i.nodeOf(m); !slices.Contains(faulty, m.Node) {
			continue
		}
		nodes := d.e.Cluster.Nodes(m.PodUID)
		dec := placement.Choose(request(g, m, p, i.ID, faulty, moves, d.e.Now()), nodes)
		moves = append(moves, Move{Index: m.Index, OldPod: m.Pod, OldUID: m.PodUID, From: m.Node, To: dec.Node, TierLoss: dec.TierLoss, Decision: &dec})
	}
	return moves
}

// request describes the node that member m needs: like the one it leaves, near the gang's remaining nodes.
func request(g *cluster.Gang, m cluster.Member, p *Plan, incident string, faulty []string, taken []Move, now time.Time) placement.Request {
	r := g.PlacementRequest(m)
	r.Incident, r.MaxTierLoss, r.Mode, r.Now = incident, p.MaxTierLoss, placement.Mode(p.Placement), now
	r.Peers = slices.DeleteFunc(r.Peers, func(peer string) bool { return slices.Contains(faulty, peer) })
	for _, t := range taken { // two of the gang do not take one node
		if t.To != "" {
			r.Peers = append(r.Peers, t.To)
		}
	}
	return r
}

func free(moves []Move) bool {
	return !slices.ContainsFunc(moves, func(m Move) bool { return m.To == "" })
}

func refusal(moves []Move) string {
	for _, m := range moves {
		if m.To == "" && m.Decision != nil {
			return m.Decision.Reason
		}
	}
	return ""
}

// place fixes the nodes and reserves them. What was previewed is chosen again, since time has passed.
func (d *driver) place(ctx context.Context) error {
	g, ok, err := d.gang(ctx)
	if !ok || err != nil {
		return err
	}
	i := d.snapshot()
	if g == nil || !i.Plan.Restart {
		return d.to(ctx, Placed, "nothing to place", nil)
	}
	if !i.Plan.Cordon {
		return d.to(ctx, Placed, "same nodes", nil)
	}
	moves := d.preview(g, i.Plan, i)
	if !free(moves) {
		if i.Checkpoint != nil && i.Checkpoint.Taken { // nobody is to hold for a node that is not there
			if err := d.e.Checkpoint.Release(ctx, members(g, nil), *i.Checkpoint.Save); err != nil {
				d.log.Warn("release the ranks", "error", err)
			}
		}
		if err := d.waitForNode(ctx); err != nil {
			return err
		}
		return d.change(ctx, func(i *Incident) { i.Moves = nil; restart(i) }) // save again: steps were made meanwhile
	}
	for _, m := range moves {
		if err := d.e.Cluster.Reserve(ctx, reservation(g, i.ID, m)); err != nil {
			return err
		}
	}
	for _, m := range moves { // an API server sees its own policies' parameters a moment later
		if err := d.e.Cluster.WaitReservationSeen(ctx, reservation(g, i.ID, m)); err != nil && !errors.Is(err, cluster.ErrNoPolicy) {
			return err
		}
	}
	var text []string
	for _, m := range moves {
		text = append(text, fmt.Sprintf("%s → %s", m.From, m.To))
	}
	return d.to(ctx, Placed, strings.Join(text, ", "), func(i *Incident) { i.Moves = moves })
}

// reservation promises a node to the pod that will stand for a member. A JobSet may make its Jobs anew, so there its UID names the owner.
func reservation(g *cluster.Gang, incident string, mv Move) cluster.Reservation {
	m := g.Member(mv.Index)
	r := cluster.Reservation{Incident: incident, Node: mv.To, Index: &m.CompletionIndex, Requests: m.Requests, OwnerUID: m.OwnerUID}
	if g.Kind == cluster.KindJobSet {
		r.OwnerUID, r.JobSetUID, r.JobIndex = "", g.Job.UID, &m.JobIndex
	}
	return r
}
