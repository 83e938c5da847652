package incident

import (
	"slices"

	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/ledger"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// realGuards judges by package guard, as the remediator does, and by what the world's nodes show.
type realGuards struct {
	*world
	policy policy.Policy
	kill   bool // under the world's lock
}

func (r *realGuards) Guards(p *Plan, f Facts, b *ledger.Book) []guard.Verdict {
	return r.guards(p, f, b, nil)
}

// guards is Guards with what is known of a statistical finding; nil unless the plan is for one.
func (r *realGuards) guards(p *Plan, f Facts, b *ledger.Book, finding *guard.Finding) []guard.Verdict {
	if p.Terms == nil {
		finding = nil
	}
	r.mu.Lock()
	s := guard.State{Kill: guard.Kill{On: r.kill}, Total: len(r.nodes), Grants: b.Grants, Tripped: b.Tripped[p.Policy]}
	for _, name := range r.names() {
		if r.nodes[name].quarantined != "" {
			s.Quarantined = append(s.Quarantined, guard.PlaceOf(r.view(name, nil)))
		}
	}
	r.mu.Unlock()
	with := p.With()
	base := guard.Action{Policy: r.policy, With: &with, Incident: f.Incident.ID, Causes: f.Incident.causes(), Node: factsOf(f.Node), Wants: f.Wants, Disruptive: p.Disruptive(), Seen: f.Seen, Finding: finding}
	if f.Gang != nil {
		base.Job = policy.Job{Namespace: f.Gang.Job.Namespace, Name: f.Gang.Job.Name, UID: f.Gang.Job.UID, Annotations: f.Gang.Annotations, NamespaceLabels: map[string]string{guard.OptInLabel: guard.OptInValue}}
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

func factsOf(n *fleet.Node) policy.Node {
	if n == nil {
		return policy.Node{}
	}
	return policy.Node{Name: n.Name, Pool: n.Pool, Labels: n.Labels, Annotations: n.Annotations, Ready: n.Ready, Unschedulable: n.Unschedulable, Quarantined: n.Quarantined != ""}
}

func (r *realGuards) pause(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kill = on
}

// lead starts an engine of a term on the stage's stores, in place of the one that ran.
func (s *stage) lead(term int64, set func(*Engine)) {
	s.startAs(func(e *Engine) {
		e.Term = term
		e.Ledger = ledger.New(ledger.Options{Store: s.books, Term: term, Now: e.Now, Granted: e.Granted})
		set(e)
	})
}
