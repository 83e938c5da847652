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

// waitForNode holds the incident, and kills nothing, until an equivalent node is free. It is not when the incident has closed.
func (d *driver) waitForNode(ctx context.Context) (bool, error) {
	err := d.until(ctx, waitForever, watchEvery, func() (bool, error) {
		g, ok, err := d.gang(ctx)
		if err != nil || !ok {
			return !ok, err
		}
		i := d.snapshot()
		moves := d.preview(g, i.Plan, i)
		if free(moves) {
			return true, d.change(ctx, func(i *Incident) { i.Moves = moves })
		}
		return false, d.waits(ctx, waitNode, "; nothing is stopped. "+refusal(moves))
	})
	return err == nil && d.now.Load().Open(), err
}

// preview chooses nodes without reserving them: for each pod on a faulty node, for each whose replacement is on its way, from an earlier
// round, to a node that will not do any more, and for each whose replacement slipped past its reservation to such a node. One that is on
// its way to a good node stays so, and a node that was chosen before is chosen again while it will do.
func (d *driver) preview(g *cluster.Gang, p *Plan, i Incident) []Move {
	if g == nil || !p.Restart {
		return nil
	}
	faulty := i.FaultyNodes()
	var moves, open []Move
	for index := range g.Size {
		m := g.Member(index)
		last, moved := i.move(index)
		switch onItsWay := moved && last.To != "" && m.Node == ""; {
		case m.Node != "" && slices.Contains(faulty, m.Node):
			if p.Cordon {
				open = append(open, Move{Index: index, OldPod: m.Pod, OldUID: m.PodUID, From: m.Node, To: last.To})
			}
		case onItsWay && m.PodUID != last.OldUID && (m.PodUID == "" || m.SentTo == last.To && d.willDo(g, m, p, i, last, last.To)):
			moves = append(moves, last)
		case onItsWay, moved && last.To != "" && m.Node != last.To && m.Node != last.From && !d.willDo(g, m, p, i, last, m.Node):
			open = append(open, Move{Index: index, OldPod: m.Pod, OldUID: m.PodUID, From: last.From, To: last.To})
		}
	}
	for _, mv := range open {
		dec := d.choose(g, p, i, faulty, moves, mv)
		if k := candidate(dec, mv.To); k == nil {
			mv.To, mv.TierLoss = dec.Node, dec.TierLoss
		} else {
			mv.TierLoss = k.TierLoss
		}
		dec.Candidates = told(dec, mv.To, len(moves) == 0)
		mv.Decision = &dec
		moves = append(moves, mv)
	}
	slices.SortFunc(moves, func(a, b Move) int { return a.Index - b.Index })
	return moves
}

// inTheMaking reports that a replacement which is sent to a node that is faulty by now has no pod yet: it cannot be sent elsewhere before.
func (i *Incident) inTheMaking(g *cluster.Gang) bool {
	return slices.ContainsFunc(i.Moves, func(m Move) bool {
		return m.To != "" && g.Member(m.Index).PodUID == "" && slices.Contains(i.FaultyNodes(), m.To)
	})
}

// willDo reports whether a node is one that would be chosen now for a replacement, which takes up no room against itself.
func (d *driver) willDo(g *cluster.Gang, m cluster.Member, p *Plan, i Incident, mv Move, node string) bool {
	mv.OldUID = m.PodUID
	return candidate(d.choose(g, p, i, i.FaultyNodes(), nil, mv), node) != nil
}

func (d *driver) choose(g *cluster.Gang, p *Plan, i Incident, faulty []string, taken []Move, mv Move) placement.Decision {
	nodes := slices.DeleteFunc(d.e.Cluster.Nodes(mv.OldUID), func(n placement.Node) bool { // also one that a person uncordoned meanwhile
		return n.Name != mv.From && slices.Contains(faulty, n.Name)
	})
	for k := range nodes {
		nodes[k].Condition = d.e.Conditions.Unfit(nodes[k].Name)
	}
	r := g.PlacementRequest(g.Member(mv.Index))
	r.Faulty, r.Incident, r.MaxTierLoss, r.Mode, r.Now = mv.From, i.ID, p.MaxTierLoss, placement.Mode(p.Placement), d.e.Now()
	r.Peers = slices.DeleteFunc(r.Peers, func(peer string) bool { return slices.Contains(faulty, peer) })
	for _, t := range taken { // two of the gang do not take one node
		if t.To != "" {
			r.Peers = append(r.Peers, t.To)
		}
	}
	return placement.Choose(r, nodes)
}

// unfit is why a node that was chosen will not do any more, asked again between choosing and using. A replacement that is on its way is
// left alone: what is said of its node joins the incident.
func (d *driver) unfit(g *cluster.Gang, i Incident) string {
	for _, mv := range i.Moves {
		if m := g.Member(mv.Index); mv.To == "" || m.PodUID == "" || m.PodUID != mv.OldUID {
			continue
		}
		dec := d.choose(g, i.Plan, i, i.FaultyNodes(), nil, mv)
		if candidate(dec, mv.To) == nil {
			k := slices.IndexFunc(dec.Candidates, func(c placement.Candidate) bool { return c.Node == mv.To })
			if k < 0 {
				return mv.To + " is faulty by now, or not there any more"
			}
			return mv.To + " will not do any more: " + strings.TrimSuffix(string(dec.Candidates[k].Reason)+", "+dec.Candidates[k].Detail, ", ")
		}
	}
	return ""
}

// candidate is the node in the decision if it could be chosen, else nil.
func candidate(dec placement.Decision, node string) *placement.Candidate {
	for k, c := range dec.Candidates {
		if c.Node == node && (c.Chosen || c.Reason == placement.RankedLower) {
			return &dec.Candidates[k]
		}
	}
	return nil
}

// Candidates kept with an incident: a cluster has thousands of nodes, and a record has to fit into one message.
const (
	firstCandidates = 64
	moreCandidates  = 8
)

// told are the candidates that the record keeps: the best first, the one taken always.
func told(dec placement.Decision, taken string, first bool) []placement.Candidate {
	keep := moreCandidates
	if first {
		keep = firstCandidates
	}
	out := slices.Clone(dec.Candidates)
	for k := range out {
		if taken != "" {
			if out[k].Chosen = out[k].Node == taken; out[k].Chosen {
				out[k].Reason = placement.Chosen
			} else if out[k].Reason == placement.Chosen {
				out[k].Reason = placement.RankedLower
			}
		}
	}
	slices.SortStableFunc(out, func(a, b placement.Candidate) int {
		switch {
		case a.Chosen == b.Chosen:
			return 0
		case a.Chosen:
			return -1
		}
		return 1
	})
	return slices.Clip(out[:min(len(out), keep)])
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

// steeredWithin is how long an API server may take to see a reservation before replacements are taken to be steered by cordons alone.
const steeredWithin = 3 * time.Second

// place fixes the nodes and reserves them. What was previewed is chosen again, since time has passed.
func (d *driver) place(ctx context.Context) error {
	g, ok, err := d.gang(ctx)
	if !ok || err != nil {
		return err
	}
	i := d.snapshot()
	if g == nil || !i.Plan.Restart {
		d.letGo(ctx, i)
		return d.to(ctx, Placed, "nothing to place", nil)
	}
	if ok, err := d.mayAct(ctx, i); !ok || err != nil {
		return err
	}
	moves := d.preview(g, i.Plan, i)
	if !free(moves) { // nobody is to hold for a node that is not there; steps are made meanwhile, so save again later
		d.letGo(ctx, i)
		return d.again(ctx, waitNode, 0)
	}
	moves, text, err := d.reserve(ctx, g, i, moves)
	if err != nil {
		return err
	}
	return d.to(ctx, Placed, text, func(i *Incident) { i.Moves = moves })
}

// reserve promises the nodes to the replacements. Where the API server steers nobody, a reservation would only keep the replacement
// away too: then the scheduler chooses, and cordons alone keep it off bad nodes.
func (d *driver) reserve(ctx context.Context, g *cluster.Gang, i Incident, moves []Move) ([]Move, string, error) {
	if len(moves) == 0 {
		return nil, "same nodes", nil
	}
	var made []cluster.Reservation
	var text []string
	for _, m := range moves {
		text = append(text, fmt.Sprintf("%s → %s", m.From, m.To))
		if g.Member(m.Index).PodUID == "" {
			continue // its pod is being made, by the reservation of the round before
		}
		r := reservation(g, i.ID, m)
		if err := d.e.Cluster.Reserve(ctx, r); err != nil {
			return nil, "", err
		}
		made = append(made, r)
	}
	wait, cancel := context.WithTimeout(ctx, steeredWithin)
	defer cancel()
	for _, r := range made { // an API server sees its own policies' parameters a moment later
		err := d.e.Cluster.WaitReservationSeen(wait, r)
		switch {
		case ctx.Err() != nil:
			return nil, "", ctx.Err()
		case errors.Is(err, cluster.ErrNoPolicy):
			if err := d.e.Cluster.Release(ctx, i.ID); err != nil {
				return nil, "", err
			}
			for k := range moves {
				moves[k].To = ""
			}
			moves = slices.DeleteFunc(moves, func(m Move) bool { // the next one would come down anywhere as well
				node := g.Member(m.Index).Node
				return node != "" && node != m.From
			})
			return moves, "the scheduler's choice: replacements are not steered on this cluster", nil
		case err != nil:
			return nil, "", err
		}
	}
	return moves, strings.Join(text, ", "), nil
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
