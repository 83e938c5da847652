package remediator

import (
	"context"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/incident"
)

// sweepEvery is how often the leader ends reservations that nobody holds any more, and checks what placement was told of nodes.
const sweepEvery = 3 * time.Minute

// upkeep sweeps until ctx ends.
func (r *remediator) upkeep(ctx context.Context, e *incident.Engine, said *board) error {
	for pause(ctx, sweepEvery) {
		if e.Fence != nil && e.Fence() != nil {
			continue
		}
		if _, err := r.cluster.SweepReservations(ctx, e.IsOpen); err != nil && ctx.Err() == nil {
			r.o.Log.Warn("sweep reservations; tried again", "in", sweepEvery, "error", err)
		}
		refreshConditions(r.cluster, said)
	}
	return nil
}

// marks is where placement reads what is known of a node's hardware; *cluster.Cluster is one.
type marks interface {
	Fleet() []*fleet.Node
	NoteCondition(node, condition string)
	NoteFault(node string, at time.Time)
}

// noteCondition takes in a condition, and tells placement what holds of the node and when it had a fault.
func noteCondition(m marks, said *board, c bus.Condition) {
	said.set(c)
	m.NoteCondition(c.Node, said.Unfit(c.Node))
	if c.Active && c.Event != nil {
		noteFault(m, *c.Event)
	}
}

// refreshConditions takes back what placement was told of a node that has booted since: no later report ends it.
func refreshConditions(m marks, said *board) {
	for _, n := range m.Fleet() {
		if n.Condition != "" {
			m.NoteCondition(n.Name, said.Unfit(n.Name))
		}
	}
}

// noteFault tells placement when a node had a fault of its own, so that of two nodes the one without a recent fault is chosen. A rank's fault
// says nothing of its node.
func noteFault(m marks, e event.Event) {
	d := e.Data
	if e.Type != event.Fault || d.Target.Node == "" || strings.HasPrefix(d.Cause.Signal(), "rank/") || !d.Severity.AtLeast(event.Critical) {
		return
	}
	m.NoteFault(d.Target.Node, began(e).Truncate(faultsApart))
}

// faultsApart is how exactly placement knows a node's last fault: a node that reports without end does not change the fleet's view each time.
const faultsApart = 10 * time.Minute
