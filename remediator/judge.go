package remediator

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// judge is the state machine's view of policies and guards: it translates, and decides nothing itself.
type judge struct {
	policies book
	cluster  nodes
	kill     func() guard.Kill
}

// book is the policies in force; nodes are the cluster's.
type (
	book interface {
		current() []policy.Policy
		byName(name string) (policy.Policy, bool)
	}
	nodes interface {
		NodeNames() []string
		NodeState(name string) (cluster.NodeState, error)
	}
)

func nodeFacts(n cluster.NodeState) policy.Node {
	return policy.Node{
		Name: n.Name, Labels: n.Labels, Annotations: n.Annotations, Ready: n.Ready, Unschedulable: n.Unschedulable, Quarantined: n.Quarantined != "",
	}
}

func jobFacts(g *cluster.Gang, i *incident.Incident) policy.Job {
	if g == nil {
		return policy.Job{}
	}
	j := policy.Job{
		APIVersion: g.Job.APIVersion, Kind: g.Job.Kind, Namespace: g.Job.Namespace, Name: g.Job.Name, UID: g.Job.UID, Launcher: g.Launcher,
		NamespaceLabels: map[string]string{}, Annotations: map[string]string{},
	}
	if g.OptIn {
		j.NamespaceLabels[guard.OptInLabel] = guard.OptInValue
	}
	if g.Held != "" {
		j.Annotations[guard.HoldAnnotation] = g.Held
	}
	if i != nil {
		j.WorldSize, j.Attempt, j.Restarts = i.WorldSize, i.Attempt, i.Restarts
	}
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

// Plan implements incident.Judge.
func (j *judge) Plan(e event.Event, f incident.Facts) (*incident.Plan, string) {
	d := policy.Decide(e, nodeFacts(f.Node), jobFacts(f.Gang, f.Incident), incidentFacts(f.Incident), j.policies.current())
	mode, acts := modes[d.Outcome]
	if !acts {
		return nil, string(d.Outcome) + " " + string(d.Why) + " " + d.Detail
	}
	p := &incident.Plan{Policy: d.Policy, Rule: d.Rule, Mode: string(mode)}
	if d.Guards != nil {
		p.TakeUpWithin = time.Duration(d.Guards.TakeUpWithin)
	}
	if d.Verify != nil {
		p.VerifyWithin = time.Duration(d.Verify.Within)
	}
	for _, s := range d.Steps {
		if s.Recommendation {
			p.Recommend = append(p.Recommend, string(s.Do))
			continue
		}
		p.NeedsApproval = p.NeedsApproval || s.NeedsApproval
		switch s.Do {
		case policy.Cordon:
			p.Cordon = true
		case policy.Checkpoint:
			p.Checkpoint = true
		case policy.RestartJob:
			p.Restart, p.MaxPerJob = true, policy.DefaultMaxPerJob
			if s.With != nil {
				p.Placement, p.MaxTierLoss, p.MaxPerJob, p.FastReplace = string(s.With.Placement), s.With.MaxTierLoss, s.With.MaxPerJob, s.With.FastReplace
			}
		case policy.Notify:
			p.Notify = true
		}
	}
	if !p.Cordon && !p.Checkpoint && !p.Restart {
		return nil, "rule " + d.Policy + "/" + d.Rule + " only notifies"
	}
	raw, err := json.Marshal(d)
	if err != nil {
		return nil, "judgement: " + err.Error()
	}
	p.Judgement = raw
	return p, ""
}

// MaxEventAge implements incident.Judge: the strictest of all policies, so that none is undercut.
func (j *judge) MaxEventAge() time.Duration {
	least := time.Duration(policy.DefaultGuards().MaxEventAge)
	for k, p := range j.policies.current() {
		if age := time.Duration(p.Spec.Guards.MaxEventAge); age > 0 && (k == 0 || age < least) {
			least = age
		}
	}
	return least
}

// Guards implements incident.Judge: every verdict on every step of the plan that changes something, each guard once, refusals
// first kept.
func (j *judge) Guards(p *incident.Plan, f incident.Facts, all []*incident.Incident) []guard.Verdict {
	chosen, ok := j.policies.byName(p.Policy)
	if !ok {
		return []guard.Verdict{{Guard: guard.KillSwitch, Asked: true, Detail: "policy " + p.Policy + " is not there any more"}}
	}
	s := state{guard.State{Kill: j.kill()}}
	for _, name := range j.cluster.NodeNames() {
		if n, err := j.cluster.NodeState(name); err == nil {
			facts := nodeFacts(n)
			facts.Quarantined = facts.Quarantined && n.Quarantined != f.Incident.ID // to do it again changes nothing
			s.Nodes = append(s.Nodes, guard.Node{Node: facts})
		}
	}
	for _, i := range all {
		g := guarded(i)
		if i.ID != f.Incident.ID && sameCause(i, f.Incident) {
			g.Done = slices.DeleteFunc(g.Done, func(d guard.Done) bool { return s.taken(d, f.Node.Name) })
		}
		s.Incidents = append(s.Incidents, g)
	}
	base := guard.Action{Policy: chosen, Incident: f.Incident.ID, Node: nodeFacts(f.Node), Job: jobFacts(f.Gang, f.Incident), Seen: f.Seen}
	steps := planned(p)
	for _, verb := range steps {
		if verb.Disruptive() {
			base.Disruptive++
		}
	}
	var out []guard.Verdict
	for _, verb := range steps {
		a := base
		a.Verb, a.With = verb, &policy.With{Placement: policy.Placement(p.Placement), MaxTierLoss: p.MaxTierLoss, MaxPerJob: p.MaxPerJob, FastReplace: p.FastReplace}
		for _, v := range guard.Check(s.State, a, f.Now) {
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

// state is the guards' while it is put together.
type state struct{ guard.State }

// taken moves a cordon from an incident of the same cause to the node: several gangs on one faulty node are several incidents, and
// what one of them did to the node must not be held against the others as a repetition.
func (s *state) taken(d guard.Done, node string) bool {
	if d.Verb != policy.Cordon || d.Node != node {
		return false
	}
	for k := range s.Nodes {
		if s.Nodes[k].Name == node {
			s.Nodes[k].Quarantined = true
		}
	}
	return true
}

// sameCause reports whether one event is among the faults of both.
func sameCause(a, b *incident.Incident) bool {
	return slices.ContainsFunc(a.Faults, func(f incident.Fault) bool {
		return slices.ContainsFunc(b.Faults, func(o incident.Fault) bool { return o.EventID == f.EventID })
	})
}

func planned(p *incident.Plan) []policy.Verb {
	var out []policy.Verb
	for _, s := range []struct {
		verb policy.Verb
		in   bool
	}{{policy.Cordon, p.Cordon}, {policy.Checkpoint, p.Checkpoint}, {policy.RestartJob, p.Restart}} {
		if s.in {
			out = append(out, s.verb)
		}
	}
	return out
}

// guarded is what the guards look at in an incident: an intent counts as done from the moment its plan was approved.
func guarded(i *incident.Incident) guard.Incident {
	g := guard.Incident{ID: i.ID, Open: i.Open(), Node: i.Faults[0].Node}
	if i.Job != nil {
		g.JobUID = i.Job.UID
	}
	if i.Plan == nil {
		return g
	}
	for _, v := range i.Guards {
		if v.Tripped {
			g.Refused = i.StateAt
		}
	}
	for _, verb := range planned(i.Plan) {
		if verb.Disruptive() {
			g.Planned++
		}
	}
	for _, n := range i.Notes {
		if n.TookS <= 0 {
			continue
		}
		if verb, did := doneBy[n.State]; did {
			for _, node := range i.FaultyNodes() {
				g.Done = append(g.Done, guard.Done{Verb: verb, Node: node, At: n.At})
			}
			if len(i.FaultyNodes()) == 0 {
				g.Done = append(g.Done, guard.Done{Verb: verb, Node: g.Node, At: n.At})
			}
		}
	}
	g.Done = slices.DeleteFunc(g.Done, func(d guard.Done) bool {
		return d.Verb == policy.Cordon && !i.Plan.Cordon || d.Verb == policy.RestartJob && !i.Plan.Restart
	})
	return g
}

// doneBy says which step was intended once an incident had reached a state.
var doneBy = map[incident.State]policy.Verb{incident.Approved: policy.Cordon, incident.Placed: policy.RestartJob}
