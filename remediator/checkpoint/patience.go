package checkpoint

import (
	"context"
	"errors"
	"time"

	"github.com/pitcrew/pitcrew/bus"
)

const (
	// agentWait is how long a round waits for an agent that is being replaced. The ranks train on meanwhile, so it costs them nothing;
	// without it they would lose every step since the last checkpoint.
	agentWait = 10 * time.Second
	// rankWait is how long a new agent may take to find its ranks.
	rankWait    = 2 * time.Second
	lookEvery   = 100 * time.Millisecond
	repeatFirst = time.Second
	repeatMost  = 5 * time.Second
)

// awaitAble observes the gang until it can save together. It waits only for what comes by itself: an agent that does not answer, and
// then ranks that do not answer to it yet.
func (c *Coordinator) awaitAble(ctx context.Context, members []Member, until time.Time) (Gang, error) {
	start := time.Now()
	for {
		g, missing := c.Observe(ctx, members)
		err := g.Able(missing)
		if err == nil {
			return g, nil
		}
		now := time.Now()
		if len(missing) > 0 {
			start = now // the ranks' time begins when the agents are there
		}
		if now.After(until) || len(missing) == 0 && !g.unattached() || now.Sub(start) > rankWait {
			return g, err
		}
		select {
		case <-ctx.Done():
			return g, err
		case <-time.After(lookEvery):
		}
	}
}

// unattached reports whether a rank that runs, as far as is known, does not answer to its agent.
func (g Gang) unattached() bool {
	for rank := range g.World {
		r, ok := g.Ranks[rank]
		if !ok || !r.Connected && (r.Exit == "" || r.Exit == "running") {
			return true
		}
	}
	return g.World == 0
}

// patient sends a command again when no answer comes: who was to answer may have been replaced. Commands are idempotent by their req,
// so an agent that is only slow gives every one of them the same answer.
type patient struct{ to Agents }

func (p patient) Request(ctx context.Context, node, verb string, c bus.Command) (bus.Reply, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		reply bus.Reply
		err   error
	}
	answers := make(chan answer)
	ask := func() {
		a, err := p.to.Request(ctx, node, verb, c)
		select {
		case answers <- answer{a, err}:
		case <-ctx.Done():
		}
	}
	go ask()
	wait := repeatFirst
	again := time.NewTimer(wait)
	defer again.Stop()
	var last error
	for {
		select {
		case a := <-answers:
			if !errors.Is(a.err, bus.ErrNoAgent) {
				return a.reply, a.err
			}
			last = a.err
			again.Reset(lookEvery)
		case <-again.C:
			go ask()
			wait = min(2*wait, repeatMost)
			again.Reset(wait)
		case <-ctx.Done():
			if last == nil {
				last = ctx.Err()
			}
			return bus.Reply{}, last
		}
	}
}
