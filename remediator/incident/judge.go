package incident

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/ledger"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// plan judges every fault of the incident by policy, the strongest plan wins, and asks the guards.
func plan(ctx context.Context, v *view) Result {
	if v.gang != nil && v.inTheMaking(v.gang) {
		return WaitFor(ReasonPods, "", retryWait)
	}
	if (v.Wait != nil || !v.HeldAt.IsZero()) && !v.stopped() {
		if r := v.fresh(); r != nil {
			return *r
		}
	}
	chosen, facts, faults, err := v.judge()
	if err != nil {
		return failed(err)
	}
	v.Faults = faults
	switch {
	case chosen == nil && v.acted():
		chosen, facts = v.Plan, Facts{Now: v.now, Gang: v.gang, Seen: v.Faults[0].Seen}
	case chosen == nil:
		return Close(Refused, "no policy rule acts on it any more")
	case chosen.Mode == policy.Observe && v.acted():
		return WaitFor(ReasonObserves, fmt.Sprintf("%s only observes now; nothing more is changed", chosen.Policy), watchEvery)
	case v.gang == nil, v.left():
		chosen = chosen.onlyNode()
	}
	if limit := chosen.With().MaxPerJob; chosen.Has(policy.RestartJob) && v.Restarts >= limit {
		return Close(Failed, fmt.Sprintf("%s in this incident did not bring the job back; a person is needed", count(v.Restarts, "restart")))
	}
	if r := v.unconfirmed(chosen); r != nil {
		return *r
	}
	facts.Incident = &v.Incident
	book := v.e.Ledger.Book()
	verdicts := v.verdicts(chosen, facts, &book)
	moves := v.preview(chosen)
	record := func(i *Incident) {
		i.Plan, i.Guards, i.Moves = chosen, verdicts, moves
		for k, f := range faults {
			i.Faults[k].Moves, i.Faults[k].Unplanned = f.Moves, false
		}
		i.Replan = len(i.Faults) > len(faults)
	}
	if refused := guard.Blocking(verdicts); len(refused) > 0 {
		if v.acted() { // half a remediation does more harm than a late one
			return refusal(refused[0])
		}
		if chosen.queues(refused) {
			return GoOn(Planned, fmt.Sprintf("policy %s, rule %s; it waits for its turn: guard %s", chosen.Policy, chosen.Rule, refused[0]), record)
		}
		return v.heldBack(chosen, refused, record)
	}
	if chosen.Mode == policy.Observe {
		return Close(Observed, chosen.wouldHave()).with(record)
	}
	text := fmt.Sprintf("policy %s, rule %s", chosen.Policy, chosen.Rule)
	if v.HeldAt.IsZero() || v.acted() {
		return GoOn(Planned, text, record)
	}
	if r := v.reconfirm(ctx); r != nil {
		return *r
	}
	text += fmt.Sprintf("; taken up %s after a guard held it back, and it still holds", v.now.Sub(v.HeldAt).Round(time.Second))
	return GoOn(Planned, text, record, func(i *Incident) { i.TakenUp = v.now })
}

// judge asks policy about every fault. The plan that does most wins, the earliest among equals; a person is asked if any of them wants
// one. A node whose own rule does not take it is not taken along with another's. What was begun before is not taken back. It gives the
// faults with what that means for their nodes.
func (v *view) judge() (chosen *Plan, facts Facts, faults []Fault, err error) {
	faults = slices.Clone(v.Faults)
	plans, fxs := make([]*Plan, len(faults)), make([]Facts, len(faults))
	for k, f := range faults {
		node, err := v.e.Cluster.Node(f.Node)
		if err != nil && f.Node != "" && !errors.Is(err, cluster.ErrNotFound) {
			return nil, Facts{}, nil, err
		}
		fxs[k] = Facts{Now: v.now, Node: node, Gang: v.gang, Incident: &v.Incident, Seen: v.seen(f), Cost: v.cost(), Counted: f.Counted}
		plans[k], _ = v.e.Judge.Plan(f.Event, fxs[k])
	}
	yieldToCertain(plans)
	for k := range plans {
		if plans[k].weight() > chosen.weight() {
			chosen, facts = plans[k], fxs[k]
		}
	}
	asks := false
	for k, p := range plans {
		acts := p != nil && (p.Mode != policy.Observe || chosen.Mode == policy.Observe)
		if !slices.Contains(v.Cordons, faults[k].Node) {
			faults[k].Moves = acts && p.Has(policy.Cordon)
		}
		asks = asks || acts && p.NeedsApproval
	}
	if chosen != nil {
		own := *chosen
		own.NeedsApproval, chosen = asks, &own
	}
	return chosen, facts, faults, nil
}

// yieldToCertain drops the plans for statistical findings where a certain fault of the incident acts: what their guards were not asked about is
// not done along with it.
func yieldToCertain(plans []*Plan) {
	certain := func(p *Plan) bool { return p != nil && p.Mode != policy.Observe && !p.statistical() }
	if !slices.ContainsFunc(plans, certain) {
		return
	}
	for k, p := range plans {
		if p.statistical() {
			plans[k] = nil
		}
	}
}

// limits are the guards whose refusal ends when other incidents or time free a place. The ledger's queue orders who gets it.
var limits = []guard.Name{guard.Breaker, guard.Concurrent, guard.Cooldown, guard.ActBudget}

// queues reports whether a refused plan waits in the ledger's queue, by severity and then by the GPUs that stand idle. It does not where a
// person has to agree first, or where a guard refuses that no place would satisfy.
func (p *Plan) queues(refused []guard.Verdict) bool {
	return p.Mode != policy.Observe && !p.NeedsApproval && !slices.ContainsFunc(refused, func(v guard.Verdict) bool { return !slices.Contains(limits, v.Guard) })
}

// rejudged looks whether policy still says what it said when the plan was made, which may be long ago for a plan that waited for its turn.
// nil: it does.
func (v *view) rejudged() *Result {
	chosen, _, faults, err := v.judge()
	if err != nil {
		return result(failed(err))
	}
	if chosen != nil && (v.gang == nil || v.left()) {
		chosen = chosen.onlyNode()
	}
	moves := func(a, b Fault) bool { return a.Moves == b.Moves }
	if chosen != nil && chosen.same(v.Plan) && slices.EqualFunc(faults, v.Faults, moves) {
		return nil
	}
	now := v.now
	return result(Again("policy decides otherwise now; judged again", func(i *Incident) { i.State, i.StateAt = Correlated, now }))
}

// same reports whether two plans do the same, by the same rule. How they were decided does not matter.
func (p *Plan) same(o *Plan) bool {
	a, b := *p, *o
	a.Decision, b.Decision = nil, nil
	x, errA := json.Marshal(a)
	y, errB := json.Marshal(b)
	return errA == nil && errB == nil && bytes.Equal(x, y)
}

// left reports that the job has left the faulty nodes by itself before anything was done: there is nothing to bring back, and its
// ranks are not to be disturbed. A fault of a rank is one wherever its pod is.
func (v *view) left() bool {
	if v.Round > 1 || v.acted() || slices.ContainsFunc(v.Faults, func(f Fault) bool { return !f.Moves }) {
		return false
	}
	nodes := v.FaultyNodes()
	there := func(m cluster.Member) bool { return m.Node == "" || slices.Contains(nodes, m.Node) }
	return len(v.gang.Members) == v.gang.Size && !slices.ContainsFunc(v.gang.Members, there) && !slices.ContainsFunc(v.gang.Leaving, there)
}

// verdicts asks the guards for each node that the plan would take, or for the fault's node when it takes none: all verdicts of the first
// that is refused, else of the last.
func (v *view) verdicts(p *Plan, f Facts, book *ledger.Book) []guard.Verdict {
	nodes := v.FaultyNodes()
	if f.Wants = v.places(p); !p.Has(policy.Cordon) || len(nodes) == 0 {
		nodes = []string{v.Faults[0].Node}
	}
	var verdicts []guard.Verdict
	for _, name := range nodes {
		f.Node, _ = v.e.Cluster.Node(name) // of one that is no more nothing is known
		verdicts = v.e.Judge.Guards(p, f, book)
		if len(guard.Blocking(verdicts)) > 0 {
			break
		}
	}
	if held, yes := v.e.heldWith(v.Parent, v.now); yes {
		verdicts = append(slices.DeleteFunc(slices.Clone(verdicts), func(o guard.Verdict) bool { return o.Guard == guard.Hold && o.Allowed }), held)
	}
	return verdicts
}

// places are the nodes that the plan cordons, with the domains that breakers count by.
func (v *view) places(p *Plan) (out []guard.Place) {
	if !p.Has(policy.Cordon) {
		return nil
	}
	for _, name := range v.FaultyNodes() {
		p := guard.Place{Node: name}
		if n, err := v.e.Cluster.Node(name); err == nil {
			p = guard.PlaceOf(n)
		}
		p.Job = v.jobUID()
		out = append(out, p)
	}
	return out
}

// admit asks the ledger for a grant of the plan, and the guards that are asked before every action. nil: it may act.
func (v *view) admit(ctx context.Context, p *Plan) ([]guard.Verdict, error) {
	view, gang, cost := *v, v.gang, v.cost()
	seen := v.seen(v.Faults[0])
	g := guard.Grant{Incident: v.ID, Policy: p.Policy, Charged: p.Disruptive(), Restart: p.Has(policy.RestartJob), Nodes: v.places(p), Causes: v.causes()}
	if p.statistical() {
		g.Finding = v.finding().Signal
	}
	if v.Job != nil {
		g.Job = v.Job.UID
	}
	since := v.Opened
	if !v.HeldAt.IsZero() {
		since = v.HeldAt
	}
	return v.e.Ledger.Admit(ctx, ledger.Request{Incident: v.ID, Severity: v.severity(), IdleGPUs: v.idleGPUs(), Since: since, Grant: g,
		Judge: func(b *ledger.Book, now time.Time) []guard.Verdict {
			own := view
			own.now = now
			return own.verdicts(p, Facts{Now: now, Gang: gang, Incident: &own.Incident, Seen: seen, Cost: cost}, b)
		}})
}

// mayAct is admit right before an action. While a guard refuses, the incident stands where it is: a kill switch or a hold is obeyed at once,
// also by an incident under way, and it goes on when that is lifted. Ranks that hold are released meanwhile, and asked again later.
func (v *view) mayAct(ctx context.Context) *Result {
	verdicts, err := v.admit(ctx, v.Plan)
	if err != nil {
		return result(failed(asStore(err)))
	}
	refused := guard.Blocking(verdicts)
	switch {
	case len(refused) == 0:
		return nil
	case v.d.held(v.Incident) != nil:
		return result(PlanAgain("guard "+refused[0].String(), 0))
	}
	return result(refusal(refused[0]))
}

// causes are the events behind the incident, as many as a grant keeps.
func (i *Incident) causes() (ids []string) {
	for _, f := range i.Faults[:min(len(i.Faults), 4)] {
		ids = append(ids, f.EventID)
	}
	return ids
}

func (i *Incident) severity() (worst event.Severity) {
	for _, f := range i.Faults {
		if f.Sev.Compare(worst) > 0 {
			worst = f.Sev
		}
	}
	return worst
}

// idleGPUs are the GPUs that do no work because of the incident: all of the job's where a rank cannot go on, since the others wait for it.
func (i *Incident) idleGPUs() int {
	if i.Job != nil && (i.stopped() || slices.ContainsFunc(i.Faults, func(f Fault) bool { return !f.Usable })) {
		return i.WorldSize
	}
	return 0
}
