package remediator

import (
	"context"
	"errors"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/witness"
)

// witness tells lost nodes from lost agents. Nodes on which a gang runs are watched from the start: the leader before may have been
// on one that is lost.
func (r *remediator) witness(ctx context.Context, e *incident.Engine, pub *bus.Publisher) *witness.Watch {
	w := witness.New(witness.Options{
		Cluster: r.o.Cluster, Connected: r.bus.Connected, Publish: pub.Publish, Log: r.o.Log,
		Known: func(node string) bool {
			_, err := r.cluster.NodeState(node)
			return err == nil
		},
		Silent: func(ctx context.Context, node string) bool {
			return errors.Is(r.cluster.ProbeKubelet(ctx, node), cluster.ErrSilent)
		},
		Peers: func(ctx context.Context, node string) (stalled, known bool) {
			gangs, err := r.cluster.GangsAt(ctx, event.Target{Node: node})
			if err != nil {
				return false, true
			}
			for _, g := range gangs {
				s, k := e.PeersStalled(ctx, g, node)
				stalled, known = stalled || s, known || k
			}
			return stalled, known
		},
	})
	for _, node := range r.cluster.NodeNames() {
		if gangs, err := r.cluster.GangsAt(ctx, event.Target{Node: node}); err == nil && len(gangs) > 0 {
			w.Heard(node)
		}
	}
	return w
}

// bootOf is the node's present boot.
func (r *remediator) bootOf(node string) (string, error) {
	n, err := r.cluster.NodeState(node)
	return n.BootID, err
}
