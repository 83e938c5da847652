package remediator

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/ledger"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// judge is the state machine's view of policies and guards: it translates, and decides nothing itself.
type judge struct {
	policies book
	nodes    nodes
	kill     func() guard.Kill
	said     *board       // what nodes and gateways say; nil: nothing is known
	seen     *occurrences // what happened lately; nil: nothing is known

	mu     sync.Mutex
	scopes map[string]scope // by policy
}

// book is the policies in force; nodes are the cluster's.
type (
	book interface {
		current() *policy.Book
	}
	nodes interface {
		Node(name string) (*fleet.Node, error)
		Fleet() []*fleet.Node
	}
)

// scope is what a policy speaks for, of one Fleet.
type scope struct {
	hash        string
	of          []*fleet.Node
	in          []bool // by index in of; changed only under the judge's lock
	total       int
	quarantined []guard.Place
}

func nodeFacts(n *fleet.Node) policy.Node {
	if n == nil {
		return policy.Node{}
	}
	return policy.Node{
		Name: n.Name, Pool: n.Pool, Labels: n.Labels, Annotations: n.Annotations, Ready: n.Ready, Unschedulable: n.Unschedulable, Quarantined: n.Quarantined != "",
	}
}

func jobFacts(g *cluster.Gang, i *incident.Incident, c incident.Cost) policy.Job {
	if g == nil {
		return policy.Job{}
	}
	j := policy.Job{
		APIVersion: g.Job.APIVersion, Kind: g.Job.Kind, Namespace: g.Job.Namespace, Name: g.Job.Name, UID: g.Job.UID, Launcher: g.Launcher,
		Labels: g.Labels, Annotations: g.Annotations, NamespaceLabels: g.NamespaceLabels, PriorityClass: g.PriorityClass,
	}
	if _, said := g.Annotations[guard.HoldAnnotation]; g.Held != "" && !said { // its namespace is held
		j.Annotations = maps.Clone(g.Annotations)
		if j.Annotations == nil {
			j.Annotations = map[string]string{}
		}
		j.Annotations[guard.HoldAnnotation] = g.Held
	}
	if i != nil {
		j.WorldSize, j.Attempt, j.Restarts = i.WorldSize, i.Attempt, i.Restarts
	}
	j.RestartCost = c.GPUSeconds(j.WorldSize, policy.DefaultRestart)
	return j
}

func incidentFacts(i *incident.Incident) policy.Incident {
	if i == nil {
		return policy.Incident{}
	}
	out := policy.Incident{ID: i.ID, Opened: i.Opened, Events: len(i.Faults) + len(i.Joined), Nodes: i.FaultyNodes()}
	for _, f := range i.Faults {
		out.Signals = append(out.Signals, f.Signal)
	}
	return out
}

var modes = map[policy.Outcome]policy.Mode{policy.Act: policy.Enforce, policy.Ask: policy.Approve, policy.Record: policy.Observe}

// decide is the whole decision of policy about an event.
func (j *judge) decide(e event.Event, f incident.Facts) policy.Judgement {
	counted := 0
	seen := func(within time.Duration) int {
		// The stream has an event as it was at first, and not what has been added to its count since.
		n := max(j.seen.times(e, within, f.Now), f.Counted)
		counted = max(counted, n)
		return n
	}
	d := j.policies.current().DecideSeen(e, nodeFacts(f.Node), jobFacts(f.Gang, f.Incident, f.Cost), incidentFacts(f.Incident), seen)
	d.Counted = counted
	return d
}

// Plan implements incident.Judge.
func (j *judge) Plan(e event.Event, f incident.Facts) (*incident.Plan, policy.Judgement) {
	d := j.decide(e, f)
	mode, acts := modes[d.Outcome]
	if !acts {
		return nil, d
	}
	p := &incident.Plan{Policy: d.Policy, Rule: d.Rule, Mode: mode, Steps: d.Steps}
	if d.Guards != nil {
		p.Unsteered = d.Guards.Unsteered
		p.TakeUpWithin, p.Deadlines, p.ApprovalWithin = time.Duration(d.Guards.TakeUpWithin), d.Guards.Deadlines, time.Duration(d.Guards.ApprovalWithin)
		p.OneCause = d.Guards.OneCause
	}
	if d.Verify != nil {
		p.VerifyWithin, p.ByPace = time.Duration(d.Verify.Within), d.Verify.Signal == policy.Pace
	}
	if p.Terms = d.Terms; p.Terms != nil && p.Terms.Statistical {
		p.ByPace = true
	}
	if len(p.Verbs()) == 0 {
		d.Detail = "rule " + d.Policy + "/" + d.Rule + " only notifies"
		return nil, d
	}
	for _, s := range d.Steps {
		p.NeedsApproval = p.NeedsApproval || s.NeedsApproval && !s.Recommendation
	}
	raw, err := json.Marshal(d)
	if err != nil {
		d.Detail = "decision: " + err.Error()
		return nil, d
	}
	p.Decision = raw
	return p, d
}

// Reach implements incident.Judge. Of events that no rule takes, people are told from severity warning on.
func (j *judge) Reach(e event.Event) (acts, tells bool) {
	r := j.policies.current().Reach(e)
	return r.Acts, r.Notifies || r.Default && e.Data.Severity.AtLeast(event.Warning)
}

// MaxEventAge implements incident.Judge: the strictest of all policies, so that none is undercut.
func (j *judge) MaxEventAge() time.Duration {
	least := time.Duration(policy.DefaultGuards().MaxEventAge)
	for k, p := range j.policies.current().Policies() {
		if age := time.Duration(p.Spec.Guards.MaxEventAge); age > 0 && (k == 0 || age < least) {
			least = age
		}
	}
	return least
}

// kernelConditionMaxAge is the strictest of all policies: how long a condition counts that only lines of the kernel log reported.
func (j *judge) kernelConditionMaxAge() time.Duration {
	least := time.Duration(policy.MaxKernelConditionAge)
	for _, p := range j.policies.current().Policies() {
		least = min(least, time.Duration(p.Spec.Guards.Complete().KernelConditionMaxAge))
	}
	return least
}

// lookback is how long guards of the policies in force look back.
func (j *judge) lookback() time.Duration {
	longest := guard.JobWindow
	for _, p := range j.policies.current().Policies() {
		longest = max(longest, time.Duration(p.Spec.Guards.CooldownPerNode), time.Duration(p.Spec.Guards.ActionBudget.Per))
	}
	return longest
}

// scope is what the policy speaks for. Of a fleet in which nodes changed, only those are looked at again.
func (j *judge) scope(p policy.Policy) scope {
	all := j.nodes.Fleet()
	hash := p.Hash()
	j.mu.Lock()
	defer j.mu.Unlock()
	s, known := j.scopes[p.Metadata.Name]
	if known && s.hash == hash && len(s.of) == len(all) && (len(all) == 0 || &s.of[0] == &all[0]) {
		return s
	}
	if !known || s.hash != hash || !sameNames(s.of, all) {
		s = scope{hash: hash, of: make([]*fleet.Node, len(all)), in: make([]bool, len(all))}
	}
	held := false // whether the list of what is held may be another
	for k, n := range all {
		was := s.of[k]
		if was == n {
			continue
		}
		wasIn := s.in[k]
		_, s.in[k] = p.Spec.AppliesTo.Includes(policy.Node{Name: n.Name, Pool: n.Pool, Labels: n.Labels})
		switch {
		case s.in[k] && !wasIn:
			s.total++
		case wasIn && !s.in[k]:
			s.total--
		}
		held = held || n.Quarantined != "" || was != nil && was.Quarantined != ""
	}
	if s.of = all; held {
		s.quarantined = nil
		for k, n := range all {
			if s.in[k] && n.Quarantined != "" {
				s.quarantined = append(s.quarantined, guard.PlaceOf(n))
			}
		}
	}
	if j.scopes == nil {
		j.scopes = map[string]scope{}
	}
	j.scopes[p.Metadata.Name] = s
	return s
}

// sameNames reports whether two lists are of the same nodes, in whatever state.
func sameNames(a, b []*fleet.Node) bool {
	return slices.EqualFunc(a, b, func(x, y *fleet.Node) bool { return x == y || x != nil && y != nil && x.Name == y.Name })
}

// Guards implements incident.Judge: every verdict on every step of the plan that changes something, each guard once, refusals
// first kept.
func (j *judge) Guards(p *incident.Plan, f incident.Facts, b *ledger.Book) []guard.Verdict {
	chosen, ok := j.policies.current().ByName(p.Policy)
	if !ok {
		return []guard.Verdict{{Guard: guard.KillSwitch, Asked: true, Detail: "policy " + p.Policy + " is not there any more"}}
	}
	in := j.scope(chosen)
	s := guard.State{Kill: j.kill(), Total: in.total, Quarantined: in.quarantined, Grants: b.Grants, Tripped: b.Tripped[p.Policy], InScope: func(node string) bool {
		n, err := j.nodes.Node(node)
		if err != nil {
			return false
		}
		_, ok := chosen.Spec.AppliesTo.Includes(nodeFacts(n))
		return ok
	}}
	with := p.With()
	base := guard.Action{Policy: chosen, With: &with, Incident: f.Incident.ID, Node: nodeFacts(f.Node), Wants: f.Wants, Job: jobFacts(f.Gang, f.Incident, f.Cost),
		Disruptive: p.Disruptive(), Seen: f.Seen, Finding: j.finding(p, f)}
	for _, c := range f.Incident.Faults {
		base.Causes = append(base.Causes, c.EventID)
	}
	var out []guard.Verdict
	for _, verb := range p.Verbs() {
		a := base
		a.Verb = verb
		for _, v := range guard.Check(s, a, f.Now) {
			k := slices.IndexFunc(out, func(o guard.Verdict) bool { return o.Guard == v.Guard })
			switch {
			case k < 0:
				out = append(out, v)
			case out[k].Allowed && (!v.Allowed || v.Asked && !out[k].Asked):
				out[k] = v
			}
		}
	}
	return out
}

// limit is how a policy's limits stand.
type limit struct {
	policy                             string
	quarantined, breaker, used, budget int
	acting                             int
	open                               bool
}

// limits are those of all policies in force.
func (j *judge) limits(b ledger.Book, now time.Time) (out []limit) {
	for _, p := range j.policies.current().Policies() {
		g, in := p.Spec.Guards, j.scope(p)
		l := limit{policy: p.Metadata.Name, quarantined: len(in.quarantined), breaker: g.MaxNodesQuarantined.Of(in.total), budget: g.ActionBudget.Count,
			used: guard.BudgetUsed(b.Grants, p, now)}
		l.open = l.quarantined >= l.breaker || now.Sub(b.Tripped[l.policy]) < guard.BreakerHold
		for _, x := range b.Grants {
			if x.Open() && x.Active && x.Policy == l.policy {
				l.acting++
			}
		}
		out = append(out, l)
	}
	return out
}
