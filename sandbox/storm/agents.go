package storm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
)

const (
	beatEvery   = 500 * time.Millisecond // as agents beat
	connections = 4                      // to NATS; agents of a real cluster have one each
	rankStep    = 500 * time.Millisecond
	saveTook    = 200 * time.Millisecond
)

// agents emulates the agent of every node: its beat, its events and conditions, and its answers to commands as its ranks would give them.
type agents struct {
	buses []*bus.Bus
	pubs  []*bus.Publisher
	ended sync.WaitGroup
	stop  context.CancelFunc

	names []string           // of all nodes
	at    map[string][]*seat // by node, as the pods lay when the case began

	mu   sync.Mutex
	jobs map[string]*training // by job UID
	pods map[string]*seat     // by pod UID
}

// seat is a pod that runs GPUs ranks of a job.
type seat struct {
	uid, name, node string
	index           int // of the pod in the job
	job             *training
}

// training is the state of a gang: all ranks step together or none does.
type training struct {
	name, uid string
	world     int

	mu      sync.Mutex
	attempt int
	from    int64     // the step that the attempt began with
	since   time.Time // when it began to step; zero: it stands still
	stood   int64     // the step it stands at
	hold    int64     // the step at which an armed round holds it; 0: none
	dead    map[int]bool
	waiting bool   // for an attempt that is not complete
	resumed *int64 // where the ranks of the attempt went on; nil: they have not resumed
}

// step is how far the ranks are at a moment. Callers hold mu.
func (t *training) step(now time.Time) int64 {
	if t.since.IsZero() {
		return t.stood
	}
	s := t.from + int64(now.Sub(t.since)/rankStep)
	if t.hold > 0 {
		s = min(s, t.hold)
	}
	return s
}

// halt stops the ranks where they are. Callers hold mu.
func (t *training) halt(now time.Time) { t.stood, t.since = t.step(now), time.Time{} }

// run lets them step on from a step. Callers hold mu.
func (t *training) run(now time.Time, from int64) { t.from, t.since, t.hold = from, now, 0 }

// startAgents connects and answers for every node of the fleet. Pods are the gangs' pods as they run now.
func startAgents(ctx context.Context, url string, f fleet, pods []corev1.Pod) (*agents, error) {
	ctx, stop := context.WithCancel(ctx)
	a := &agents{stop: stop, jobs: map[string]*training{}, pods: map[string]*seat{}, at: map[string][]*seat{}}
	for i := range pods {
		a.seat(&pods[i])
	}
	for k := range connections {
		b, err := bus.Connect(bus.Options{URL: url, Cluster: clusterName, Name: fmt.Sprintf("storm-agents-%d", k)})
		if err == nil {
			a.buses = append(a.buses, b)
			err = b.Wait(ctx)
		}
		var p *bus.Publisher
		if err == nil {
			p, err = b.NewPublisher("", nil)
		}
		if err != nil {
			a.close()
			return nil, fmt.Errorf("agents: %w", err)
		}
		a.pubs = append(a.pubs, p)
	}
	for i, n := range f.nodes {
		a.names = append(a.names, n.name)
		b := a.buses[i%connections]
		a.ended.Go(func() { // beats of different agents are spread over the period
			select {
			case <-time.After(rand.N(beatEvery)):
				_ = b.Beat(ctx, n.name, beatEvery)
			case <-ctx.Done():
			}
		})
		a.ended.Go(func() { _ = b.HandleCommands(ctx, n.name, a.handlers(n.name)) })
	}
	current := make(chan struct{})
	a.ended.Go(func() {
		_ = a.buses[0].Attempts().Watch(ctx, func() { close(current) }, func(c bus.Change[bus.Attempt]) {
			if !c.Deleted {
				a.follow(c.Value)
			}
		})
	})
	select {
	case <-current:
		return a, nil
	case <-time.After(20 * time.Second):
		a.close()
		return nil, fmt.Errorf("agents: the attempts could not be watched")
	}
}

func (a *agents) close() {
	a.stop()
	a.ended.Wait()
	for _, p := range a.pubs {
		end, cancel := context.WithTimeout(context.Background(), time.Second)
		_ = p.Close(end)
		cancel()
	}
	for _, b := range a.buses {
		b.Close()
	}
}

// seat takes in a pod of a gang that runs.
func (a *agents) seat(p *corev1.Pod) {
	index, err := strconv.Atoi(p.Annotations[completionIndex])
	if err != nil || len(p.OwnerReferences) == 0 || p.Spec.NodeName == "" || p.DeletionTimestamp != nil {
		return
	}
	owner := p.OwnerReferences[0]
	t := a.jobs[string(owner.UID)]
	if t == nil {
		t = &training{name: owner.Name, uid: string(owner.UID), dead: map[int]bool{}}
		t.run(time.Now(), 1000)
		a.jobs[t.uid] = t
	}
	t.world += GPUs
	s := &seat{uid: string(p.UID), name: p.Name, node: p.Spec.NodeName, index: index, job: t}
	a.pods[s.uid] = s
	a.at[s.node] = append(a.at[s.node], s)
}

// occupied are the nodes on which a gang runs, of those given.
func (a *agents) occupied(nodes []node) []string {
	var out []string
	for _, n := range nodes {
		if len(a.at[n.name]) > 0 {
			out = append(out, n.name)
		}
	}
	return out
}

// follow does what agents and launchers do with an attempt's record: all stop, and start together once every place is taken.
func (a *agents) follow(r bus.Attempt) {
	a.mu.Lock()
	t := a.jobs[r.Job.UID]
	if t == nil {
		a.mu.Unlock()
		return
	}
	complete := r.MasterAddr != ""
	for _, m := range r.Members {
		complete = complete && m.PodUID != ""
		if m.PodUID != "" && a.pods[m.PodUID] == nil {
			a.pods[m.PodUID] = &seat{uid: m.PodUID, node: m.Node, index: m.NodeRank, job: t}
		}
	}
	a.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if r.Attempt > t.attempt {
		t.halt(now)
		t.attempt, t.waiting, t.resumed = r.Attempt, true, nil
	}
	if r.Attempt == t.attempt && t.waiting && complete {
		from := t.stood
		t.dead, t.waiting, t.resumed = map[int]bool{}, false, &from
		t.run(now, from)
	}
}

func (a *agents) handlers(node string) map[string]func(context.Context, bus.Command) (bus.Reply, error) {
	ranks := func(answer func(t *training, rank int, c bus.Command) bus.RankReply) func(context.Context, bus.Command) (bus.Reply, error) {
		return func(_ context.Context, c bus.Command) (bus.Reply, error) {
			var r bus.Reply
			for _, uid := range c.PodUIDs {
				if s := a.find(uid, node); s != nil {
					s.job.mu.Lock()
					for local := range GPUs {
						a := answer(s.job, s.index*GPUs+local, c)
						a.PodUID = uid
						r.Ranks = append(r.Ranks, a)
					}
					s.job.mu.Unlock()
				}
			}
			return r, nil
		}
	}
	return map[string]func(context.Context, bus.Command) (bus.Reply, error){
		bus.VerbStatus:   func(_ context.Context, c bus.Command) (bus.Reply, error) { return a.status(node, c), nil },
		bus.VerbArm:      ranks(arm),
		bus.VerbManifest: ranks(manifest),
		bus.VerbCancel:   ranks(released("cancelled")),
		bus.VerbRelease:  ranks(released("released")),
		bus.VerbAbort:    ranks(abort),
		bus.VerbGo: func(ctx context.Context, c bus.Command) (bus.Reply, error) {
			select {
			case <-time.After(saveTook):
			case <-ctx.Done():
			}
			return ranks(save)(ctx, c)
		},
	}
}

func (a *agents) find(uid, node string) *seat {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.pods[uid]; s != nil && s.node == node {
		return s
	}
	return nil
}

func (a *agents) status(node string, c bus.Command) bus.Reply {
	var r bus.Reply
	now := time.Now()
	for _, uid := range c.PodUIDs {
		s := a.find(uid, node)
		if s == nil { // a replacement whose launcher waits for a place
			r.Pods = append(r.Pods, bus.PodStatus{PodUID: uid, Launcher: &bus.LauncherStatus{State: "waiting", NProc: GPUs}})
			continue
		}
		r.Pods = append(r.Pods, s.status(now))
	}
	return r
}

func (s *seat) status(now time.Time) bus.PodStatus {
	t := s.job
	t.mu.Lock()
	defer t.mu.Unlock()
	p := bus.PodStatus{PodUID: s.uid, Launcher: &bus.LauncherStatus{State: "running", Attempt: t.attempt, NProc: GPUs, JobUID: t.uid}}
	if t.waiting {
		p.Launcher.State = "stopped"
		return p
	}
	step := t.step(now)
	for local := range GPUs {
		r := bus.RankStatus{Rank: s.index*GPUs + local, LocalRank: local, WorldSize: t.world, Attempt: t.attempt, Pid: 1000 + local, Step: step, Section: "step",
			MedianStepS: rankStep.Seconds(), P99StepS: 1.1 * rankStep.Seconds(), SaveS: saveTook.Seconds(), CkptStep: step / 100 * 100,
			Connected: true, ProcState: "S", Exit: "running", CanSave: true, Strategy: "ddp", StepAgeS: 0.1, HeartbeatAgeS: 0.1, ResumedStep: t.resumed}
		switch {
		case t.dead[r.Rank]:
			p.Launcher.State = bus.LauncherFailed
			r.Connected, r.Exit, r.ProcState = false, "exception", ""
		case t.since.IsZero():
			r.StepAgeS = 60
		case t.hold > 0 && step == t.hold:
			r.Section = "held"
		}
		p.Ranks = append(p.Ranks, r)
	}
	return p
}

func arm(t *training, rank int, c bus.Command) bus.RankReply {
	r := bus.RankReply{Rank: rank, T: "armed", Step: t.step(time.Now()), AtStep: c.AtStep}
	switch {
	case t.since.IsZero() || t.dead[rank] || c.Attempt != t.attempt:
		r.T, r.Reason = "nack", "attempt"
	case t.hold == c.AtStep:
	case r.Step >= c.AtStep:
		r.T, r.Reason = "nack", "past"
	default:
		t.hold = c.AtStep
	}
	return r
}

// save answers when the ranks would have reached the step; the wait was the caller's.
func save(t *training, rank int, c bus.Command) bus.RankReply {
	r := bus.RankReply{Rank: rank, T: "saved", Step: t.hold}
	if t.hold == 0 || c.Attempt != t.attempt {
		r.T, r.Error = "nack", "nothing is armed"
		return r
	}
	t.from, t.since = t.hold, time.Now() // they hold there
	dir := fmt.Sprintf("/checkpoints/%s/step-%d.attempt-%d", t.name, t.hold, t.attempt)
	r.Save = &bus.Save{Req: c.Req, Step: t.hold, Dir: dir, Bytes: 1 << 30, Seconds: saveTook.Seconds(), WorldSize: t.world,
		Files: []bus.SaveFile{{Name: fmt.Sprintf("rank-%d.pt", rank), Rank: rank, Bytes: 1 << 30, CRC32: "00000000"}}}
	return r
}

func manifest(t *training, rank int, c bus.Command) bus.RankReply {
	return bus.RankReply{Rank: rank, T: "manifested", Step: t.hold, Save: &bus.Save{Req: c.Req, Step: t.hold, CRC32: "00000000"}}
}

func released(word string) func(*training, int, bus.Command) bus.RankReply {
	return func(t *training, rank int, _ bus.Command) bus.RankReply {
		if t.hold > 0 && len(t.dead) == 0 {
			now := time.Now()
			t.run(now, t.step(now))
		}
		return bus.RankReply{Rank: rank, T: word}
	}
}

func abort(t *training, rank int, _ bus.Command) bus.RankReply {
	t.halt(time.Now())
	t.dead[rank] = true
	return bus.RankReply{Rank: rank, T: "aborted"}
}

// send publishes events in turn over the connections; one node's always take the same, so that they stay in order.
func (a *agents) send(lane int, e event.Event) error {
	return a.pubs[lane%connections].Publish(e)
}

// acked counts the events that JetStream has acknowledged, and those that were given up before.
func (a *agents) acked() (acked, dropped int64) {
	for _, p := range a.pubs {
		c := p.Counts()
		acked, dropped = acked+c.Acked, dropped+c.Dropped
	}
	return acked, dropped
}
