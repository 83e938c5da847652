package remediator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

const (
	// uncordonEvery is how often the leader looks which of its cordons it may take back.
	uncordonEvery = time.Minute
	// calmFor is how long all that an uncordon needs must have held without a break: a fault that comes and goes keeps its node cordoned.
	calmFor = 5 * time.Minute
)

// quarantines is the cluster as uncordoning sees it; *cluster.Cluster is one.
type quarantines interface {
	QuarantinedNodes() []cluster.Quarantine
	Node(name string) (*fleet.Node, error)
	Uncordon(ctx context.Context, node, incident string) (cluster.Cordoned, error)
	SetCondition(ctx context.Context, node string, healthy bool, reason, message string) error
	NodeRef(name string) cluster.Ref
	Event(ctx context.Context, about cluster.Ref, level, reason, message string) error
}

// uncordoner takes back Pitcrew's own cordons where a policy says so, after a repair or by age. What it cannot be sure of it leaves cordoned.
type uncordoner struct {
	nodes    quarantines
	policies book
	said     *board
	kill     func() guard.Kill
	fence    func() error
	incident func(ctx context.Context, id string) (incident.Incident, error)
	unwanted func(node string, do func()) (by string) // see incident.Engine.Unwanted
	undid    func(ctx context.Context, incident, node string) error
	now      func() time.Time
	log      *slog.Logger

	calm map[cluster.Quarantine]time.Time // since when a quarantine could be lifted
}

// uncordons lifts quarantines until ctx ends.
func (r *remediator) uncordons(ctx context.Context, e *incident.Engine, said *board) {
	u := &uncordoner{nodes: r.cluster, policies: r.policies, said: said, kill: r.kill, fence: e.Fence, unwanted: e.Unwanted, undid: e.Ledger.Undid,
		now: time.Now, log: r.o.Log,
		incident: func(ctx context.Context, id string) (incident.Incident, error) {
			i, _, err := e.Store.Get(ctx, id)
			return i, err
		}}
	for pause(ctx, uncordonEvery) {
		u.round(ctx)
	}
}

// round looks at each quarantined node once. A node that cannot be judged or written is looked at again in the next round.
func (u *uncordoner) round(ctx context.Context) {
	if !slices.ContainsFunc(u.policies.current().Policies(), func(p policy.Policy) bool { return p.Spec.Uncordon != policy.Uncordoning{} }) {
		u.calm = nil
		return
	}
	calm := map[cluster.Quarantine]time.Time{}
	for _, q := range u.nodes.QuarantinedNodes() {
		why, refused := u.judge(ctx, q)
		if refused != "" {
			u.log.Debug("a quarantine stays", "node", q.Node, "incident", q.Incident, "because", refused)
			continue
		}
		since, seen := u.calm[q]
		if !seen {
			since = u.now()
		}
		if calm[q] = since; u.now().Sub(since) < calmFor {
			continue
		}
		by := u.unwanted(q.Node, func() { u.lift(ctx, q, why) })
		if by != "" {
			delete(calm, q)
			u.log.Debug("a quarantine stays", "node", q.Node, "incident", q.Incident, "because", "incident "+by+" has the node")
		}
	}
	u.calm = calm
}

// judge says why a quarantine may be lifted, or what speaks against it.
func (u *uncordoner) judge(ctx context.Context, q cluster.Quarantine) (why, refused string) {
	if k := u.kill(); k.On {
		return "", "Pitcrew is paused: " + k.Reason
	}
	if refused := u.node(q); refused != "" {
		return "", refused
	}
	i, err := u.incident(ctx, q.Incident)
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return "", "the record of its incident is gone; `pitcrew node uncordon` lifts it"
	case err != nil:
		return "", "its incident cannot be read: " + err.Error()
	case i.Open():
		return "", "its incident is open"
	case i.Plan == nil:
		return "", "its incident has no plan"
	}
	p, ok := u.policies.current().ByName(i.Plan.Policy)
	switch {
	case !ok:
		return "", "policy " + i.Plan.Policy + " does not exist any more"
	case p.Spec.Mode != policy.Enforce:
		return "", fmt.Sprintf("policy %s is in mode %s", i.Plan.Policy, p.Spec.Mode)
	}
	if grave := u.said.grave(q.Node); len(grave) > 0 {
		return "", fmt.Sprintf("%s, %s, is active", grave[0].key, grave[0].severity)
	}
	return u.due(q, i, p)
}

// node says what of the node itself speaks against an uncordon.
func (u *uncordoner) node(q cluster.Quarantine) string {
	n, err := u.nodes.Node(q.Node)
	switch {
	case err != nil:
		return err.Error()
	case n.Quarantined != q.Incident:
		return "the quarantine has changed"
	case n.Held != "":
		return "the node is on hold: " + n.Held
	case n.OutOfService != "":
		return "the node is out of service: " + n.OutOfService
	case !n.Ready:
		return "the node is not ready"
	case !u.said.heard(q.Node):
		return "the node's agent is silent"
	}
	return ""
}

// due says by which of the policy's rules the time for an uncordon has come.
func (u *uncordoner) due(q cluster.Quarantine, i incident.Incident, p policy.Policy) (why, refused string) {
	after := time.Duration(p.Spec.Uncordon.After)
	if age := u.now().Sub(q.Since); after > 0 && !q.Since.IsZero() && age >= after {
		return fmt.Sprintf("it was cordoned more than %s ago, and nothing critical is active", p.Spec.Uncordon.After), ""
	}
	if !p.Spec.Uncordon.AfterRepair {
		return "", "policy " + p.Metadata.Name + " does not uncordon it yet"
	}
	for _, f := range i.Faults {
		if f.Node != q.Node {
			continue
		}
		ended, how := u.said.repaired(f.Event)
		if !ended {
			return "", f.Signal + " is not repaired: " + how
		}
		why = f.Signal + " is repaired: " + how
	}
	if why == "" {
		return "", "its incident does not say which fault led to the cordon"
	}
	return why, ""
}

// lift takes the quarantine back and records it. A cordon that somebody else had made before stays.
func (u *uncordoner) lift(ctx context.Context, q cluster.Quarantine, why string) {
	if u.fence != nil && u.fence() != nil {
		return
	}
	done, err := u.nodes.Uncordon(ctx, q.Node, q.Incident)
	if err != nil {
		u.log.Warn("uncordon by policy; tried again", "node", q.Node, "incident", q.Incident, "in", uncordonEvery, "error", err)
		return
	}
	text := "quarantine of incident " + q.Incident + " lifted by policy: " + why
	if done.Foreign {
		text += "; the node stays cordoned, since it was before"
	}
	u.log.Info("uncordoned by policy", "node", q.Node, "incident", q.Incident, "because", why, "stays_cordoned", done.Foreign)
	if err := u.undid(ctx, q.Incident, q.Node); err != nil && ctx.Err() == nil {
		u.log.Warn("record an uncordon in the ledger", "node", q.Node, "incident", q.Incident, "error", err)
	}
	if err := u.nodes.SetCondition(ctx, q.Node, true, "Uncordoned", text); err != nil && ctx.Err() == nil {
		u.log.Warn("node condition", "node", q.Node, "error", err)
	}
	if err := u.nodes.Event(ctx, u.nodes.NodeRef(q.Node), cluster.Normal, "PitcrewUncordoned", text); err != nil && ctx.Err() == nil {
		u.log.Warn("event of an uncordon", "node", q.Node, "error", err)
	}
}

// obeyUncordons records each uncordon by a person, and says so on the node.
func (r *remediator) obeyUncordons(ctx context.Context, e *incident.Engine) error {
	return ignoreEnd(ctx, r.cluster.OnUncordon(ctx, func(u cluster.Uncordoned) {
		r.o.Log.Info("a person uncordoned a node; obeyed", "node", u.Node, "incident", u.Incident, "by", u.By, "reason", u.Reason)
		if err := e.Uncordoned(ctx, u.Node, u.At); err != nil && ctx.Err() == nil {
			r.o.Log.Warn("record that a person uncordoned a node", "node", u.Node, "error", err)
		}
		if err := r.cluster.SetCondition(ctx, u.Node, true, "Uncordoned", uncordonedBy(u)); err != nil && ctx.Err() == nil {
			r.o.Log.Warn("node condition", "node", u.Node, "error", err)
		}
	}))
}

// uncordonedBy is the text of the node's condition after a person lifted its quarantine.
func uncordonedBy(u cluster.Uncordoned) string {
	text := "a person uncordoned it"
	if u.By != "" {
		text = u.By + " uncordoned it"
	}
	if u.Reason != "" {
		text += ": " + u.Reason
	}
	return text
}
