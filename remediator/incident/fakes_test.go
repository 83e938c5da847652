package incident

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/placement"
)

// world is a cluster, its agents and its bus in memory. It lives in a synctest bubble, whose clock is everybody's. Each write is listed
// in did by what it changed, and only if it changed something.
type world struct {
	t  *testing.T
	mu sync.Mutex

	nodes    map[string]*node
	gangs    map[string]*gang // by job UID
	reserved map[string]string
	kubelets map[string]error // of silent nodes

	did   []string
	wrote int           // write calls, also those that changed nothing
	crash func(nth int) // called after each write call, before its caller hears of it

	incidents *kv[Incident]
	attempts  *kv[bus.Attempt]
	seen      map[string]bool
	seenErr   error

	plans   map[string]Plan // by signal, or by signal and node
	refuses func(p *Plan, f Facts) []guard.Verdict
	saveErr error
	saves   map[string]bus.Save
	holding map[string]string // by job: the round its ranks hold for
	kept    int               // pods made so far, for names

	steered     bool          // replacements go where they are reserved
	bindsIn     time.Duration // from eviction to a node
	recreateErr error
	mute        bool // no rank carries the hook
}

type node struct {
	quarantined, held string
	gone              bool
}

type gang struct {
	cluster.Gang
	began   time.Time // of the present attempt's ranks
	attempt int
	from    int64
	dead    map[int]bool // ranks of the present attempt that ended
	deleted bool
	bound   map[string]time.Time // by pod UID: when it will get its node
}

const nproc = 2

func newWorld(t *testing.T) *world {
	w := &world{t: t, nodes: map[string]*node{}, gangs: map[string]*gang{}, reserved: map[string]string{}, kubelets: map[string]error{}, seen: map[string]bool{},
		plans: map[string]Plan{}, saves: map[string]bus.Save{}, holding: map[string]string{}, steered: true, bindsIn: time.Second}
	w.incidents, w.attempts = newKV[Incident](w), newKV[bus.Attempt](w)
	w.attempts.stored = func(job string) { delete(w.holding, job) } // the launchers end whoever is of an older attempt
	for k := range 6 {
		w.nodes[fmt.Sprintf("n%d", k+1)] = &node{}
	}
	w.gang("train", "n1", "n2")
	full := Plan{Policy: "gpu", Rule: "leave", Mode: "enforce", Cordon: true, Checkpoint: true, Restart: true, Placement: "equivalent", MaxPerJob: 3, VerifyWithin: 20 * time.Second}
	stay := full
	stay.Rule, stay.Cordon, stay.Checkpoint = "again", false, false
	w.plans["gpu/row-remap"], w.plans["xid/79"], w.plans["node/lost"], w.plans["rank/dead"], w.plans["rank/hung"] = full, full, full, stay, stay
	return w
}

// gang starts a job with one pod a node, run by the launcher.
func (w *world) gang(name string, on ...string) *gang {
	g := &gang{attempt: 0, began: time.Now().Add(-time.Minute), dead: map[int]bool{}, bound: map[string]time.Time{}}
	g.Gang = cluster.Gang{Job: event.Job{APIVersion: "batch/v1", Kind: "Job", Namespace: "ml", Name: name, UID: "job-" + name}, Kind: cluster.KindIndexedJob,
		Launcher: true, Size: len(on), OptIn: true}
	for k, n := range on {
		g.Members = append(g.Members, w.pod(g, k, n))
	}
	w.gangs[g.Job.UID] = g
	return g
}

func (w *world) pod(g *gang, index int, on string) cluster.Member {
	w.kept++
	uid := fmt.Sprintf("%s-%d-%d", g.Job.Name, index, w.kept)
	return cluster.Member{Index: index, CompletionIndex: index, Namespace: "ml", Pod: "pod-" + uid, PodUID: uid, Node: on, Phase: "Running", PodIP: "10.0.0." + fmt.Sprint(w.kept),
		OwnerUID: g.Job.UID, Requests: map[string]int64{"gpu": 1}}
}

// wrotes notes a write call and lets the test crash right behind it.
func (w *world) wrotes(did string, changed bool) {
	w.wrote++
	if changed {
		w.did = append(w.did, did)
	}
	if crash, nth := w.crash, w.wrote; crash != nil {
		w.apart(func() { crash(nth) })
	}
}

// apart does something that takes the lock itself or ends the goroutine.
func (w *world) apart(f func()) {
	w.mu.Unlock()
	defer w.mu.Lock()
	f()
}

func (w *world) count(did string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.did {
		if d == did {
			n++
		}
	}
	return n
}

// settle lets time have its effect: pods get their nodes.
func (w *world) settle(g *gang) {
	for k, m := range g.Members {
		at, waits := g.bound[m.PodUID]
		if !waits || time.Now().Before(at) {
			continue
		}
		on := w.reserved[fmt.Sprintf("%s/%d", g.Job.UID, m.Index)]
		if on == "" || !w.steered {
			on = w.anywhere(g)
		}
		if on == "" || w.nodes[on].quarantined != "" {
			continue
		}
		g.Members[k].Node, g.Members[k].PodIP, g.Members[k].Phase = on, fmt.Sprintf("10.0.1.%d", k), "Running"
		delete(g.bound, m.PodUID)
	}
}

func (w *world) anywhere(g *gang) string {
	for _, name := range w.names() {
		taken := w.nodes[name].quarantined != "" || slices.ContainsFunc(g.Members, func(m cluster.Member) bool { return m.Node == name })
		for _, r := range w.reserved {
			taken = taken || r == name
		}
		if !taken {
			return name
		}
	}
	return ""
}

func (w *world) names() []string {
	var out []string
	for name := range w.nodes {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// --- Cluster

func (w *world) GangsAt(_ context.Context, t event.Target) (out []cluster.Gang, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, uid := range []string{"job-train", "job-other", "job-third"} {
		g := w.gangs[uid]
		if g == nil || g.deleted || t.Job != nil && t.Job.UID != uid {
			continue
		}
		w.settle(g)
		if t.Job != nil || slices.ContainsFunc(g.Members, func(m cluster.Member) bool {
			return t.PodUID != "" && m.PodUID == t.PodUID || t.PodUID == "" && m.Node == t.Node
		}) {
			out = append(out, w.copy(g))
		}
	}
	return out, nil
}

func (w *world) copy(g *gang) cluster.Gang {
	c := g.Gang
	c.Members = slices.Clone(g.Members)
	return c
}

func (w *world) Gang(_ context.Context, job event.Job) (cluster.Gang, error) {
	time.Sleep(30 * time.Millisecond) // so that every state lasts
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.gangs[job.UID]
	if g == nil || g.deleted {
		return cluster.Gang{}, fmt.Errorf("job: %w", cluster.ErrNotFound)
	}
	w.settle(g)
	return w.copy(g), nil
}

func (w *world) NodeState(name string) (cluster.NodeState, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.nodes[name]
	if n == nil || n.gone {
		return cluster.NodeState{}, cluster.ErrNotFound
	}
	return cluster.NodeState{Name: name, Ready: true, Quarantined: n.quarantined, Unschedulable: n.quarantined != ""}, nil
}

func (w *world) Nodes(without ...string) (out []placement.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range w.names() {
		n := w.nodes[name]
		p := placement.Node{Name: name, Ready: true, Unschedulable: n.quarantined != "", Free: map[string]int64{"gpu": 1}}
		if n.quarantined != "" {
			p.Taints = append(p.Taints, placement.Taint{Key: placement.QuarantineTaint, Value: n.quarantined, Effect: "NoSchedule"})
		}
		for _, g := range w.gangs {
			for _, m := range g.Members {
				if m.Node == name && !g.deleted && !slices.Contains(without, m.PodUID) {
					p.Free["gpu"] = 0
				}
			}
		}
		out = append(out, p)
	}
	return out
}

func (w *world) Changes(string) (<-chan struct{}, func()) { return nil, func() {} }

func (w *world) Cordon(_ context.Context, name, incident string) (cluster.Cordoned, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.nodes[name]
	changed := n.quarantined == ""
	if changed {
		n.quarantined = incident
	}
	w.wrotes("cordon "+name, changed)
	return cluster.Cordoned{Changed: changed, Owner: n.quarantined}, nil
}

func (w *world) SetCondition(_ context.Context, name string, _ bool, _, _ string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrotes("condition "+name, true)
	return nil
}

func (w *world) NodeRef(name string) cluster.Ref { return cluster.Ref{Kind: "Node", Name: name} }

func (w *world) Event(_ context.Context, about cluster.Ref, _, reason, _ string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrotes("event "+reason+" "+about.Name, true)
	return nil
}

func (w *world) Reserve(_ context.Context, r cluster.Reservation) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.OwnerUID == "" || r.Index == nil {
		w.t.Errorf("a reservation for nobody: %+v", r)
	}
	key := fmt.Sprintf("%s/%d", r.OwnerUID, *r.Index)
	changed := w.reserved[key] != r.Node
	w.reserved[key] = r.Node
	w.wrotes("reserve "+r.Node, changed)
	return nil
}

func (w *world) WaitReservationSeen(ctx context.Context, _ cluster.Reservation) error {
	if w.steered {
		return nil
	}
	<-ctx.Done()
	return fmt.Errorf("%w: %w", cluster.ErrNoPolicy, ctx.Err())
}

func (w *world) Release(context.Context, string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := len(w.reserved) > 0
	w.reserved = map[string]string{}
	w.wrotes("release", changed)
	return nil
}

func (w *world) ReplacePod(_ context.Context, m cluster.Member, o cluster.ReplaceOptions) (cluster.Outcome, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	verb := "evict "
	if o.Force {
		verb = "force "
	}
	for _, g := range w.gangs {
		for k, have := range g.Members {
			if have.PodUID != m.PodUID {
				continue
			}
			if w.kubelets[have.Node] != nil && !o.Force { // nobody there ends it
				changed := !have.Deleting
				g.Members[k].Deleting = true
				w.wrotes(verb+m.PodUID, changed)
				return cluster.Evicted, nil
			}
			w.remake(g, k)
			w.wrotes(verb+m.PodUID, true)
			return cluster.Evicted, nil
		}
	}
	w.wrotes(verb+m.PodUID, false)
	return "", cluster.ErrStale
}

// remake lets the Job controller make a new pod for an index.
func (w *world) remake(g *gang, k int) {
	m := w.pod(g, g.Members[k].Index, "")
	m.Phase, m.PodIP = "Pending", ""
	g.Members[k], g.bound[m.PodUID] = m, time.Now().Add(w.bindsIn)
}

func (w *world) RecreateGang(_ context.Context, meant cluster.Gang, _ cluster.RecreateOptions) (cluster.Recreation, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.recreateErr != nil {
		return cluster.Recreation{}, w.recreateErr
	}
	g := w.gangs[meant.Job.UID]
	delete(w.holding, g.Job.UID)
	g.began, g.dead, g.Suspended = time.Now().Add(w.bindsIn), map[int]bool{}, false
	for _, m := range meant.Members {
		for k, have := range g.Members {
			if have.PodUID == m.PodUID {
				w.remake(g, k)
				w.wrotes("recreate "+m.PodUID, true)
			}
		}
	}
	return cluster.Recreation{}, nil
}

func (w *world) DeleteByUID(ctx context.Context, m cluster.Member, incident string, _ int64) error {
	_, err := w.ReplacePod(ctx, m, cluster.ReplaceOptions{Incident: incident})
	return err
}

func (w *world) ProbeKubelet(_ context.Context, name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kubelets[name]
}

// --- Checkpointer

func (w *world) Save(ctx context.Context, q checkpoint.Request) (bus.Save, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.saveErr != nil {
		return bus.Save{}, w.saveErr
	}
	g := w.of(q.Members)
	s, again := w.saves[q.ID]
	if holds := w.holding[g.Job.UID]; holds != "" && holds != q.ID {
		return bus.Save{}, errors.New("rank 0 refused: nack busy")
	}
	if !again {
		s = bus.Save{Req: q.ID, Step: 700 + int64(len(w.saves)), Dir: "/ckpt/" + q.ID, Bytes: 10}
		w.saves[q.ID] = s
	}
	w.holding[g.Job.UID] = q.ID
	w.wrotes("save "+q.ID, !again)
	var err error
	w.apart(func() { err = q.Admit(ctx, s) })
	g.from = s.Step
	return s, err
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

// Observe shows ranks that resume half a second after their attempt is complete and then step ten times a second.
func (w *world) Observe(_ context.Context, members []checkpoint.Member) (checkpoint.Gang, map[string]error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	live, missing := checkpoint.Gang{Ranks: map[int]bus.RankStatus{}, PodOf: map[int]checkpoint.Member{}, Attempt: -1}, map[string]error{}
	g := w.of(members)
	if g == nil || w.mute {
		return live, missing
	}
	w.settle(g)
	if a, ok := w.attempts.values[g.Job.UID]; ok && a.v.Attempt > g.attempt {
		if !w.complete(g, a.v) {
			return live, missing
		}
		g.attempt, g.began, g.dead = a.v.Attempt, time.Now(), map[int]bool{}
		delete(w.holding, g.Job.UID)
	}
	ran := time.Since(g.began)
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
			r := bus.RankStatus{Rank: m.Index*nproc + l, WorldSize: live.World, Attempt: g.attempt, Step: g.from, Exit: "running", Connected: true, CanSave: true, P99StepS: .1}
			if ran > 500*time.Millisecond {
				from := g.from
				r.ResumedStep, r.Step = &from, g.from+int64((ran-500*time.Millisecond)/(100*time.Millisecond))
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

// --- Judge, Seen

func (w *world) Plan(e event.Event, f Facts) (*Plan, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok := w.plans[e.Data.Cause.Signal()+" "+e.Data.Target.Node]
	if !ok {
		p, ok = w.plans[e.Data.Cause.Signal()]
	}
	if !ok {
		return nil, "no rule"
	}
	return &p, ""
}

func (w *world) Guards(p *Plan, f Facts, _ []*Incident) []guard.Verdict {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuses != nil {
		if v := w.refuses(p, f); v != nil {
			return v
		}
	}
	return []guard.Verdict{{Guard: guard.KillSwitch, Allowed: true, Asked: true}}
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

// kv is a bucket in memory that keeps JSON, as the real one does.
type kv[T any] struct {
	w      *world
	values map[string]kept[T]
	rev    uint64
	stored func(key string)            // called at each write, under the lock
	put    func(key string, v T) error // called before each write
	after  func(key string, v T) error // called after it took effect; an error is a lost answer
}

type kept[T any] struct {
	v   T
	rev uint64
}

func newKV[T any](w *world) *kv[T] { return &kv[T]{w: w, values: map[string]kept[T]{}} }

func (k *kv[T]) Get(_ context.Context, key string) (v T, rev uint64, err error) {
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	have, ok := k.values[key]
	if !ok {
		return v, 0, bus.ErrNotFound
	}
	return through(have.v), have.rev, nil
}

func (k *kv[T]) Put(_ context.Context, key string, v T, rev uint64) (uint64, error) {
	k.w.mu.Lock()
	put := k.put
	k.w.mu.Unlock()
	if put != nil {
		if err := put(key, v); err != nil {
			return 0, err
		}
	}
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	if k.values[key].rev != rev {
		return 0, bus.ErrConflict
	}
	k.rev++
	mine := k.rev
	k.values[key] = kept[T]{through(v), mine}
	if k.stored != nil {
		k.stored(key)
	}
	k.w.wrotes("put", false)
	if k.after != nil {
		if err := k.after(key, v); err != nil {
			return 0, err
		}
	}
	return mine, nil
}

func through[T any](v T) (out T) {
	raw, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		panic(err)
	}
	return out
}

func (k *kv[T]) Delete(_ context.Context, key string, rev uint64) error {
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	if k.values[key].rev != rev {
		return bus.ErrConflict
	}
	delete(k.values, key)
	return nil
}

func (k *kv[T]) List(context.Context) (out []bus.Change[T], err error) {
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	for key, have := range k.values {
		out = append(out, bus.Change[T]{Key: key, Value: through(have.v), Rev: have.rev})
	}
	return out, nil
}

func (k *kv[T]) Watch(ctx context.Context, _ func(), _ func(bus.Change[T])) error {
	<-ctx.Done()
	return nil
}
