package pilotextension

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/hook"
)

// answerWithin bounds a command that names no deadline of its own.
const answerWithin = 8 * time.Second

// armWithin bounds the wait for the answers to arm, whose deadline says how long a rank holds: a rank that lives answers from a
// side thread at once, and the rounds of the others must not wait for one that is stopped.
const armWithin = 1500 * time.Millisecond

// Values of bus.RankReply.T that are no message's type.
const (
	replyGone    = "gone"
	replyTimeout = "timeout"
	replyAborted = "aborted"
)

func (p *Pilot) arm(ctx context.Context, c bus.Command) (bus.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, armWithin)
	defer cancel()
	return p.each(ctx, c, hook.Arm{Req: c.Req, Attempt: c.Attempt, AtStep: c.AtStep, DeadlineMS: c.DeadlineMS, Exclude: c.Exclude})
}

func (p *Pilot) goSave(ctx context.Context, c bus.Command) (bus.Reply, error) {
	return p.each(ctx, c, hook.Go{Req: c.Req, Attempt: c.Attempt})
}

func (p *Pilot) cancelRound(ctx context.Context, c bus.Command) (bus.Reply, error) {
	return p.each(ctx, c, hook.Cancel{Req: c.Req, Attempt: c.Attempt})
}

func (p *Pilot) release(ctx context.Context, c bus.Command) (bus.Reply, error) {
	return p.each(ctx, c, hook.Release{Req: c.Req, Attempt: c.Attempt})
}

// abort is answered as soon as it is sent: the ranks' ends are told as events.
func (p *Pilot) abort(_ context.Context, c bus.Command) (bus.Reply, error) {
	ranks, replies, err := p.named(c)
	if err != nil {
		return bus.Reply{}, err
	}
	for _, r := range ranks {
		out := reply(r, bus.RankReply{T: replyAborted})
		if err := r.Send(hook.Abort{Attempt: c.Attempt, Reason: c.Reason}); err != nil {
			out.T, out.Error = replyGone, err.Error()
		}
		replies = append(replies, out)
	}
	return bus.Reply{Ranks: replies}, nil
}

// manifest goes to one rank, the writer.
func (p *Pilot) manifest(ctx context.Context, c bus.Command) (bus.Reply, error) {
	if c.Manifest == nil {
		return bus.Reply{}, errors.New("manifest: no manifest in the command")
	}
	ranks, _, err := p.named(c)
	if err != nil {
		return bus.Reply{}, err
	}
	m := hook.Manifest{Req: c.Req, Attempt: c.Attempt, Step: c.Manifest.Step, Dir: c.Manifest.Dir, WorldSize: c.Manifest.WorldSize}
	for _, f := range c.Manifest.Files {
		m.Files = append(m.Files, hook.File{Name: f.Name, Rank: f.Rank, Bytes: f.Bytes, CRC32: f.CRC32})
		if !slices.Contains(m.Writers, f.Rank) {
			m.Writers = append(m.Writers, f.Rank)
		}
	}
	slices.Sort(m.Writers)
	for _, r := range ranks {
		if h, ok := r.Hello(); ok && h.Rank == c.Writer {
			ctx, cancel := within(ctx, c)
			defer cancel()
			return bus.Reply{Ranks: []bus.RankReply{ask(ctx, r, m)}}, nil
		}
	}
	return bus.Reply{}, fmt.Errorf("manifest: rank %d lives in none of the pods named on this node", c.Writer)
}

// named are the ranks of the pods that a command names. A pod that is not here has a reply of its own, with rank -1.
func (p *Pilot) named(c bus.Command) (ranks []*hook.Rank, missing []bus.RankReply, err error) {
	if len(c.PodUIDs) == 0 {
		return nil, nil, errors.New("no pods named: pod_uids must not be empty")
	}
	for _, uid := range c.PodUIDs {
		pod := p.fleet.Pod(uid)
		if pod == nil {
			missing = append(missing, bus.RankReply{PodUID: uid, Rank: -1, T: replyGone, Reason: "no such training pod on this node"})
			continue
		}
		ranks = append(ranks, pod.Ranks()...)
	}
	return ranks, missing, nil
}

func within(ctx context.Context, c bus.Command) (context.Context, context.CancelFunc) {
	d := answerWithin
	if c.DeadlineMS > 0 {
		d = time.Duration(c.DeadlineMS) * time.Millisecond
	}
	return context.WithTimeout(ctx, d)
}

// each asks all ranks of the pods named at the same time and answers when each has answered, is gone, or is out of time.
func (p *Pilot) each(ctx context.Context, c bus.Command, m hook.Message) (bus.Reply, error) {
	if c.Req == "" {
		return bus.Reply{}, errors.New("no request named: req must not be empty")
	}
	ranks, replies, err := p.named(c)
	if err != nil {
		return bus.Reply{}, err
	}
	ctx, cancel := within(ctx, c)
	defer cancel()
	answers := make([]bus.RankReply, len(ranks))
	var all sync.WaitGroup
	for i, r := range ranks {
		all.Go(func() { answers[i] = ask(ctx, r, m) })
	}
	all.Wait()
	return bus.Reply{Ranks: append(replies, answers...)}, nil
}

// ask is one rank's answer as a reply.
func ask(ctx context.Context, r *hook.Rank, m hook.Message) bus.RankReply {
	a, err := r.Ask(ctx, m)
	switch {
	case errors.Is(err, hook.ErrRankGone):
		return reply(r, bus.RankReply{T: replyGone, Error: err.Error()})
	case err != nil:
		return reply(r, bus.RankReply{T: replyTimeout, Error: err.Error()})
	}
	switch a := a.(type) {
	case hook.Armed:
		return reply(r, bus.RankReply{T: "armed", Step: a.Step, AtStep: a.AtStep})
	case hook.Nack:
		return reply(r, bus.RankReply{T: "nack", Step: a.Step, Reason: a.Reason})
	case hook.Saved:
		out := reply(r, bus.RankReply{T: "saved", Step: a.Step, Error: a.Error})
		out.Save = &bus.Save{Step: a.Step, Dir: a.Dir, Bytes: a.Bytes, Seconds: a.Seconds}
		for _, f := range a.Files {
			out.Save.Files = append(out.Save.Files, bus.SaveFile{Name: f.Name, Rank: out.Rank, Bytes: f.Bytes, CRC32: f.CRC32})
		}
		return out
	case hook.Manifested:
		return reply(r, bus.RankReply{T: "manifested", Step: a.Step, Error: a.Error, Save: &bus.Save{Step: a.Step, Dir: a.Dir, CRC32: a.CRC32}})
	case hook.Cancelled:
		return reply(r, bus.RankReply{T: "cancelled"})
	case hook.Released:
		return reply(r, bus.RankReply{T: "released"})
	}
	return reply(r, bus.RankReply{T: replyTimeout, Error: fmt.Sprintf("an answer of type %T is not understood", a)})
}

// reply names the rank in a reply. Its number is the living process's word, else its ring's.
func reply(r *hook.Rank, out bus.RankReply) bus.RankReply {
	out.PodUID, out.Rank = r.PodUID(), -1
	if h, ok := r.Hello(); ok {
		out.Rank = h.Rank
	} else if ring := r.Ring(); ring != nil {
		out.Rank = ring.Identity().Rank
	}
	return out
}
