package remediator

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/foreign"
	"github.com/pitcrew/pitcrew/remediator/incident"
)

// listen publishes what others say of nodes, for as long as this leader leads.
func (r *remediator) listen(ctx context.Context, group *errgroup.Group, pub *bus.Publisher) {
	others := foreign.New(foreign.Options{Cluster: r.o.Cluster, Publish: pub.Publish, Set: r.bus.SetCondition, Log: r.o.Log})
	group.Go(func() error {
		return ignoreEnd(ctx, r.cluster.OnNodes(ctx, func(s cluster.Said) { others.Node(ctx, s) }))
	})
	group.Go(func() error { return ignoreEnd(ctx, r.cluster.OnWarnings(ctx, others.Warning)) })
}

// conditions hands what holds now, on the node's present boot, to the engine: so a fault from a time when nobody led is not lost,
// and one that was repaired is not acted on.
func (r *remediator) conditions(ctx context.Context, e *incident.Engine, said *board) error {
	var handled errgroup.Group // beside each other, as the events of the stream are; the engine keeps those of one node apart
	handled.SetLimit(conditionsAtOnce)
	defer func() { _ = handled.Wait() }()
	return r.bus.Conditions(ctx, nil, func(c bus.Condition) {
		if !c.Active || c.Event == nil {
			return
		}
		n, err := r.cluster.NodeState(c.Node)
		if err != nil || c.BootID != "" && n.BootID != "" && c.BootID != n.BootID {
			return
		}
		if foreign.Ours(c.Key) && !r.stillSaid(ctx, c) {
			return
		}
		handled.Go(func() error { r.reconcile(ctx, e, said, c); return nil })
	})
}

// conditionsAtOnce bounds how many conditions are dealt with at the same time.
const conditionsAtOnce = 32

// reconcile hands a condition to the engine until it is dealt with or holds no more.
func (r *remediator) reconcile(ctx context.Context, e *incident.Engine, said *board, c bus.Condition) {
	for {
		err := e.Handle(ctx, *c.Event, incident.Origin{Live: true})
		if err == nil || ctx.Err() != nil {
			return
		}
		r.o.Log.Warn("reconcile a condition; will retry while it stands", "node", c.Node, "key", c.Key, "error", err)
		if !pause(ctx, time.Second) {
			return
		}
		if s, _ := said.Standing(*c.Event); s != incident.Holds && s != incident.Silent {
			return
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// stillSaid reports whether a node's object still says what a condition of ours repeats; where it does not, the condition ended while nobody
// led, and is taken back.
func (r *remediator) stillSaid(ctx context.Context, c bus.Condition) bool {
	s, err := r.cluster.Said(c.Node)
	if err != nil || foreign.Stands(s, c.Key) {
		return err == nil
	}
	c.Active, c.Since, c.Event, c.Raw = false, time.Now(), nil, nil
	if err := r.bus.SetCondition(ctx, c); err != nil && ctx.Err() == nil {
		r.o.Log.Warn("take a condition back", "node", c.Node, "key", c.Key, "error", err)
	}
	return false
}
