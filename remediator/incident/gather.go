package incident

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/guard"
)

// gathers finds incidents with one cause and makes their parents. What comes at once is looked at together: a rack that fails is one second
// of events.
func (e *Engine) gathers(ctx context.Context) {
	for left := 0; ; {
		if left == 0 {
			select {
			case <-ctx.Done():
				return
			case <-e.kin.news:
			}
		}
		if !pause(ctx, gatherEvery) {
			return
		}
		left = e.gatherNow(ctx)
	}
}

// gatherNow does it once. It returns how many incidents may still find others.
func (e *Engine) gatherNow(ctx context.Context) (left int) {
	for id := range e.kin.takeNamed() {
		if err := e.learn(ctx, id); err != nil {
			e.Log.Warn("read a parent; will retry", "parent", id, "error", err)
			e.kin.names(id)
		}
	}
	join, fresh, alone, left := e.kin.sort(e.Now())
	for id, parent := range join {
		p, ok := e.incident(parent)
		if ok {
			if err := e.attach(ctx, id, &p); err != nil {
				e.Log.Warn("join a parent; will retry", "incident", id, "parent", parent, "error", err)
			}
		}
	}
	for _, g := range fresh {
		if err := e.makeParent(ctx, g); err != nil && ctx.Err() == nil {
			e.Log.Warn("make a parent; will retry", "domain", g.Domain, "rule", g.rule, "error", err)
		}
	}
	for _, id := range alone {
		e.speak(id)
	}
	return left
}

// learn takes a parent up that another leader made.
func (e *Engine) learn(ctx context.Context, id string) error {
	if _, known := e.incident(id); known {
		return nil
	}
	p, rev, err := e.Store.Get(ctx, id)
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return nil
	case err != nil:
		return err
	case p.Open():
		e.drive(p, rev)
	default:
		e.remember(p)
	}
	return nil
}

// makeParent makes the record of a parent, and then tells its children. Its id follows from its oldest child, so that two leaders
// make the same one. A crash in between is repaired: the parent lists its children, and its step tells those that do not know.
func (e *Engine) makeParent(ctx context.Context, g gathering) error {
	first := g.members[0]
	for _, s := range g.members {
		if !s.later {
			first = s // the one that was told
			break
		}
	}
	i, known := e.incident(first.id)
	if !known || i.Plan == nil {
		return nil // it is looked at again in a moment
	}
	now := e.Now()
	f := i.Faults[0]
	f.Moves = false // the node is the child's
	p := Incident{ID: "inc-" + event.NewID("parent", g.rule, string(g.Kind), g.Name, g.members[0].id)[:12], Cluster: e.Name, Term: e.Term, State: Grouped, Furthest: Grouped,
		Opened: now, StateAt: now, Round: 1, Faults: []Fault{f}, Plan: i.Plan, Group: &Group{Domain: g.Domain, First: i.ID, FirstJob: i.Job, Joined: now}}
	for _, s := range g.members[:min(len(g.members), maxChildren)] {
		p.Group.Children = append(p.Group.Children, Child{ID: s.id, Node: s.node})
	}
	p.Notes = []Note{{At: now, State: Grouped, Text: fmt.Sprintf("%s of %s within %s, under rule %s", count(len(p.Group.Nodes()), "node"), g.Domain, first.limits.Within, g.rule)}}
	if err := e.fence(); err != nil {
		return err
	}
	rev, err := e.Store.Put(ctx, p.ID, p, 0)
	if errors.Is(err, bus.ErrConflict) { // made before the answer was lost
		if p, rev, err = e.Store.Get(ctx, p.ID); err == nil && !p.Open() {
			for _, s := range g.members {
				e.kin.drop(s.id)
			}
			return nil
		}
	}
	if err != nil {
		return err
	}
	e.Log.Info("incidents have one cause", "parent", p.ID, "domain", g.Domain, "rule", g.rule, "nodes", len(p.Group.Nodes()))
	e.kin.leads(&p)
	if e.driverOf(p.ID) == nil {
		e.drive(p, rev)
	}
	var errs []error
	for _, s := range g.members {
		errs = append(errs, e.attach(ctx, s.id, &p))
	}
	return errors.Join(errs...)
}

// attach makes an incident the child of a parent, unless it has one. It may be repeated.
func (e *Engine) attach(ctx context.Context, id string, parent *Incident) error {
	joins := func(i *Incident) {
		if i.Parent == "" {
			i.Parent = parent.ID
			i.note(e.Now(), "one cause with others of "+parent.Group.Domain.String()+": a child of "+parent.ID)
		}
	}
	err := errClosed
	if d := e.driverOf(id); d != nil {
		err = d.change(ctx, joins)
	}
	for errors.Is(err, errClosed) { // its record alone is changed
		var i Incident
		var rev uint64
		if i, rev, err = e.Store.Get(ctx, id); errors.Is(err, bus.ErrNotFound) {
			err = nil
			break
		} else if err != nil {
			return err
		}
		if i.Parent != "" {
			break
		}
		joins(&i)
		if err = e.fence(); err != nil {
			return err
		}
		if _, err = e.Store.Put(ctx, id, i, rev); errors.Is(err, bus.ErrConflict) {
			err = errClosed
		} else if err == nil {
			e.mu.Lock()
			e.closed[id] = i
			e.mu.Unlock()
		}
	}
	if err == nil {
		e.kin.drop(id)
	}
	return err
}

func (e *Engine) driverOf(id string) *driver {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.drivers[id]
}

// incident is a copy of an incident that is open or closed lately.
func (e *Engine) incident(id string) (Incident, bool) {
	if d := e.driverOf(id); d != nil {
		return d.snapshot(), true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	i, known := e.closed[id]
	return i, known
}

// Speaks reports whether people are told of the incident by itself. Of a child they are told by its parent, while that is open; one whose
// domain has another new incident waits for the window, in which it may become a child.
func (e *Engine) Speaks(i *Incident) bool {
	switch {
	case i.Group != nil:
		return true
	case i.Parent == "":
		return !e.kin.waits(i.ID)
	}
	p, known := e.incident(i.Parent)
	return !known || !p.Open() && (i.Open() || i.ClosedAt.After(p.ClosedAt))
}

// speak tells of an incident whose notices waited.
func (e *Engine) speak(id string) {
	if i, known := e.incident(id); known && e.Alone != nil && e.Speaks(&i) {
		e.Alone(&i)
	}
}

// heldWith is the refusal of a person who holds the incident's parent; false if nobody does.
func (e *Engine) heldWith(parent string, now time.Time) (guard.Verdict, bool) {
	d := e.driverOf(parent)
	if parent == "" || d == nil {
		return guard.Verdict{}, false
	}
	p := d.now.Load()
	if !p.Open() || p.Group == nil || p.Group.Held == "" || now.Sub(p.Group.HeldAt) >= holdLasts {
		return guard.Verdict{}, false
	}
	return guard.Verdict{Guard: guard.Hold, Asked: true, Until: p.Group.HeldAt.Add(holdLasts), Detail: "incident " + p.ID + " is " + p.Group.Held}, true
}

// rejected reports that a person's no came before anything was done.
func (v *view) rejected() *Result {
	if !strings.HasPrefix(v.Approval, Rejects) || v.acted() {
		return nil
	}
	return result(Close(Refused, v.Approval))
}

// meet takes an incident in that this leader did not open itself.
func (e *Engine) meet(i *Incident) {
	switch {
	case i.Plan == nil || len(i.Faults) == 0:
	case i.Group != nil && i.Open():
		e.kin.leads(i)
	case i.Parent != "":
		e.kin.names(i.Parent)
	case i.Group == nil && i.Parent == "" && e.Now().Sub(i.Opened) < time.Duration(i.Plan.OneCause.Within):
		e.kin.meets(siblingOf(i, i.Plan), false)
	}
}
