package incident

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// passing are the guards whose refusal is not final, since what they guard against passes: how often they are asked again. A kill switch
// that is turned off wakes every incident, and the ledger wakes those that it lets in. The refusal of any other guard is final: whoever owns
// the job has not opted in, or restarts do not help it.
var passing = map[guard.Name]time.Duration{
	guard.KillSwitch: 30 * time.Second,
	guard.Hold:       5 * time.Second,
	guard.Blackout:   30 * time.Second,
	guard.Breaker:    30 * time.Second,
	guard.Concurrent: watchEvery,
	guard.Cooldown:   30 * time.Second,
	guard.ActBudget:  30 * time.Second,
	guard.LedgerFull: 30 * time.Second,
	guard.Lasts:      watchEvery,
	guard.SecondSign: watchEvery,
	guard.OneCulprit: watchEvery,
	guard.WorthIt:    watchEvery,
	guard.Fresh:      watchEvery,
}

// evidence are the guards that a finding may satisfy as it goes on. A policy that only observes waits for them too: it records what would have
// been done, not what could not have been done two seconds after the onset.
var evidence = []guard.Name{guard.Lasts, guard.SecondSign, guard.OneCulprit, guard.WorthIt, guard.Fresh}

// Passes reports whether a refusal by the guard holds an incident back and does not end it.
func Passes(g guard.Name) bool { return passing[g] > 0 }

// refusal is the wait for a guard that refuses.
func refusal(v guard.Verdict) Result {
	every := passing[v.Guard]
	if every == 0 || every > watchEvery { // ranks may stand: the guard is looked at as often as everything else
		every = watchEvery
	}
	r := WaitFor(guardReason(v.Guard), strings.TrimPrefix(v.String(), string(v.Guard)), every)
	r.until = v.Until
	return r
}

// guarded is a guard's refusal in the middle of an action.
type guarded struct{ guard.Verdict }

func (g *guarded) Error() string { return "guard " + g.String() }

// mayStill asks the guards in the middle of an action that takes long.
func (v *view) mayStill(ctx context.Context) error {
	verdicts, err := v.admit(ctx, v.Plan)
	if err != nil {
		return asStore(err)
	}
	if refused := guard.Blocking(verdicts); len(refused) > 0 {
		return &guarded{refused[0]}
	}
	return nil
}

// heldBack deals with a plan that guards refuse before anything was done. Where what they guard against passes, the incident stays open, for
// as long as the policy says, and is judged again from live state: see fresh for what must hold by then.
func (v *view) heldBack(p *Plan, refused []guard.Verdict, record func(*Incident)) Result {
	final := func(why string) Result { return Close(Refused, why).with(record) }
	unripe := func(x guard.Verdict) bool { return slices.Contains(evidence, x.Guard) }
	if p.Mode == policy.Observe && !slices.ContainsFunc(refused, unripe) {
		return final("guard " + refused[0].String())
	}
	var first *guard.Verdict // of those that pass
	for k, x := range refused {
		passes := Passes(x.Guard)
		switch {
		case passes && first == nil:
			first = &refused[k]
		case !passes && x.Guard == guard.EventAge && v.silent():
		case !passes:
			return final("guard " + x.String())
		}
	}
	within := p.TakeUpWithin
	if first == nil { // too old alone: nobody has said since that it holds
		if v.HeldAt.IsZero() {
			return final("guard " + refused[0].String())
		}
		first = &refused[0]
	}
	if first.Guard == guard.Concurrent {
		within = max(within, v.e.Judge.MaxEventAge())
	}
	switch since := v.heldSince(); {
	case within == 0:
		return final("guard " + first.String())
	case !since.IsZero() && v.now.Sub(since) > within:
		return final(fmt.Sprintf("guard %s; it did not let go within %s", first, within))
	}
	r := refusal(*first)
	if r.wait = passing[first.Guard]; r.wait == 0 {
		r.wait = 30 * time.Second
	}
	r.besides = fmt.Sprintf("; taken up when it lets go, if the fault still holds then, within %s", strings.Replace(within.String(), "h0m0s", "h", 1))
	begins := v.Wait == nil || v.Wait.Reason != r.by
	return r.with(func(i *Incident) {
		if begins { // the verdicts stay those that held it back first
			record(i)
		}
		if i.HeldAt.IsZero() {
			i.HeldAt = v.now
		}
	})
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

// unconfirmed waits where nobody vouches any more for the finding that a plan is for. Its guards were asked before the cordon, which may be hours
// ago when a node for the rank is found. nil: somebody does, or ranks hold by now.
func (v *view) unconfirmed(p *Plan) *Result {
	if !p.statistical() || !v.acted() || v.stopped() || v.d.held(v.Incident) != nil {
		return nil
	}
	f := v.finding()
	if s, why := v.e.Conditions.Standing(f.Event); s == Silent {
		return result(WaitFor(guardReason(guard.Fresh), fmt.Sprintf(": %s is not confirmed any more, %s", f.Signal, why), watchEvery))
	}
	return nil
}

// reconfirm looks, after a wait and before the first action, whether ranks are still as they were when they were first heard of, and whether
// the job is still there. nil: all faults hold.
func (v *view) reconfirm(ctx context.Context) *Result {
	if r := v.fresh(); r != nil {
		return r
	}
	if v.gang == nil || !slices.ContainsFunc(v.Faults, func(f Fault) bool { return f.Rank != nil }) {
		return nil
	}
	record, err := v.attempt(ctx)
	if err != nil {
		return result(failed(err))
	}
	holding, _, no := v.confirm(ctx, record)
	switch {
	case len(holding) == 0:
		return result(no.result())
	case len(holding) < len(v.Faults):
		return result(v.keepOnly(holding, no.why))
	}
	return nil
}
