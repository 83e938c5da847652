package incident

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// Correlation is how long after the first fault of an incident on which nothing was done another finding of the same job, or of the same
// node where no job runs, is taken into its record rather than counted as an incident of its own. `pitcrew policy simulate` takes an
// incident to last as long.
const Correlation = 5 * time.Minute

// idle finds the closed incident that an event of fault f belongs to though nothing was done about it: a policy only observed it, or its job
// has not agreed. The newest, where there are several.
func (e *Engine) idle(g *cluster.Gang, f Fault) (found Incident, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.closed {
		if c.idle() && c.takes(f) && c.concerns(g, f.Node) && (!ok || c.Opened.After(found.Opened)) {
			found, ok = c, true
		}
	}
	return found, ok
}

func (i *Incident) idle() bool {
	return (i.Outcome == Observed || i.Outcome == Refused) && i.Plan != nil && !i.acted() && i.Group == nil
}

// concerns reports whether what happens to a gang, or to a node on which none runs, is a matter of this incident.
func (i *Incident) concerns(g *cluster.Gang, node string) bool {
	return g != nil && i.Job != nil && i.Job.UID == g.Job.UID || g == nil && (slices.Contains(i.FaultyNodes(), node) || i.sendsTo(node))
}

// takes tells a finding of what was found before from one that would have been an incident of its own: later by its source's clock, of
// another node that the job would have had to leave, or of a process that was started since.
func (i *Incident) takes(f Fault) bool {
	if f.At.Sub(i.Faults[0].At).Abs() > Correlation {
		return false
	}
	if nodes := i.FaultyNodes(); f.Moves && len(nodes) > 0 && !slices.Contains(nodes, f.Node) {
		return false
	}
	return !slices.ContainsFunc(i.Faults, func(k Fault) bool {
		if k.Attempt != nil && f.Attempt != nil && *f.Attempt > *k.Attempt {
			return true
		}
		return k.Rank != nil && f.Rank != nil && *k.Rank == *f.Rank && k.PodUID != f.PodUID
	})
}

// takeIn records a fault in the closed incident c that it belongs to, if nothing would be done about it either. Of a repetition, and beyond
// the bounds of a record, only the event's id is kept. It may be repeated.
func (e *Engine) takeIn(ctx context.Context, c Incident, ev event.Event, g *cluster.Gang, p *Plan, f Fault) (bool, error) {
	observed := c.Plan.Mode == policy.Observe
	if observed != (p.Mode == policy.Observe) {
		return false, nil
	}
	if !observed {
		if refused, err := e.unwanted(c, g, p, f); !refused || err != nil {
			return false, err
		}
	}
	for {
		i, rev, err := e.Store.Get(ctx, c.ID)
		switch {
		case errors.Is(err, bus.ErrNotFound):
			return false, nil
		case err != nil:
			return false, err
		case i.Knows(ev.ID):
			return true, nil
		case len(i.Faults) >= maxFaults, slices.ContainsFunc(i.Faults, f.repeats):
			if len(i.Joined) >= maxJoined {
				return true, nil
			}
			i.join(ev)
		default:
			i.Faults = append(i.Faults, f)
			i.note(e.Now(), fmt.Sprintf("%s on %s joined, of the same incident: rule %s", f.Signal, f.Node, p.Rule))
			if observed && p.Has(policy.Cordon) && !i.Plan.Has(policy.Cordon) { // worse than it began
				e.reconsider(&i, g, p)
			}
		}
		switch _, err = e.Store.Put(ctx, i.ID, i, rev); {
		case err == nil:
			e.mu.Lock()
			e.closed[i.ID] = i
			e.noted["joined a closed incident"]++
			e.mu.Unlock()
			return true, nil
		case !errors.Is(err, bus.ErrConflict):
			return false, err
		}
	}
}

// repeats reports whether f is the same thing said again.
func (f Fault) repeats(k Fault) bool {
	return k.Signal == f.Signal && k.Node == f.Node && k.GPU == f.GPU && k.PodUID == f.PodUID && (k.Rank == nil) == (f.Rank == nil) && (k.Rank == nil || *k.Rank == *f.Rank)
}

// unwanted reports whether an incident of this fault alone would be refused for good too, and for the same reason: its job has not opted in,
// or restarts do not help it. All other guards let go in time, and are asked anew for each.
func (e *Engine) unwanted(c Incident, g *cluster.Gang, p *Plan, f Fault) (bool, error) {
	v := e.viewOf(Incident{Faults: []Fault{f}}, g)
	if g == nil || v.left() {
		return false, nil // to cordon needs nobody's consent
	}
	v.Job = &g.Job
	book := e.Ledger.Book()
	verdicts := v.verdicts(p, Facts{Now: v.now, Gang: g, Incident: &v.Incident, Seen: f.Seen}, &book)
	return slices.ContainsFunc(guard.Blocking(verdicts), func(v guard.Verdict) bool {
		return (v.Guard == guard.OptIn || v.Guard == guard.PerJob) && slices.ContainsFunc(guard.Blocking(c.Guards), func(w guard.Verdict) bool { return w.Guard == v.Guard })
	}), nil
}

// viewOf looks at a record that no driver has.
func (e *Engine) viewOf(i Incident, g *cluster.Gang) *view {
	return &view{Incident: i, d: &driver{e: e, log: e.Log}, e: e, now: e.Now(), gang: g}
}

// reconsider writes down what a stronger plan would have done.
func (e *Engine) reconsider(i *Incident, g *cluster.Gang, p *Plan) {
	v := e.viewOf(*i, g)
	if g == nil || v.left() {
		p = p.onlyNode()
	}
	book := e.Ledger.Book()
	i.Guards = v.verdicts(p, Facts{Now: v.now, Gang: g, Incident: i, Seen: v.now}, &book)
	i.Plan, i.Moves, i.Reason = p, v.preview(p), p.wouldHave()
}
