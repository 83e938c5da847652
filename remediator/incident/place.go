package incident

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/placement"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// preview chooses nodes without reserving them: for each pod on a faulty node, for each whose replacement is on its way, from an earlier
// round, to a node that will not do any more, and for each whose replacement slipped past its reservation to such a node. One that is on
// its way to a good node stays so, and a node that was chosen before is chosen again while it will do.
func (v *view) preview(p *Plan) []Move {
	g := v.gang
	if g == nil || !p.Has(policy.RestartJob) {
		return nil
	}
	faulty := v.FaultyNodes()
	var moves, open []Move
	for index := range g.Size {
		m := g.Member(index)
		last, moved := v.move(index)
		switch onItsWay := moved && last.To != "" && m.Node == ""; {
		case m.Node != "" && slices.Contains(faulty, m.Node):
			if p.Has(policy.Cordon) {
				open = append(open, Move{Index: index, OldPod: m.Pod, OldUID: m.PodUID, From: m.Node, To: last.To})
			}
		case onItsWay && m.PodUID != last.OldUID && (m.PodUID == "" || m.SentTo == last.To && v.willDo(m, p, last, last.To)):
			moves = append(moves, last)
		case onItsWay, moved && last.To != "" && m.Node != last.To && m.Node != last.From && !v.willDo(m, p, last, m.Node):
			open = append(open, Move{Index: index, OldPod: m.Pod, OldUID: m.PodUID, From: last.From, To: last.To})
		}
	}
	if len(open) == 0 {
		return moves
	}
	c := v.choosing(p, faulty, open...)
	for _, mv := range moves {
		c.take(mv.To)
	}
	for _, mv := range open {
		dec := c.choose(g.Member(mv.Index), mv)
		mv.To, mv.TierLoss = dec.Node, dec.TierLoss
		c.take(mv.To)
		if len(moves) < maxDecided {
			if len(moves) > 0 {
				dec.Candidates = dec.Candidates[:min(len(dec.Candidates), moreCandidates)]
			}
			mv.Decision = &dec
		}
		moves = append(moves, mv)
	}
	v.d.wants = nil
	for _, ch := range c.by {
		v.d.wants = append(v.d.wants, ch.Request)
	}
	slices.SortFunc(moves, func(a, b Move) int { return a.Index - b.Index })
	return moves
}

// Candidates kept with an incident: a cluster has thousands of nodes, and a record has to fit into one message. The others are counted.
const (
	firstCandidates = 64
	moreCandidates  = 8
)

// choosing chooses for several members of a gang, so that two do not take one node.
type choosing struct {
	v      *view
	p      *Plan
	faulty []string
	nodes  []*fleet.Node
	by     map[string]*placement.Chooser // by the Job that owns the member: its pods ask for the same
	taken  []string
}

// helpsAny reports whether a node could take one of the pods that wait. A storm changes many nodes for the worse, and each look at the fleet
// judges all of them. Where nobody knows what is wanted, any node helps.
func helpsAny(wants []placement.Request) func(*fleet.Node) bool {
	return func(n *fleet.Node) bool {
		return len(wants) == 0 || slices.ContainsFunc(wants, func(r placement.Request) bool { return r.Helps(n) })
	}
}

// choosing looks at the nodes as if the pods of some moves were not there.
func (v *view) choosing(p *Plan, faulty []string, moves ...Move) *choosing {
	var without []string
	for _, mv := range moves {
		if mv.OldUID != "" {
			without = append(without, mv.OldUID)
		}
	}
	return &choosing{v: v, p: p, faulty: faulty, nodes: v.e.Cluster.FleetWithout(without...), by: map[string]*placement.Chooser{}}
}

func (c *choosing) of(m cluster.Member) *placement.Chooser {
	if have := c.by[m.Owner]; have != nil {
		return have
	}
	r := c.v.gang.PlacementRequest(m)
	r.Peers = nil
	for _, other := range c.v.gang.Members {
		if other.Node != "" && !slices.Contains(c.faulty, other.Node) {
			r.Peers = append(r.Peers, other.Node)
		}
	}
	with := c.p.With()
	r.Incident, r.MaxTierLoss, r.Mode, r.Now, r.Keep = c.v.ID, with.MaxTierLoss, placement.Mode(with.Placement), c.v.now, firstCandidates
	r.Exclude, r.Unfit = c.faulty, c.v.e.Conditions.Unfit // also one that a person uncordoned meanwhile
	r.Failed = c.v.failedDomain(c.nodes)
	out := placement.NewChooser(r, c.nodes)
	for _, n := range c.taken {
		out.Take(n)
	}
	c.by[m.Owner] = out
	return out
}

func (c *choosing) take(node string) {
	if node == "" {
		return
	}
	c.taken = append(c.taken, node)
	for _, ch := range c.by {
		ch.Take(node)
	}
}

func (c *choosing) choose(m cluster.Member, mv Move) placement.Decision {
	return c.of(m).Choose(c.step(m, mv))
}

func (c *choosing) check(m cluster.Member, mv Move, node string) (placement.Candidate, bool) {
	return c.of(m).Check(c.step(m, mv), node)
}

// step is the move as the chooser takes it.
func (c *choosing) step(m cluster.Member, mv Move) placement.Move {
	out := placement.Move{Faulty: mv.From, Prefer: mv.To}
	if m.Node != mv.From && !slices.Contains(c.faulty, m.Node) {
		out.At = m.Node
	}
	return out
}

// inTheMaking reports that a replacement which is sent to a node that is faulty by now has no pod yet: it cannot be sent elsewhere before.
func (i *Incident) inTheMaking(g *cluster.Gang) bool {
	return slices.ContainsFunc(i.Moves, func(m Move) bool {
		return m.To != "" && g.Member(m.Index).PodUID == "" && slices.Contains(i.FaultyNodes(), m.To)
	})
}

// willDo reports whether a node is one that would be chosen now for a replacement, which takes up no room against itself.
func (v *view) willDo(m cluster.Member, p *Plan, mv Move, node string) bool {
	mv.OldUID, mv.To = m.PodUID, ""
	k, ok := v.choosing(p, v.FaultyNodes(), mv).check(m, mv, node)
	return ok && k.Chosen
}

// unfit is why a node that was chosen will not do any more, asked again between choosing and using. A replacement that is on its way is
// left alone: what is said of its node joins the incident.
func (v *view) unfit() string {
	for _, mv := range v.Moves {
		m := v.gang.Member(mv.Index)
		if mv.To == "" || m.PodUID == "" || m.PodUID != mv.OldUID {
			continue
		}
		switch k, ok := v.choosing(v.Plan, v.FaultyNodes(), mv).check(m, mv, mv.To); {
		case !ok || k.Reason == placement.Faulty:
			return mv.To + " is faulty by now, or not there any more"
		case !k.Chosen:
			return mv.To + " will not do any more: " + strings.TrimSuffix(string(k.Reason)+", "+k.Detail, ", ")
		}
	}
	return ""
}

func free(moves []Move) bool {
	return !slices.ContainsFunc(moves, func(m Move) bool { return m.To == "" })
}

func whyNone(moves []Move) string {
	for _, m := range moves {
		if m.To == "" && m.Decision != nil {
			return m.Decision.Reason
		}
	}
	return ""
}

// renewEvery is how often the reservations of an incident that waits are asked for again. It is well below cluster.ReservedFor, at whose end
// they are swept.
const renewEvery = 10 * time.Minute

// renew keeps the reservations of replacements that have no node yet while the incident waits. nil: the step goes on.
func (v *view) renew(ctx context.Context) *Result {
	if !v.Reserved || v.now.Sub(v.d.renewed) < renewEvery {
		return nil
	}
	for _, mv := range v.Moves {
		m := v.gang.Member(mv.Index)
		if mv.To == "" || m.PodUID == "" || m.PodUID != mv.OldUID {
			continue
		}
		switch err := v.e.Cluster.Reserve(ctx, reservation(v.gang, v.ID, mv)); {
		case errors.Is(err, cluster.ErrReserved): // it had ended while nothing could be done, and another incident took the node
			return result(PlanAgain(mv.To+" is reserved for another incident by now", 0))
		case err != nil:
			return result(failed(err))
		}
	}
	v.d.renewed = v.now
	return nil
}

// place fixes the nodes and reserves them. What was previewed is chosen again, since time has passed.
func place(ctx context.Context, v *view) Result {
	if v.gang == nil || !v.Plan.Has(policy.RestartJob) {
		v.d.release(ctx, v.Incident)
		return GoOn(Placed, "nothing to place")
	}
	if r := v.mayAct(ctx); r != nil {
		return *r
	}
	moves := v.preview(v.Plan)
	if !free(moves) { // nobody is to hold for a node that is not there; steps are made meanwhile, so save again later
		return PlanAgain(meanings[ReasonNode].begins, 0)
	}
	if err := v.target(ctx, moves); err != nil {
		return failed(err)
	}
	moves, text, err := v.reserve(ctx, moves)
	if err != nil {
		return failed(err)
	}
	return GoOn(Placed, text, func(i *Incident) { i.Moves = moves })
}

// target reserves the chosen nodes in the ledger, so that of two incidents that choose one node at once only one gets it.
func (v *view) target(ctx context.Context, moves []Move) error {
	var nodes []string
	for _, m := range moves {
		if m.To != "" {
			nodes = append(nodes, m.To)
		}
	}
	return asStore(v.e.Ledger.Target(ctx, v.ID, nodes))
}

// reserve promises the nodes to the replacements. Where the API server steers nobody, a reservation would only keep the replacement
// away too: then the scheduler chooses, and cordons alone keep it off bad nodes.
func (v *view) reserve(ctx context.Context, moves []Move) ([]Move, string, error) {
	if len(moves) == 0 {
		return nil, "same nodes", nil
	}
	if !v.Reserved {
		if err := v.noteNow(ctx, func(i *Incident) { i.Reserved = true }); err != nil {
			return nil, "", err
		}
	}
	var made []cluster.Reservation
	var text []string
	for _, m := range moves {
		text = append(text, fmt.Sprintf("%s → %s", m.From, m.To))
		if v.gang.Member(m.Index).PodUID == "" {
			continue // its pod is being made, by the reservation of the round before
		}
		r := reservation(v.gang, v.ID, m)
		if err := v.e.Cluster.Reserve(ctx, r); err != nil {
			return nil, "", err
		}
		made = append(made, r)
	}
	v.d.renewed = v.now
	for _, r := range made { // an API server sees its own policies' parameters a moment later
		err := v.e.Cluster.WaitReservationSeen(ctx, r)
		switch {
		case ctx.Err() != nil:
			return nil, "", ctx.Err()
		case errors.Is(err, cluster.ErrNoPolicy):
			if err := v.e.Cluster.Release(ctx, v.ID); err != nil {
				return nil, "", err
			}
			for k := range moves {
				moves[k].To = ""
			}
			if err := v.target(ctx, nil); err != nil {
				return nil, "", err
			}
			moves = slices.DeleteFunc(moves, func(m Move) bool { // the next one would come down anywhere as well
				node := v.gang.Member(m.Index).Node
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
	r := cluster.Reservation{Incident: incident, Node: mv.To, Namespace: g.Job.Namespace, Index: &m.CompletionIndex, Requests: m.Requests, OwnerUID: m.OwnerUID}
	if g.Kind == cluster.KindJobSet {
		r.OwnerUID, r.JobSetUID, r.JobIndex = "", g.Job.UID, &m.JobIndex
	}
	return r
}
