package nodecmd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/incident"
)

// fromBus reads which conditions are active on the nodes, and whether their incidents are open and why.
func (o *options) fromBus(ctx context.Context, found []Quarantined) error {
	return o.bus.Open(ctx, func(ctx context.Context, b *bus.Bus) error {
		at := map[string]*Quarantined{}
		incidents := bus.NewBucket[incident.Incident](b, bus.IncidentBucket)
		for k := range found {
			q := &found[k]
			at[q.Node] = q
			i, _, err := incidents.Get(ctx, q.Incident)
			switch {
			case errors.Is(err, bus.ErrNotFound):
				continue
			case err != nil:
				return fmt.Errorf("read incident %s: %w", q.Incident, err)
			}
			q.IncidentOpen = i.Open()
			for _, f := range i.Faults {
				if f.Node == q.Node && q.Why == "" {
					q.Why = f.Signal
				}
			}
		}
		if err := active(ctx, b, at); err != nil {
			return err
		}
		for k := range found {
			found[k].Known = true
			slices.Sort(found[k].Active)
		}
		return nil
	})
}

// active reads the conditions as they are, once.
func active(ctx context.Context, b *bus.Bus, at map[string]*Quarantined) error {
	all, err := b.ConditionsNow(ctx)
	for _, c := range all {
		if q := at[c.Node]; q != nil && c.Active && (c.BootID == "" || q.boot == "" || c.BootID == q.boot) {
			q.Active = append(q.Active, describe(c))
		}
	}
	return err
}

func describe(c bus.Condition) string {
	if c.Event == nil || c.Event.Data.Severity == event.Severity("") {
		return c.Key
	}
	return c.Key + " (" + string(c.Event.Data.Severity) + ")"
}
