package remediator

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/claims"
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
	claim *claims.Watch
	now   func() time.Time

	mu sync.Mutex
	at map[string]*asked // by the job's UID
}

// asked is one question to a gang. live is set when done is closed.
type asked struct {
	at   time.Time
	done chan struct{}
	live checkpoint.Gang
}

// of implements witness.Options.Peers. That a gang cannot be asked is no stall.
func (p *peers) of(ctx context.Context, node string) (witness.Peers, string) {
	gangs, err := p.gangs(ctx, node)
	if err != nil {
		return witness.PeersUnknown, ""
	}
	said, detail := witness.PeersUnknown, ""
	for _, g := range gangs {
		live := p.ask(ctx, g)
		s, d := witness.JudgePeers(live.Ranks)
		if shows, beat := p.claim.Judge(g.Job, live); s == witness.PeersUnknown && shows == claims.Stepping {
			s, d = witness.PeersStepping, beat
		}
		switch {
		case s == witness.PeersStill:
			return s, g.Job.Namespace + "/" + g.Job.Name + ": " + d
		case s == witness.PeersStepping:
			said, detail = s, g.Job.Namespace+"/"+g.Job.Name+": "+d
		}
	}
	return said, detail
}

// silent is the evidence that the claims of the jobs across a node give: the heartbeat of each of them stands still.
func (p *peers) silent(ctx context.Context, node string) []witness.Evidence {
	gangs, err := p.gangs(ctx, node)
	if err != nil || len(gangs) == 0 {
		return nil
	}
	var details []string
	for _, g := range gangs {
		shows, detail := p.claim.Judge(g.Job, p.ask(ctx, g))
		if shows != claims.Silent {
			return nil
		}
		details = append(details, g.Job.Namespace+"/"+g.Job.Name+": "+detail)
	}
	return []witness.Evidence{{Kind: witness.ClaimSilent, Detail: strings.Join(details, ", ")}}
}

// ask gives what the ranks of a gang say on nodes whose agents are heard.
func (p *peers) ask(ctx context.Context, g cluster.Gang) checkpoint.Gang {
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
			a.live, _ = p.ranks.Observe(context.WithoutCancel(ctx), heard)
		}
		close(a.done)
	}
	select {
	case <-a.done:
		return a.live
	case <-ctx.Done():
		return checkpoint.Gang{}
	}
}

// newPeers asks the gangs of the cluster.
func (r *remediator) newPeers(e *incident.Engine, claim *claims.Watch, alive func(string) bool) *peers {
	return &peers{
		gangs: func(ctx context.Context, node string) ([]cluster.Gang, error) {
			return r.cluster.GangsAt(ctx, event.Target{Node: node})
		},
		ranks: e.Checkpoint, alive: alive, claim: claim, now: time.Now, at: map[string]*asked{},
	}
}
