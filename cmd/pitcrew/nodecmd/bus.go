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
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	current, ended := make(chan struct{}), make(chan error, 1)
	latest := map[string]map[string]string{}
	go func() {
		ended <- b.Conditions(ctx, current, func(c bus.Condition) {
			q := at[c.Node]
			if q == nil {
				return
			}
			if latest[c.Node] == nil {
				latest[c.Node] = map[string]string{}
			}
			delete(latest[c.Node], c.Key)
			if c.Active && (c.BootID == "" || q.boot == "" || c.BootID == q.boot) {
				latest[c.Node][c.Key] = describe(c)
			}
		})
	}()
	var err error
	select {
	case <-current:
		cancel()
		<-ended // nothing is written to latest any more
	case err = <-ended:
		if err == nil {
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("read conditions: %w", err)
	}
	for node, all := range latest {
		for _, text := range all {
			at[node].Active = append(at[node].Active, text)
		}
	}
	return nil
}

func describe(c bus.Condition) string {
	if c.Event == nil || c.Event.Data.Severity == event.Severity("") {
		return c.Key
	}
	return c.Key + " (" + string(c.Event.Data.Severity) + ")"
}
