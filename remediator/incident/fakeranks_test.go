package incident

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/ledger"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

func (w *world) Save(ctx context.Context, q checkpoint.Request) (bus.Save, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.saveErr != nil {
		return bus.Save{}, w.saveErr
	}
	g := w.of(q.Members)
	if g == nil || g.Suspended || g.deleted {
		return bus.Save{}, checkpoint.ErrImpossible
	}
	w.expire()
	s, again := w.saves[q.ID]
	if holds := w.holding[g.Job.UID]; holds != "" && holds != q.ID {
		return bus.Save{}, errors.New("rank 0 refused: nack busy")
	}
	if !again {
		s = bus.Save{Req: q.ID, Step: 700 + int64(len(w.saves)), Dir: "/ckpt/" + q.ID, Bytes: 10}
		w.saves[q.ID] = s
	}
	w.holding[g.Job.UID], w.expires[g.Job.UID] = q.ID, time.Now().Add(ranksHold)
	w.wrotes("save "+q.ID, !again)
	var err error
	w.apart(func() { err = q.Admit(ctx, s) })
	g.from = s.Step
	return s, err
}

// ranksHold is how long a rank holds: checkpoint.HoldFor beside the shortest deadline of a round.
const ranksHold = checkpoint.HoldFor + 3*time.Second

// expire ends the ranks that held past their deadline, as pitcrew_torch/rounds.py does: they leave the attempt. The caller holds the lock.
func (w *world) expire() {
	for job, at := range w.expires {
		held := w.holding[job] != ""
		if held && time.Now().Before(at) {
			continue
		}
		if g := w.gangs[job]; held && !g.deleted {
			w.left = append(w.left, w.holding[job])
			for rank := range g.Size * nproc {
				g.dead[rank] = true
			}
		}
		delete(w.holding, job)
		delete(w.expires, job)
	}
}

func (w *world) of(members []checkpoint.Member) *gang {
	for _, g := range w.gangs {
		for _, m := range g.Members {
			if slices.ContainsFunc(members, func(x checkpoint.Member) bool { return x.PodUID == m.PodUID }) {
				return g
			}
		}
	}
	return nil
}

// Observe shows ranks that resume startsIn after their attempt is complete and then step ten times a second.
func (w *world) Observe(_ context.Context, members []checkpoint.Member) (checkpoint.Gang, map[string]error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	live, missing := checkpoint.Gang{Ranks: map[int]bus.RankStatus{}, PodOf: map[int]checkpoint.Member{}, Attempt: -1}, map[string]error{}
	g := w.of(members)
	if g == nil || w.mute {
		return live, missing
	}
	w.expire()
	w.settle(g)
	if a, ok := w.attempts.values[g.Job.UID]; ok && a.v.Attempt > g.attempt {
		if !w.complete(g, a.v) {
			return live, missing
		}
		g.attempt, g.began, g.dead = a.v.Attempt, time.Now(), map[int]bool{}
		delete(w.holding, g.Job.UID)
	}
	for a := range w.falls {
		if a <= g.attempt { // a launcher says so until it starts another; here also after that
			live.Fallen = append(live.Fallen, checkpoint.Fallen{Member: checkpoint.Member{Node: g.Member(0).Node, PodUID: g.Member(0).PodUID}, Attempt: a})
		}
	}
	if w.falls[g.attempt] && g.attempt > 0 {
		return live, missing
	}
	ran := time.Since(g.began)
	w.cut = nil
	for _, m := range g.Members {
		if err := w.kubelets[m.Node]; err != nil {
			w.cut = err
		}
	}
	live.Attempt, live.World = g.attempt, g.Size*nproc
	for _, m := range g.Members {
		if !slices.ContainsFunc(members, func(x checkpoint.Member) bool { return x.PodUID == m.PodUID }) {
			continue
		}
		if w.kubelets[m.Node] != nil {
			missing[m.PodUID] = bus.ErrNoAgent
			continue
		}
		for l := range nproc {
			r := bus.RankStatus{Rank: m.Index*nproc + l, WorldSize: live.World, Attempt: g.attempt, Step: g.from, Exit: "running", Section: "step", Connected: true, CanSave: true, P99StepS: .1}
			if w.cut != nil {
				r.StepAgeS = 5
			}
			if w.goesOn {
				r.StepAgeS = 0
			}
			if ran > w.startsIn {
				from := g.from
				r.ResumedStep, r.Step = &from, g.from+int64((ran-w.startsIn)/w.step(g))
			}
			if w.beat != nil && g.attempt == 0 {
				if r.Section, r.StepAgeS = "eval", 30; r.Rank > 0 && l == 0 {
					r.Claim = w.beat(g.attempt)
				}
			}
			if g.dead[r.Rank] {
				r.Exit, r.Connected = "exception", false
			} else if len(g.dead) > 0 {
				r.Step = min(r.Step, g.from)
			}
			live.Ranks[r.Rank], live.MaxStep = r, max(live.MaxStep, r.Step)
		}
	}
	return live, missing
}

// step is how long a step of the gang takes.
func (w *world) step(g *gang) time.Duration {
	switch {
	case w.stepS == 0:
		return 100 * time.Millisecond
	case w.fastAgain && g.attempt > 0:
		return w.stepS / 2
	}
	return w.stepS
}

// complete reports whether the pods that the attempt names are there.
func (w *world) complete(g *gang, a bus.Attempt) bool {
	if a.MasterAddr == "" || len(a.Members) != g.Size || a.WorldSize != g.Size*nproc {
		return false
	}
	for _, p := range a.Members {
		if m := g.Member(p.NodeRank); m.PodUID != p.PodUID || m.Node == "" || m.Phase != "Running" {
			return false
		}
	}
	return true
}

func (w *world) Plan(e event.Event, f Facts) (*Plan, policy.Judgement) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok := w.plans[e.Data.Cause.Signal()+" "+e.Data.Target.Node]
	if !ok {
		p, ok = w.plans[e.Data.Cause.Signal()]
	}
	if !ok {
		return nil, policy.Judgement{}
	}
	return &p, policy.Judgement{}
}

func (w *world) Guards(p *Plan, f Facts, _ *ledger.Book) []guard.Verdict {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuses != nil {
		if v := w.refuses(p, f); v != nil {
			return v
		}
	}
	return []guard.Verdict{{Guard: guard.KillSwitch, Allowed: true, Asked: true}}
}

// Reach implements Judge by the plans that there are for the signal.
func (w *world) Reach(e event.Event) (acts, tells bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, here := w.plans[e.Data.Cause.Signal()+" "+e.Data.Target.Node]
	_, anywhere := w.plans[e.Data.Cause.Signal()]
	return here || anywhere, true
}

func (w *world) MaxEventAge() time.Duration { return time.Minute }

func (w *world) Known(_ context.Context, id string) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen[id], nil
}

func (w *world) Remember(_ context.Context, id string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seenErr != nil {
		return w.seenErr
	}
	w.seen[id] = true
	return nil
}

// ranks gives Release of the Checkpointer, which the Cluster has too.
type ranks struct{ *world }

func (r ranks) Release(_ context.Context, members []checkpoint.Member, _ bus.Save) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g := r.of(members); g != nil {
		changed := r.holding[g.Job.UID] != ""
		delete(r.holding, g.Job.UID)
		r.wrotes("let go", changed)
	}
	return nil
}
