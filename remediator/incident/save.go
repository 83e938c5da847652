package incident

import (
	"context"
	"errors"
	"fmt"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// checkpoint saves the gang together if every rank can, and otherwise says why the newest checkpoint on disk has to serve.
func (d *driver) checkpoint(ctx context.Context) error {
	i := d.snapshot()
	if g, ok, err := d.gang(ctx); !ok || err != nil {
		return err
	} else if g == nil || !i.Plan.Restart && !i.Plan.Checkpoint {
		return d.to(ctx, Checkpointed, "no job to save", nil)
	}
	if ok, err := d.mayAct(ctx, i); !ok || err != nil {
		return err
	}
	if i.Plan.Restart && !free(i.Moves) {
		if ok, err := d.waitForNode(ctx); !ok || err != nil {
			return err
		}
	}
	if i.Plan.Restart {
		if ok, err := d.waitForLeave(ctx); !ok || err != nil {
			return err
		}
		i = d.snapshot()
	}
	g, ok, err := d.gang(ctx)
	if !ok || err != nil {
		return err
	}
	c := Checkpoint{}
	if c.Why = d.cannotSave(i); c.Why == "" {
		q := d.saveRequest(i, g)
		q.Admit = func(ctx context.Context, s bus.Save) error { // the compare-and-swap that makes a checkpoint exist
			return d.change(ctx, func(i *Incident) { i.note(d.e.Now(), fmt.Sprintf("admitted checkpoint of step %d", s.Step)) })
		}
		save, err := d.e.Checkpoint.Save(ctx, q)
		switch {
		case errors.Is(err, errLost) || ctx.Err() != nil:
			return err
		case err != nil:
			c.Why = err.Error()
		default:
			save.Files = nil // of thousands of ranks; the manifest names them
			c.Taken, c.Save = true, &save
		}
	}
	text := "none taken: " + c.Why
	if c.Taken {
		text = fmt.Sprintf("step %d, %d bytes in %.3f s", c.Save.Step, c.Save.Bytes, c.Save.Seconds)
	}
	return d.to(ctx, Checkpointed, text, func(i *Incident) {
		i.Checkpoint = &c
		if c.Taken {
			i.MaxStep = max(i.MaxStep, c.Save.Step)
		}
	})
}

func (d *driver) saveRequest(i Incident, g *cluster.Gang) checkpoint.Request {
	q := checkpoint.Request{ID: fmt.Sprintf("%s-%d", i.ID, i.Round), Members: members(g, nil)}
	for _, f := range i.Faults {
		for _, m := range g.Members {
			if f.Moves && m.Node == f.Node { // a faulty GPU is never the writer
				for r := range i.NProc {
					q.Exclude = append(q.Exclude, m.Index*i.NProc+r)
				}
			}
		}
	}
	return q
}

// cannotSave is why no round is begun, or empty.
func (d *driver) cannotSave(i Incident) string {
	if !i.Plan.Checkpoint {
		return "the rule asks for none"
	}
	for _, f := range i.Faults {
		if !f.Usable {
			return fmt.Sprintf("%s leaves rank state on %s unusable", f.Signal, f.Node)
		}
	}
	return ""
}
