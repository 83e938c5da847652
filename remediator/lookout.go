package remediator

import (
	"context"
	"errors"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/claims"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/policy"
	"github.com/pitcrew/pitcrew/remediator/witness"
)

// witness tells lost nodes from lost agents. Nodes on which a gang runs are watched from the start: the leader before may have been on one
// that is lost. Losses that it had reported are taken over.
func (r *remediator) witness(ctx context.Context, e *incident.Engine, claim *claims.Watch, pub *bus.Publisher, said *board) *witness.Watch {
	var w *witness.Watch
	p := r.newPeers(e, claim, func(node string) bool { return w.Alive(node) })
	w = witness.New(witness.Options{
		Cluster: r.o.Cluster, LeaseWait: r.o.LossWait, Connected: r.bus.Connected, Publish: pub.Publish, Set: r.bus.SetCondition, Log: r.o.Log,
		Known: func(node string) bool {
			_, err := r.cluster.Node(node)
			return err == nil
		},
		Boot: func(node string) string {
			n, err := r.cluster.Node(node)
			if err != nil {
				return ""
			}
			return n.BootID
		},
		Domains: r.domains,
		Silent: func(ctx context.Context, node string) bool {
			return errors.Is(r.cluster.ProbeKubelet(ctx, node), cluster.ErrSilent)
		},
		Peers: p.of,
		Others: func(ctx context.Context, node string) []witness.Evidence {
			found := p.silent(ctx, node)
			if n, err := r.cluster.Node(node); err == nil && n.OutOfService != "" {
				found = append(found, witness.Evidence{Kind: witness.OutOfService, Detail: "taint " + n.OutOfService})
			}
			return found
		},
	})
	for _, node := range r.cluster.NodeNames() {
		if gangs, err := r.cluster.GangsAt(ctx, event.Target{Node: node}); err == nil && len(gangs) > 0 {
			w.Heard(node)
		}
	}
	for _, c := range said.lost() {
		w.Adopt(c)
	}
	return w
}

// domains names the rack and the pool of a node, whose silence as a whole proves nothing.
func (r *remediator) domains(node string) (out []string) {
	n, err := r.cluster.Node(node)
	if err != nil {
		return nil
	}
	for kind, name := range map[string]string{"rack ": policy.RackOf(n.Labels), "pool ": policy.PoolOf(n.Labels)} {
		if name != "" {
			out = append(out, kind+name)
		}
	}
	return out
}

// bootOf is the node's present boot.
func (r *remediator) bootOf(node string) (string, error) {
	n, err := r.cluster.NodeState(node)
	return n.BootID, err
}
