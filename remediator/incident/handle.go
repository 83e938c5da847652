package incident

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// Origin says how an event reached the engine.
type Origin struct {
	Age time.Duration // since JetStream stored it, by its clock
	// Live says that the node's own current conditions bear the event out: it was read from them, not from the stream.
	Live bool
	// Observed is the closed incident that a policy only observed, where the event is said again for it; nil otherwise.
	Observed *Incident
}

// Handle deals with one event. It returns nil when the event needs no further delivery, also when nothing is to be done; an error
// means: deliver it again.
func (e *Engine) Handle(ctx context.Context, ev event.Event, o Origin) error {
	if ev.Type != event.Fault && ev.Type != event.Anomaly {
		return nil
	}
	if o.Observed == nil && e.idles(ev) {
		e.count("no rule acts")
		return nil
	}
	defer e.keys.lock("node/" + ev.Data.Target.Node)()
	if s, _ := e.Conditions.Standing(ev); s == Holds {
		o.Live = true // however late it is read, its node says now that it holds
	}
	if age := e.ageOf(ev, o); age > e.Judge.MaxEventAge() && !o.Live {
		// A stale event never acts by itself. If its node still has the condition, the reconciliation of conditions brings it
		// back as a live one; so it must not be remembered as dealt with.
		e.count("stale")
		e.Log.Warn("stale event: nothing is done by it", "id", ev.ID, "signal", ev.Data.Cause.Signal(), "age", age)
		return nil
	}
	h := &handling{e: e, Event: ev, observed: o.Observed}
	err := e.dispatch(ctx, h)
	if errors.Is(err, cluster.ErrForbidden) { // it will be refused again, and must not hold up the others
		e.count("forbidden")
		e.Log.Error("event not dealt with", "id", ev.ID, "signal", ev.Data.Cause.Signal(), "error", err)
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case h.known:
		return nil
	case h.asked:
		return e.Seen.Remember(ctx, ev.ID)
	case h.askedTold && !h.told:
		return e.Seen.Remember(ctx, toldID(ev.ID))
	}
	return nil
}

// toldID is under what it is remembered that people were told of an event that no rule acted on. It may still act later, once it has occurred
// often enough.
func toldID(id string) string { return "told/" + id }

// idles reports that nothing can come of an event: no rule may act on it, nobody is told of it, and no open incident takes it in. Most events
// of a cluster are such, so it collects no facts and asks no server.
func (e *Engine) idles(ev event.Event) bool {
	acts, tells := e.Judge.Reach(ev)
	return !acts && !(tells && e.Ignored != nil) && !e.joins(ev.Data.Target)
}

// joins reports whether an open incident that still takes in echoes concerns the target.
func (e *Engine) joins(t event.Target) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	takes := func(d *driver) bool {
		i := d.now.Load()
		return i.Open() && len(i.Joined) < maxJoined
	}
	if slices.ContainsFunc(e.byNode[t.Node], takes) {
		return true
	}
	if len(e.byJob) == 0 {
		return false
	}
	return slices.ContainsFunc(e.Cluster.JobsAt(t), func(uid string) bool { d := e.byJob[uid]; return d != nil && takes(d) })
}

// handling is one event while it is dealt with. Whether it was dealt with before is only asked where something is to be done about it.
type handling struct {
	event.Event
	e        *Engine
	observed *Incident
	looked   bool // whether it was dealt with before is known, and nothing asked for it yet
	asked    bool
	known    bool

	askedTold, told bool // the same of whether people were told of it
}

// look finds out whether the event was dealt with before.
func (h *handling) look(ctx context.Context) (err error) {
	if !h.looked {
		h.known, err = h.e.Seen.Known(ctx, h.ID)
		h.looked = err == nil
	}
	return err
}

func (h *handling) before(ctx context.Context) (known bool, err error) {
	if h.asked {
		return h.known, nil
	}
	if err := h.look(ctx); err != nil {
		return false, err
	}
	if h.asked = true; h.known {
		h.e.count("seen before")
	}
	return h.known, nil
}

// beforeTold is before, of an event that people are only told of.
func (h *handling) beforeTold(ctx context.Context) (known bool, err error) {
	if h.asked || h.askedTold {
		return h.known || h.told, nil
	}
	if err := h.look(ctx); err != nil {
		return false, err
	}
	if !h.known {
		if h.told, err = h.e.Seen.Known(ctx, toldID(h.ID)); err != nil {
			return false, err
		}
	}
	if h.askedTold = true; h.known || h.told {
		h.e.count("seen before")
	}
	return h.known || h.told, nil
}

// ageOf is the greater of the stream's age and of what the event says of itself: a replayed event is young in the stream and
// old by its own time. A node's clock that runs ahead cannot make it younger than the stream says.
func (e *Engine) ageOf(ev event.Event, o Origin) time.Duration {
	return max(o.Age, e.Now().Sub(ev.Time))
}

func (e *Engine) count(reason string) {
	e.mu.Lock()
	e.noted[reason]++
	e.mu.Unlock()
}

// Noted counts events that opened nothing, by reason.
func (e *Engine) Noted() map[string]int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[string]int64{}
	for k, v := range e.noted {
		out[k] = v
	}
	return out
}

// dispatch opens or joins one incident per gang concerned, or one for the node where no gang is.
func (e *Engine) dispatch(ctx context.Context, h *handling) error {
	gangs, err := e.Cluster.GangsAt(ctx, h.Data.Target)
	if err != nil {
		return err
	}
	slices.SortFunc(gangs, func(a, b cluster.Gang) int { return strings.Compare(a.Job.UID, b.Job.UID) }) // one order, so that two never wait for each other
	if slices.ContainsFunc(gangs, func(g cluster.Gang) bool { return e.incidentOf(&g, "") != nil }) {    // events of other nodes of the job wait for this one
		if err := h.look(ctx); err != nil {
			return err
		}
	}
	for _, g := range gangs {
		defer e.keys.lock("job/" + g.Job.UID)()
	}
	if len(gangs) == 0 {
		return e.concern(ctx, h, nil)
	}
	var errs []error
	for _, g := range gangs {
		errs = append(errs, e.concern(ctx, h, &g))
	}
	return errors.Join(errs...)
}

func (e *Engine) concern(ctx context.Context, h *handling, g *cluster.Gang) error {
	ev, observed := h.Event, h.observed
	t := ev.Data.Target
	node, err := e.Cluster.Node(t.Node)
	if err != nil && t.Node != "" {
		e.count("node unknown")
		e.Log.Warn("event about a node that the cluster does not have", "id", ev.ID, "node", t.Node)
		return nil
	}
	if g != nil && t.Node != "" && !standsOn(g, t.Node) { // a node speaks for its own pods only
		e.count("gang is elsewhere")
		e.Log.Warn("event about a gang that has no pod on the node that speaks", "id", ev.ID, "node", t.Node, "job", g.Job.Name)
		return nil
	}
	if g != nil && t.Job != nil && t.Job.UID != "" && t.Job.UID != g.Job.UID { // it was compared with ranks of a job that is not its own
		e.count("pod of another job")
		e.Log.Warn("event about a pod that is not of the job it names", "id", ev.ID, "pod", t.PodUID, "job", t.Job.UID, "its job", g.Job.UID)
		return nil
	}
	d := e.incidentOf(g, t.Node)
	facts := Facts{Now: e.Now(), Node: node, Gang: g, Cost: e.costOf(g)}
	if d != nil {
		i := d.snapshot()
		facts.Incident = &i
	}
	if d == nil && g == nil && node != nil && node.Quarantined != "" { // nobody runs there and nobody will: an echo of what was dealt with
		e.count("node is quarantined")
		return nil
	}
	plan, decision := e.Judge.Plan(ev, facts)
	if observed != nil && (plan == nil || plan.Mode == policy.Observe || e.Now().Sub(observed.Opened) > plan.TakeUpWithin) {
		return errObserves
	}
	if plan != nil {
		if known, err := h.before(ctx); known || err != nil {
			return err
		}
	} else if d == nil && decision.Outcome == policy.Tell && e.Ignored != nil { // a record knows its own echoes
		if known, err := h.beforeTold(ctx); known || err != nil {
			return err
		}
	}
	if plan == nil {
		e.count("no rule acts")
		if d != nil {
			return d.add(ctx, ev, nil)
		}
		if e.Ignored != nil {
			e.Ignored(ev, facts, decision)
		}
		e.Log.Debug("event noted", "id", ev.ID, "signal", ev.Data.Cause.Signal(), "node", t.Node, "outcome", decision.Outcome, "why", decision.Why, "detail", decision.Detail)
		return nil
	}
	if g == nil && d == nil && !plan.Has(policy.Cordon) { // a rank of a pod that is no more, say
		e.count("nothing runs there")
		return nil
	}
	f := faultOf(ev, g, plan)
	f.Seen, f.Counted = e.Now(), decision.Counted
	switch {
	case d != nil && plan.Mode == policy.Observe: // it is not to be acted on, also not along with another
		err = d.add(ctx, ev, nil)
	case d != nil:
		err = d.add(ctx, ev, &f)
	default:
		if c, ok := e.idle(g, f); ok {
			if in, err := e.takeIn(ctx, c, ev, g, plan, f); in || err != nil {
				return err
			}
		}
		return e.open(ctx, ev, g, f, plan, domainsOf(node), observed)
	}
	if errors.Is(err, errClosed) { // it ended at this moment
		ended := d.snapshot()
		e.remember(ended)
		e.drop(ended.ID)
		return e.concern(ctx, h, g)
	}
	return err
}

func standsOn(g *cluster.Gang, node string) bool {
	on := func(m cluster.Member) bool { return m.Node == node || m.Node == "" }
	return slices.ContainsFunc(g.Members, on) || slices.ContainsFunc(g.Leaving, on)
}

// incidentOf finds the open incident that an event about this gang, or about this node when it has none, belongs to.
func (e *Engine) incidentOf(g *cluster.Gang, node string) *driver {
	e.mu.Lock()
	defer e.mu.Unlock()
	if g != nil {
		return e.byJob[g.Job.UID]
	}
	for _, d := range e.byNode[node] {
		if d.now.Load().concerns(nil, node) {
			return d
		}
	}
	return nil
}

// open makes the incident's record. Its id follows from the event and the job, so that a redelivery finds the first.
func (e *Engine) open(ctx context.Context, ev event.Event, g *cluster.Gang, f Fault, p *Plan, domains []Domain, observed *Incident) error {
	now := e.Now()
	subject := ev.Data.Target.Node
	if g != nil {
		subject = g.Job.UID
	}
	i := Incident{
		ID: "inc-" + event.NewID(ev.ID, subject)[:12], Cluster: e.Name, Term: e.Term, State: Detected, Furthest: Detected, Opened: now, StateAt: now, Faults: []Fault{f}, Round: 1,
		Domains: domains,
	}
	i.Notes = []Note{{At: now, State: Detected, Text: strings.TrimSpace(fmt.Sprintf("%s on %s %s", f.Signal, f.Node, ev.Data.Evidence.Raw))}}
	if observed != nil {
		i.TakenUp = now
		i.note(now, fmt.Sprintf("taken up again: %s only observed it, the policy acts by now, and the node says that it still holds", observed.ID))
	}
	if g != nil {
		i.Job = &g.Job
	}
	if err := e.fence(); err != nil {
		return err
	}
	if i.Parent = e.kin.meets(siblingOf(&i, p), true); i.Parent != "" {
		i.note(now, "one cause with others: a child of "+i.Parent)
	}
	rev, err := e.Store.Put(ctx, i.ID, i, 0)
	if err != nil { // it may be stored all the same: delivered before, or only the answer was lost
		return e.takeOver(ctx, i.ID, err)
	}
	e.Log.Info("incident opened", "incident", i.ID, "signal", f.Signal, "node", f.Node, "job", subject)
	e.drive(i, rev)
	return nil
}

// takeOver drives a new record of which it is not known whether it was stored, if it was and nobody drives it yet. Otherwise it would stay open
// until the next leader starts.
func (e *Engine) takeOver(ctx context.Context, id string, unknown error) error {
	e.mu.Lock()
	driven := e.drivers[id] != nil
	e.mu.Unlock()
	if driven {
		return nil
	}
	stored, rev, err := e.Store.Get(ctx, id)
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return unknown
	case err != nil:
		return errors.Join(unknown, err)
	case stored.Open() && stored.Term <= e.Term: // a later leader drives its own
		e.Log.Info("taking up an incident whose record was stored before", "incident", id)
		e.drive(stored, rev)
	}
	return nil
}
