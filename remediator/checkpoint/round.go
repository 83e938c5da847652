// Package checkpoint coordinates one checkpoint of a running gang, from the outside and without a collective: every rank is
// armed for the same step, holds there, saves when all have armed, and a manifest is written only for what was admitted.
//
// The protocol and its reasons are in docs/checkpoint-protocol.md. The package promises that no rank is told to save before
// all have armed for one step, that a round which fails says which rank and why, and that a repeated round with the same id
// finds what the first one did. It never kills anything.
package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pitcrew/pitcrew/bus"
)

// Agents sends a command to the agent of a node. *bus.Bus is one; calls run at the same time.
type Agents interface {
	Request(ctx context.Context, node, verb string, c bus.Command) (bus.Reply, error)
}

// Member is one pod of the gang.
type Member struct {
	Node   string
	PodUID string
}

// Request asks for one checkpoint.
type Request struct {
	ID      string // idempotency key; the same id finds the same round
	Members []Member
	Exclude []int // ranks whose memory is not trusted: they never write shared state
	// Admit is called with what the ranks saved before the manifest is written; an error keeps the checkpoint from existing.
	Admit func(ctx context.Context, s bus.Save) error
}

// ErrImpossible is wrapped when the gang is in no state to save together: nothing was asked of any rank.
var ErrImpossible = errors.New("no checkpoint round is possible")

const (
	maxTries = 4
	// armLead is how far ahead of the fastest rank the round aims: reading the rings, one round of messages, and a margin.
	armLead     = 60 * time.Millisecond
	minLead     = 2 // steps
	statusWait  = 1500 * time.Millisecond
	minDeadline = 3 * time.Second
	firstSave   = 15 * time.Second // taken for the longest save where none was seen yet
)

// HoldFor bounds how long a rank holds after it saved while the gang is being replaced, in addition to the round's own time; then it
// leaves the attempt.
const HoldFor = 90 * time.Second

// errNotAdmitted is wrapped when Request.Admit refused.
var errNotAdmitted = errors.New("not admitted")

// Coordinator runs rounds.
type Coordinator struct {
	Agents Agents
	Log    *slog.Logger
}

// Gang is the live state of a gang's ranks, by rank.
type Gang struct {
	Ranks   map[int]bus.RankStatus
	PodOf   map[int]Member
	World   int
	NProc   int // processes a pod, as the launchers say; 0: none does
	Attempt int
	MaxStep int64
	Fallen  []Fallen
}

// Fallen is a pod of which a worker has ended by itself, perhaps before it could say that it is a rank.
type Fallen struct {
	Member
	Attempt int // in which it ended
}

// Observe asks the agents of all members for the state of their ranks. Members that do not answer are in missing, with the
// reason; ranks of an older attempt than the newest are left out.
func (c *Coordinator) Observe(ctx context.Context, members []Member) (g Gang, missing map[string]error) {
	ctx, cancel := context.WithTimeout(ctx, statusWait)
	defer cancel()
	replies := make([]bus.Reply, len(members))
	errs := make([]error, len(members))
	var wg errgroup.Group
	for i, m := range members {
		wg.Go(func() error {
			replies[i], errs[i] = c.Agents.Request(ctx, m.Node, bus.VerbStatus, bus.Command{PodUIDs: []string{m.PodUID}})
			return nil
		})
	}
	_ = wg.Wait()
	g = Gang{Ranks: map[int]bus.RankStatus{}, PodOf: map[int]Member{}, Attempt: -1}
	missing = map[string]error{}
	for i, m := range members {
		if errs[i] != nil {
			missing[m.PodUID] = errs[i]
			continue
		}
		for _, p := range replies[i].Pods {
			if p.PodUID == m.PodUID {
				g.take(m, p)
			}
		}
	}
	return g, missing
}

func (g *Gang) take(m Member, p bus.PodStatus) {
	if l := p.Launcher; l != nil {
		g.NProc = max(g.NProc, l.NProc)
		if l.State == bus.LauncherFailed {
			g.Fallen = append(g.Fallen, Fallen{m, l.Attempt})
		}
	}
	for _, r := range p.Ranks {
		if r.Attempt > g.Attempt { // what an older attempt says is history
			*g = Gang{Ranks: map[int]bus.RankStatus{}, PodOf: map[int]Member{}, NProc: g.NProc, Attempt: r.Attempt, Fallen: g.Fallen}
		}
		if r.Attempt == g.Attempt {
			g.Ranks[r.Rank], g.PodOf[r.Rank] = r, m
			g.World = max(g.World, r.WorldSize)
			g.MaxStep = max(g.MaxStep, r.Step)
		}
	}
}

// Able says why the gang cannot save together, or nil.
func (g Gang) Able(missing map[string]error) error {
	for pod, err := range missing {
		return fmt.Errorf("%w: pod %s: %w", ErrImpossible, pod, err)
	}
	if len(g.Ranks) == 0 {
		return fmt.Errorf("%w: no rank carries the hook (call pitcrew_torch.attach in the training script)", ErrImpossible)
	}
	for rank := range g.World {
		r, ok := g.Ranks[rank]
		var why string
		switch {
		case !ok:
			why = "is not there"
		case r.Exit != "" && r.Exit != "running":
			why = "has ended: " + r.Exit
		case !r.Connected:
			why = "does not answer on its socket"
		case !r.CanSave:
			why = "cannot save (no save_fn and no checkpoint_dir)"
		case strings.ContainsAny(r.ProcState, "TtZX"):
			why = "does not run: process state " + r.ProcState
		case r.Section == "setup" || r.Section == "out":
			why = "is in section " + r.Section
		}
		if why != "" {
			return fmt.Errorf("%w: rank %d %s", ErrImpossible, rank, why)
		}
	}
	return nil
}

// Save runs a round and returns what was written. After it every rank holds at Save.Step until its attempt ends, it is
// released, or its deadline passes.
func (c *Coordinator) Save(ctx context.Context, q Request) (bus.Save, error) {
	lead, patience := int64(0), time.Now().Add(agentWait)
	patiently := &Coordinator{Agents: patient{c.Agents}, Log: c.Log}
	var last error
	for try := range maxTries {
		g, err := c.awaitAble(ctx, q.Members, patience)
		if err != nil {
			return bus.Save{}, err
		}
		if lead = max(lead*2, g.lead()); try == 0 {
			c.Log.Debug("checkpoint round", "req", q.ID, "attempt", g.Attempt, "lead", lead)
		}
		r := round{c: patiently, q: q, g: g, req: fmt.Sprintf("%s-%d", q.ID, try), atStep: g.MaxStep + lead}
		past, err := r.arm(ctx)
		var saved bus.Save
		if err == nil {
			saved, err = r.save(ctx)
		}
		if err == nil {
			return saved, nil
		}
		if !errors.Is(err, errNotAdmitted) { // then it is another's round by now
			r.tell(ctx, bus.VerbCancel) // who holds goes on: a round that failed must not cost the attempt as well
		}
		if last = err; !past && (errors.Is(err, errNotAdmitted) || time.Now().After(patience)) {
			return bus.Save{}, err
		}
	}
	return bus.Save{}, fmt.Errorf("checkpoint %s: given up after %d tries: %w", q.ID, maxTries, last)
}

// Release lets the ranks of a finished round go on training: what they hold for does not come now. It reaches those that can be reached,
// and fails if a rank that may hold did not hear it. It may be repeated.
func (c *Coordinator) Release(ctx context.Context, members []Member, s bus.Save) error {
	g, missing := c.Observe(ctx, members)
	if len(g.Ranks) == 0 {
		for pod, err := range missing {
			return fmt.Errorf("release checkpoint %s: pod %s: %w", s.Req, pod, err)
		}
		return nil // no rank runs
	}
	got, err := round{c: c, q: Request{Members: members}, g: g, req: s.Req}.ask(ctx, bus.VerbRelease, statusWait, bus.Command{})
	if err != nil {
		return fmt.Errorf("release checkpoint %s: %w", s.Req, err)
	}
	for rank, r := range g.Ranks {
		if a := got[rank]; (r.Exit == "" || r.Exit == "running") && (a.T == "" || a.T == "timeout") {
			return fmt.Errorf("release checkpoint %s: rank %d did not answer: %s", s.Req, rank, a.Error)
		}
	}
	return nil
}

// lead is how many steps ahead of the fastest rank the round aims.
func (g Gang) lead() int64 {
	step := 0.0
	for _, r := range g.Ranks {
		if r.MedianStepS > 0 && (step == 0 || r.MedianStepS < step) {
			step = r.MedianStepS
		}
	}
	if step == 0 {
		return minLead
	}
	return max(minLead, 1+int64(math.Ceil(armLead.Seconds()/step)))
}

// deadline is twice the job's own pace: the lead's steps at their p99 and the longest save seen.
func (r round) deadline() time.Duration {
	var step, save float64
	for _, s := range r.g.Ranks {
		step, save = max(step, s.P99StepS), max(save, s.SaveS)
	}
	if save == 0 {
		save = firstSave.Seconds()
	}
	steps := float64(r.atStep - r.g.MaxStep + 1)
	return max(minDeadline, time.Duration(2*(steps*step+save)*float64(time.Second)))
}

type round struct {
	c      *Coordinator
	q      Request
	g      Gang
	req    string
	atStep int64
}

// nodes groups the pods of the round by the node whose agent speaks with them.
func (r round) nodes() map[string][]string {
	by := map[string][]string{}
	for _, m := range r.q.Members {
		by[m.Node] = append(by[m.Node], m.PodUID)
	}
	return by
}

// ask sends one command to every agent of the gang and gathers the ranks' answers.
func (r round) ask(ctx context.Context, verb string, wait time.Duration, c bus.Command) (map[int]bus.RankReply, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+time.Second)
	defer cancel()
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		errs []error
		out  = map[int]bus.RankReply{}
	)
	for node, pods := range r.nodes() {
		mine := c
		mine.Req, mine.Attempt, mine.PodUIDs = r.req, r.g.Attempt, pods
		if mine.DeadlineMS == 0 {
			mine.DeadlineMS = wait.Milliseconds()
		}
		wg.Go(func() { // one agent's error must not keep the others from being asked
			a, err := r.c.Agents.Request(ctx, node, verb, mine)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
			}
			for _, rank := range a.Ranks {
				if rank.PodUID == "" || rank.PodUID == r.g.PodOf[rank.Rank].PodUID { // nobody answers for another pod's rank
					out[rank.Rank] = rank
				}
			}
		})
	}
	wg.Wait()
	return out, errors.Join(errs...)
}

// arm asks every rank to hold at one step. past reports that some rank was already beyond it, so that a higher step may do.
func (r *round) arm(ctx context.Context) (past bool, err error) {
	got, err := r.ask(ctx, bus.VerbArm, statusWait, bus.Command{
		AtStep: r.atStep, Exclude: r.q.Exclude, DeadlineMS: (r.deadline() + HoldFor).Milliseconds(),
	})
	if err != nil {
		return false, fmt.Errorf("checkpoint %s: arm: %w", r.req, err)
	}
	for rank := range r.g.World {
		a, ok := got[rank]
		switch {
		case !ok:
			return false, fmt.Errorf("checkpoint %s: rank %d did not answer", r.req, rank)
		case a.T == "nack" && a.Reason == "past":
			return true, fmt.Errorf("checkpoint %s: rank %d is past step %d", r.req, rank, r.atStep)
		case a.T == "nack" && a.Reason == "cancelled": // this very try, before a crash: the next one went on from there
			return true, fmt.Errorf("checkpoint %s: rank %d heard it cancelled before", r.req, rank)
		case a.T != "armed" && a.T != "held" && a.T != "saved":
			return false, fmt.Errorf("checkpoint %s: rank %d refused: %s %s %s", r.req, rank, a.T, a.Reason, a.Error)
		}
		if rank == 0 && a.AtStep > 0 {
			r.atStep = a.AtStep // the same round again, after a crash: the ranks remember its step
		}
	}
	for rank, a := range got {
		if a.T == "armed" && a.AtStep != r.atStep {
			return true, fmt.Errorf("checkpoint %s: rank %d is armed for step %d, others for %d", r.req, rank, a.AtStep, r.atStep)
		}
	}
	return false, nil
}

// save lets all ranks save, has the result admitted, and has the manifest written.
func (r round) save(ctx context.Context) (bus.Save, error) {
	wait := r.deadline()
	got, err := r.ask(ctx, bus.VerbGo, wait, bus.Command{})
	if err != nil {
		return bus.Save{}, fmt.Errorf("checkpoint %s: save: %w", r.req, err)
	}
	all := bus.Save{Req: r.req, Step: r.atStep, WorldSize: r.g.World}
	for rank := range r.g.World {
		a, ok := got[rank]
		if !ok || a.T != "saved" || a.Error != "" || a.Save == nil {
			return bus.Save{}, fmt.Errorf("checkpoint %s: rank %d did not save within %s: %s %s %s", r.req, rank, wait, a.T, a.Reason, a.Error)
		}
		if a.Save.Step != r.atStep || all.Dir != "" && all.Dir != a.Save.Dir {
			return bus.Save{}, fmt.Errorf("checkpoint %s: rank %d saved step %d in %s, the round is step %d in %s", r.req, rank, a.Save.Step, a.Save.Dir, r.atStep, all.Dir)
		}
		all.Dir, all.Bytes, all.Seconds = a.Save.Dir, all.Bytes+a.Save.Bytes, max(all.Seconds, a.Save.Seconds)
		for _, f := range a.Save.Files {
			f.Rank = rank
			all.Files = append(all.Files, f)
		}
	}
	if r.q.Admit != nil {
		if err := r.q.Admit(ctx, all); err != nil {
			return bus.Save{}, fmt.Errorf("checkpoint %s: %w: %w", r.req, errNotAdmitted, err)
		}
	}
	return r.manifest(ctx, all)
}

func (r round) manifest(ctx context.Context, all bus.Save) (bus.Save, error) {
	writer := -1
	for rank := range r.g.World {
		if !slices.Contains(r.q.Exclude, rank) {
			writer = rank
			break
		}
	}
	if writer < 0 {
		return bus.Save{}, fmt.Errorf("checkpoint %s: every rank is excluded from writing", r.req)
	}
	m := r.g.PodOf[writer]
	ctx, cancel := context.WithTimeout(ctx, minDeadline+time.Second)
	defer cancel()
	a, err := r.c.Agents.Request(ctx, m.Node, bus.VerbManifest, bus.Command{
		Req: r.req, Attempt: r.g.Attempt, PodUIDs: []string{m.PodUID}, Manifest: &all, Writer: writer, DeadlineMS: minDeadline.Milliseconds(),
	})
	if err != nil {
		return bus.Save{}, fmt.Errorf("checkpoint %s: manifest: %w", r.req, err)
	}
	k := slices.IndexFunc(a.Ranks, func(x bus.RankReply) bool { return x.Rank == writer })
	if k < 0 {
		return bus.Save{}, fmt.Errorf("checkpoint %s: rank %d did not answer for the manifest", r.req, writer)
	}
	if x := a.Ranks[k]; x.T != "manifested" || x.Error != "" {
		return bus.Save{}, fmt.Errorf("checkpoint %s: rank %d did not write the manifest: %s %s", r.req, writer, x.T, x.Error)
	} else if x.Save != nil {
		all.CRC32 = x.Save.CRC32
	}
	return all, nil
}

// tell sends a command whose answer does not matter: a rank that misses it meets its own deadline.
func (r round) tell(ctx context.Context, verb string) {
	if _, err := r.ask(context.WithoutCancel(ctx), verb, time.Second, bus.Command{}); err != nil {
		r.c.Log.Warn("checkpoint round", "req", r.req, "verb", verb, "error", err)
	}
}
