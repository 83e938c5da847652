package remediator

import (
	"context"
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/witness"
)

// peersFor is how long an answer of a gang's ranks serves: many of its nodes fall silent at once, and each asks the same.
const peersFor = 500 * time.Millisecond

// peers asks the ranks of gangs for the watch on lost nodes. A gang is asked once for all of its silent nodes, and only on nodes whose agents
// are heard.
type peers struct {
	gangs func(ctx context.Context, node string) ([]cluster.Gang, error)
	ranks incident.Checkpointer
	alive func(node string) bool
	now   func() time.Time

	mu sync.Mutex
	at map[string]*asked // by the job's UID
}

// asked is one question to a gang. ranks is set when done is closed.
type asked struct {
	at    time.Time
	done  chan struct{}
	ranks map[int]bus.RankStatus
}

// of implements witness.Options.Peers. That a gang cannot be asked is no stall.
func (p *peers) of(ctx context.Context, node string) (witness.Peers, string) {
	gangs, err := p.gangs(ctx, node)
	if err != nil {
		return witness.PeersUnknown, ""
	}
	said, detail := witness.PeersUnknown, ""
	for _, g := range gangs {
		switch s, d := witness.JudgePeers(p.ask(ctx, g)); {
		case s == witness.PeersStill:
			return s, g.Job.Namespace + "/" + g.Job.Name + ": " + d
		case s == witness.PeersStepping:
			said, detail = s, g.Job.Namespace+"/"+g.Job.Name+": "+d
		}
	}
	return said, detail
}

func (p *peers) ask(ctx context.Context, g cluster.Gang) map[int]bus.RankStatus {
	p.mu.Lock()
	a := p.at[g.Job.UID]
	mine := a == nil || p.now().Sub(a.at) > peersFor
	if mine {
		for uid, old := range p.at {
			if p.now().Sub(old.at) > peersFor {
				delete(p.at, uid)
			}
		}
		a = &asked{at: p.now(), done: make(chan struct{})}
		p.at[g.Job.UID] = a
	}
	p.mu.Unlock()
	if mine {
		var heard []checkpoint.Member
		for _, m := range g.Members {
			if m.PodUID != "" && m.Node != "" && p.alive(m.Node) {
				heard = append(heard, checkpoint.Member{Node: m.Node, PodUID: m.PodUID})
			}
		}
		if len(heard) > 0 {
			// Others wait for this answer, so it does not end with the context of whoever asked first.
			live, _ := p.ranks.Observe(context.WithoutCancel(ctx), heard)
			a.ranks = live.Ranks
		}
		close(a.done)
	}
	select {
	case <-a.done:
		return a.ranks
	case <-ctx.Done():
		return nil
	}
}

// newPeers asks the gangs of the cluster.
func (r *remediator) newPeers(e *incident.Engine, alive func(string) bool) *peers {
	return &peers{
		gangs: func(ctx context.Context, node string) ([]cluster.Gang, error) {
			return r.cluster.GangsAt(ctx, event.Target{Node: node})
		},
		ranks: e.Checkpoint, alive: alive, now: time.Now, at: map[string]*asked{},
	}
}
