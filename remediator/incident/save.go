package incident

import (
	"context"
	"errors"
	"fmt"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// save saves the gang together if every rank can, and otherwise says why the newest checkpoint on disk has to serve. Before ranks are made to
// hold, it waits for all that the move needs.
func save(ctx context.Context, v *view) Result {
	if v.gang == nil || !v.Plan.bringsBack() {
		return GoOn(Checkpointed, "no job to save")
	}
	if v.Wait != nil && !v.stopped() { // it may have ended meanwhile
		if r := v.fresh(); r != nil {
			return *r
		}
		if r := v.unconfirmed(v.Plan); r != nil {
			return *r
		}
	}
	if v.Plan.Has(policy.RestartJob) {
		if r := v.mayMove(ctx); r != nil {
			if r.kind == waitFor && v.d.held(v.Incident) != nil { // nobody is to hold meanwhile
				return PlanAgain(meanings[r.by].begins+r.text, 0)
			}
			return *r
		}
	}
	if r := v.mayAct(ctx); r != nil {
		return *r
	}
	c := Checkpoint{}
	if c.Why = v.cannotSave(); c.Why == "" {
		q := v.saveRequest()
		q.Admit = func(ctx context.Context, s bus.Save) error { // the compare-and-swap that makes a checkpoint exist
			s.Files = nil // of thousands of ranks; the manifest names them
			v.d.asked = &s
			return v.d.change(ctx, func(i *Incident) {
				i.Checkpoint = &Checkpoint{Save: &s}
				i.note(v.e.Now(), fmt.Sprintf("admitted checkpoint of step %d", s.Step))
			})
		}
		s, err := v.e.Checkpoint.Save(ctx, q)
		switch {
		case errors.Is(err, errLost), errors.Is(err, errStore), ctx.Err() != nil: // the same round again finds what it did
			return failed(err)
		case err != nil:
			c.Why, c.Save = err.Error(), v.d.asked
		default:
			s.Files = nil
			c.Taken, c.Save = true, &s
		}
	}
	text := "none taken: " + c.Why
	if c.Taken {
		text = fmt.Sprintf("step %d, %d bytes in %.3f s", c.Save.Step, c.Save.Bytes, c.Save.Seconds)
	}
	return GoOn(Checkpointed, text, func(i *Incident) {
		i.Checkpoint = &c
		if c.Taken {
			i.MaxStep = max(i.MaxStep, c.Save.Step)
		}
	})
}

// mayMove waits for what a move needs, and stops nothing until it is there: a free node, leave to evict, proof that a lost node is lost.
func (v *view) mayMove(ctx context.Context) *Result {
	if !free(v.Moves) {
		moves := v.preview(v.Plan)
		if !free(moves) {
			return result(WaitFor(ReasonNode, "; nothing is stopped. "+whyNone(moves), watchEvery))
		}
		return result(Again("", func(i *Incident) { i.Moves = moves }))
	}
	if r := v.lossUnproven(ctx); r != nil {
		return r
	}
	err := v.leave(ctx)
	if what := forbids(err); what != nil {
		return result(WaitFor(what.all, err.Error(), askEvery))
	}
	if err != nil {
		return result(failed(err))
	}
	return nil
}

func (v *view) saveRequest() checkpoint.Request {
	q := checkpoint.Request{ID: fmt.Sprintf("%s-%d", v.ID, v.Round), Members: members(v.gang, nil)}
	for _, f := range v.Faults {
		for _, m := range v.gang.Members {
			if f.Moves && m.Node == f.Node { // a faulty GPU is never the writer
				for r := range v.NProc {
					q.Exclude = append(q.Exclude, m.Index*v.NProc+r)
				}
			}
		}
	}
	return q
}

// cannotSave is why no round is begun, or empty.
func (v *view) cannotSave() string {
	if !v.Plan.Has(policy.Checkpoint) {
		return "the rule asks for none"
	}
	for _, f := range v.Faults {
		if !f.Usable {
			return fmt.Sprintf("%s leaves rank state on %s unusable", f.Signal, f.Node)
		}
	}
	return ""
}
