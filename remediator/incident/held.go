package incident

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/guard"
)

// passing are the guards whose refusal is not final, since what they guard against passes: how often they are asked again. A kill switch
// that is turned off wakes every incident. What is not here has said no for good: whoever owns the job has not opted in, or restarts do
// not help it.
var passing = map[guard.Name]time.Duration{
	guard.KillSwitch: 30 * time.Second,
	guard.Hold:       5 * time.Second,
	guard.Blackout:   30 * time.Second,
	guard.Breaker:    30 * time.Second,
	guard.Concurrent: watchEvery,
	guard.Cooldown:   30 * time.Second,
	guard.ActBudget:  30 * time.Second,
}

// Passes reports whether a refusal by the guard holds an incident back and does not end it.
func Passes(g guard.Name) bool { return passing[g] > 0 }

// waitTurn begins a wait for other incidents, which will be done in seconds: nobody is needed.
const waitTurn = "its turn: "

// held deals with a plan that guards refuse before anything was done. Where what they guard against passes, the incident stays open, for
// as long as the policy says, and is judged again from live state: see freshen for what must hold by then.
func (d *driver) held(ctx context.Context, i Incident, p *Plan, refused []guard.Verdict, record func(*Incident)) error {
	final := func(why string) error {
		if err := d.change(ctx, record); err != nil {
			return err
		}
		return d.closes(ctx, Refused, why)
	}
	if p.Mode == observes {
		return final("guard " + refused[0].String())
	}
	var first *guard.Verdict // of those that pass
	for k, v := range refused {
		_, passes := passing[v.Guard]
		switch {
		case passes && first == nil:
			first = &refused[k]
		case !passes && v.Guard == guard.EventAge && d.silent(i):
		case !passes:
			return final("guard " + v.String())
		}
	}
	now, within := d.e.Now(), p.TakeUpWithin
	if first == nil { // too old alone: nobody has said since that it holds
		if i.HeldAt.IsZero() {
			return final("guard " + refused[0].String())
		}
		first = &refused[0]
	}
	turn := first.Guard == guard.Concurrent
	if turn {
		within = max(within, d.e.Judge.MaxEventAge())
	}
	switch since := i.heldSince(); {
	case within == 0:
		return final("guard " + first.String())
	case !since.IsZero() && now.Sub(since) > within:
		return final(fmt.Sprintf("guard %s; it did not let go within %s", first, within))
	}
	what, every := waitGuard+string(first.Guard), passing[first.Guard]
	if turn {
		what = waitTurn + string(first.Guard)
	}
	if every == 0 {
		every = 30 * time.Second
	}
	held, at := strings.HasPrefix(i.Waiting, what), endsAt(first.String())
	if !held || endsAt(i.Waiting) != at {
		err := d.change(ctx, func(i *Incident) {
			if !held { // the verdicts stay those that held it back first: the breaker counts from them
				record(i)
			}
			if i.HeldAt.IsZero() {
				i.HeldAt = now
			}
			i.Waiting = what + strings.TrimPrefix(first.String(), string(first.Guard))
			i.note(now, fmt.Sprintf("waiting: %s; taken up when it lets go, if the fault still holds then, within %s", i.Waiting, strings.Replace(within.String(), "h0m0s", "h", 1)))
		})
		if err != nil {
			return err
		}
	}
	if until := first.Until.Sub(now); until > 0 {
		every = min(every, until)
	}
	return d.rests(ctx, every)
}

// endsAt is the part of a verdict that says when time alone will end it. Other numbers in it may change each time it is asked for.
func endsAt(verdict string) string {
	_, at, _ := strings.Cut(verdict, ", until ")
	return at
}

// heldSince is from when the bound counts: the first refusal, or the newest fault if that came later.
func (i *Incident) heldSince() time.Time {
	since := i.HeldAt
	for _, f := range i.Faults {
		if !since.IsZero() && f.Seen.After(since) {
			since = f.Seen
		}
	}
	return since
}

// seen is when the fault was last known to hold: now, if its node says so now.
func (d *driver) seen(f Fault) time.Time {
	if s, _ := d.e.Conditions.Standing(f.Event); s == Holds {
		return d.e.Now()
	}
	return f.Seen
}

// silent reports that some fault stood when its node was last heard, and that nobody can ask the node now.
func (d *driver) silent(i Incident) bool {
	return slices.ContainsFunc(i.Faults, func(f Fault) bool { s, _ := d.e.Conditions.Standing(f.Event); return s == Silent })
}

// freshen drops the faults of a held incident that have ended by themselves, and closes it when none is left.
func (d *driver) freshen(ctx context.Context) (open bool, err error) {
	i := d.snapshot()
	if i.HeldAt.IsZero() || i.acted() {
		return true, nil
	}
	var holding []Fault
	var why []string
	for _, f := range i.Faults {
		if s, reason := d.e.Conditions.Standing(f.Event); s == Ended {
			why = append(why, fmt.Sprintf("%s on %s %s", f.Signal, f.Node, reason))
		} else {
			holding = append(holding, f)
		}
	}
	if len(holding) == 0 {
		return false, d.closes(ctx, Resolved, strings.Join(why, "; ")+", before anything was done")
	}
	return true, d.keepOnly(ctx, i, holding, why)
}

// lets is asked when no guard refuses a held incident any more: ranks are looked at as they are now, as when they were first heard of.
func (d *driver) lets(ctx context.Context, i Incident, g *cluster.Gang) (same bool, err error) {
	if g == nil || !slices.ContainsFunc(i.Faults, func(f Fault) bool { return f.Rank != nil }) {
		return true, nil
	}
	record, err := d.attempt(ctx, g)
	if err != nil {
		return false, err
	}
	holding, _, why := d.confirm(ctx, i, g, record)
	if len(holding) == 0 {
		return false, d.closes(ctx, NotConfirmed, why)
	}
	if len(holding) == len(i.Faults) {
		return true, nil
	}
	return false, d.keepOnly(ctx, i, holding, []string{why})
}

// keepOnly records that some faults of i are no more. Those that joined since stay.
func (d *driver) keepOnly(ctx context.Context, i Incident, holding []Fault, why []string) error {
	if len(holding) == len(i.Faults) {
		return nil
	}
	judged := len(i.Faults)
	err := d.change(ctx, func(i *Incident) {
		i.Faults = append(slices.Clone(holding), i.Faults[judged:]...)
		i.note(d.e.Now(), strings.Join(why, "; "))
	})
	d.considered = len(holding)
	return err
}

// Wake lets every open incident, and what was only observed, be looked at again now: a kill switch was turned, or policies changed.
func (e *Engine) Wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case e.look <- struct{}{}:
	default:
	}
	for _, d := range e.drivers {
		d.poke()
	}
}

// errObserves says that the policy still only observes what an incident was opened for.
var errObserves = errors.New("the policy only observes")

// takeUpEvery is how often closed incidents are looked at whose policy only observed.
const takeUpEvery = 30 * time.Second

// takeUps opens an incident for each fault that was only observed, once its policy acts, if the node says now that it still holds. Each is
// taken up once, whoever leads: the new event's id follows from the old incident and fault.
func (e *Engine) takeUps(ctx context.Context) {
	dealt := map[string]bool{} // by the new event's id; a help, since what is dealt with is remembered in the bus
	for t := time.NewTicker(takeUpEvery); ; {
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		case <-e.look:
		}
		_, all := e.Incidents()
		still := map[string]bool{}
		for _, i := range all {
			if i.Open() || i.Plan == nil || i.Plan.Mode != observes {
				continue
			}
			for _, f := range i.Faults {
				ev := f.Event
				ev.ID = event.NewID(i.ID, "taken up", f.EventID)
				if still[ev.ID] = dealt[ev.ID] || e.takeUp(ctx, ev, i); !still[ev.ID] {
					delete(still, ev.ID)
				}
			}
		}
		dealt = still
	}
}

// takeUp reports whether the event is dealt with for good.
func (e *Engine) takeUp(ctx context.Context, ev event.Event, observed *Incident) bool {
	if s, _ := e.Conditions.Standing(ev); s != Holds {
		return false
	}
	err := e.Handle(ctx, ev, Origin{Live: true, Observed: observed})
	if err != nil && !errors.Is(err, errObserves) && ctx.Err() == nil {
		e.Log.Warn("take up what was only observed; will retry", "incident", observed.ID, "error", err)
	}
	return err == nil
}
