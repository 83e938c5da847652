package hook

import (
	"context"
	"errors"
	"io/fs"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

// FleetOptions say where a Fleet looks.
type FleetOptions struct {
	KubeletRoot string        // for example /var/lib/kubelet
	Limits      Limits        // zero means DefaultLimits
	Budget      Budget        // of each pod; zeros stand for DefaultBudget
	Proc        string        // where the host's /proc is mounted; empty means /proc
	Now         func() uint64 // clock of the rings; nil means Monotonic
}

// Fleet is every training pod of this node: its ranks, their rings and sessions, and its launcher. One Fleet is shared by all
// who need it in a process, so that each socket has one connection.
type Fleet struct {
	opts   FleetOptions
	lives  census
	reaper reaper
	ranks  atomic.Int64 // of all pods

	cancel context.CancelFunc
	ctx    context.Context
	tasks  sync.WaitGroup

	mu          sync.Mutex
	pods        map[string]*Pod
	populated   chan struct{} // closed while there are pods
	subscribers map[*subscriber]struct{}
}

// Pod is one training pod.
type Pod struct {
	fleet *Fleet
	uid   string
	dir   *Dir
	tasks sync.WaitGroup // of its peers

	account *account

	mu       sync.Mutex
	ranks    map[int]*Rank
	launcher *Launcher
	refused  bool // a rank, for want of room on the node
}

// NewFleet makes a Fleet; Start sets it to work.
func NewFleet(o FleetOptions) *Fleet {
	if o.Limits == (Limits{}) {
		o.Limits = DefaultLimits()
	}
	o.Budget = o.Budget.WithDefaults()
	if o.Proc == "" {
		o.Proc = "/proc"
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Fleet{
		opts: o, lives: census{proc: o.Proc}, ctx: ctx, cancel: cancel, pods: map[string]*Pod{}, populated: make(chan struct{}),
		subscribers: map[*subscriber]struct{}{},
	}
}

// watchAgain is after how long a failed inotify watch is tried again.
const watchAgain = 5 * time.Second

// Start begins to watch. It does not wait for anything to be there.
func (f *Fleet) Start() {
	f.tasks.Go(func() {
		for f.ctx.Err() == nil {
			w := NewWatcher(f.opts.KubeletRoot, f.opts.Limits, f.opts.Budget, f.change)
			if err := w.Run(f.ctx); err != nil {
				f.problem("", err)
			}
			select {
			case <-f.ctx.Done():
			case <-time.After(watchAgain):
			}
		}
	})
}

// Close ends all sessions and waits for every goroutine.
func (f *Fleet) Close() {
	f.cancel()
	f.tasks.Wait()
	f.reaper.close()
	f.mu.Lock()
	subs, pods := f.subscribers, f.pods
	f.subscribers, f.pods = map[*subscriber]struct{}{}, map[string]*Pod{}
	f.mu.Unlock()
	for _, p := range pods {
		p.close()
	}
	for s := range subs {
		s.stop()
	}
}

// Pods are the training pods on this node, by UID.
func (f *Fleet) Pods() []*Pod {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]*Pod, 0, len(f.pods))
	for _, p := range f.pods {
		out = append(out, p)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].uid < out[j].uid })
	return out
}

// AwaitPod returns true as soon as there is a training pod on the node, and false if ctx ends before. A reader of rings need not look
// while there is none.
func (f *Fleet) AwaitPod(ctx context.Context) bool {
	f.mu.Lock()
	populated := f.populated
	f.mu.Unlock()
	select {
	case <-populated:
		return true
	case <-ctx.Done():
		return false
	}
}

// Pod is the pod with this UID, or nil.
func (f *Fleet) Pod(uid string) *Pod {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pods[uid]
}

// UID is the pod's UID, by the path of its directory.
func (p *Pod) UID() string { return p.uid }

// Ranks are the pod's local ranks, in order.
func (p *Pod) Ranks() []*Rank {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]*Rank, 0, len(p.ranks))
	for _, r := range p.ranks {
		out = append(out, r)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].local < out[j].local })
	return out
}

// Launcher is the pod's launcher, or nil when none was seen.
func (p *Pod) Launcher() *Launcher {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.launcher
}

// close releases a pod whose peers have ended.
func (p *Pod) close() {
	for _, r := range p.Ranks() {
		r.closeRings()
	}
	_ = p.dir.Close()
}

func (p *Pod) exitOf(attempt, local, pid int) (WorkerExit, bool) {
	if l := p.Launcher(); l != nil {
		return l.exitOf(attempt, local, pid)
	}
	return WorkerExit{}, false
}

// change is what the Watcher saw.
func (f *Fleet) change(c FileChange) {
	switch c.Kind {
	case Refused:
		f.problem(c.PodUID, c.Err)
		return
	case Exceeded:
		if p := f.Pod(c.PodUID); p != nil {
			p.account.exceed(c.Resource, c.Count)
		}
		return
	case PodGone:
		f.forget(c.PodUID)
		return
	}
	p := f.podOf(c.PodUID)
	if p == nil {
		return
	}
	switch c.Kind {
	case RingAppeared, SocketAppeared:
		r := p.rank(c.Local)
		if r == nil {
			return
		}
		if c.Kind == RingAppeared {
			r.openRing()
		}
		r.peer.touch()
	case LauncherAppeared:
		p.launch().peer.touch()
	}
}

// podOf is the pod with this UID, opened when it is new.
func (f *Fleet) podOf(uid string) *Pod {
	if p := f.Pod(uid); p != nil {
		return p
	}
	dir, err := OpenPodDir(f.opts.KubeletRoot, uid)
	if err != nil {
		if !isNotExist(err) {
			f.problem(uid, err)
		}
		return nil
	}
	p := &Pod{fleet: f, uid: uid, dir: dir, ranks: map[int]*Rank{}}
	p.account = newAccount(f.opts.Budget, func(e Excess) { f.publish(Event{Kind: OverBudget, PodUID: uid, Excess: e}) })
	f.mu.Lock()
	if len(f.pods) == 0 {
		close(f.populated)
	}
	f.pods[uid] = p
	f.mu.Unlock()
	return p
}

// rank is the local rank, made when it is new. The Watcher bounds how many a pod can have. It is nil if the node's pods have many ranks
// and this pod has its share.
func (p *Pod) rank(local int) *Rank {
	full := p.fleet.rankShare()
	p.mu.Lock()
	r, ok := p.ranks[local]
	if !ok && len(p.ranks) >= full {
		p.refused = true
		p.mu.Unlock()
		p.account.exceed(Ranks, 1)
		return nil
	}
	defer p.mu.Unlock()
	if !ok {
		r = &Rank{pod: p, local: local}
		r.peer = newPeer(p.dir, SocketName(local), p.account, &p.fleet.reaper, r)
		p.ranks[local] = r
		p.fleet.ranks.Add(1)
		p.start(r.peer)
	}
	return r
}

// rankShare is how many ranks a pod may have now: as many as the node has room for, and never fewer than each pod is guaranteed.
func (f *Fleet) rankShare() int {
	l := f.opts.Limits
	if l.NodeRanks <= 0 || f.ranks.Load() < int64(l.NodeRanks) {
		return l.Ranks
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(l.RanksGuaranteed, l.NodeRanks/max(len(f.pods), 1))
}

// Spend takes up to n of a pod's budget and returns how many it got. The rest counts as excess.
func (p *Pod) Spend(r Resource, n int) int { return p.account.grant(r, n) }

// Charge takes n of a pod's budget that have been used already. A pod in debt is over budget.
func (p *Pod) Charge(r Resource, n int) {
	if n > 0 {
		p.account.charge(r, n)
	}
}

// Exceed counts n beyond a budget that the caller keeps.
func (p *Pod) Exceed(r Resource, n int) { p.account.exceed(r, n) }

// OverBudget says whether the pod exceeded a budget lately.
func (p *Pod) OverBudget() bool { return p.account.over() }

// Excesses is what the pod did beyond each budget so far.
func (p *Pod) Excesses() []Excess { return p.account.excesses() }

func (p *Pod) launch() *Launcher {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.launcher == nil {
		p.launcher = &Launcher{pod: p, changed: make(chan struct{})}
		p.launcher.peer = newPeer(p.dir, LauncherSocket, p.account, &p.fleet.reaper, p.launcher)
		p.start(p.launcher.peer)
	}
	return p.launcher
}

func (p *Pod) start(peer *peer) {
	p.tasks.Add(1)
	p.fleet.tasks.Go(func() {
		defer p.tasks.Done()
		peer.run(p.fleet.ctx)
	})
}

// forget lets go of a pod whose directory is gone. Its sessions end as their processes do.
func (f *Fleet) forget(uid string) {
	f.mu.Lock()
	p := f.pods[uid]
	if delete(f.pods, uid); p != nil && len(f.pods) == 0 {
		f.populated = make(chan struct{})
	}
	f.mu.Unlock()
	if p == nil {
		return
	}
	for _, r := range p.Ranks() {
		f.ranks.Add(-1)
		r.peer.leave()
	}
	if l := p.Launcher(); l != nil {
		l.peer.leave()
	}
	f.tasks.Go(func() {
		p.tasks.Wait()
		p.close()
		f.publish(Event{Kind: PodLeft, PodUID: uid})
	})
	f.readmit()
}

// readmit looks again at the ranks that had no room, now that a pod has left.
func (f *Fleet) readmit() {
	for _, p := range f.Pods() {
		p.mu.Lock()
		refused := p.refused
		p.refused = false
		p.mu.Unlock()
		for local := range f.opts.Limits.Ranks {
			if refused && p.dir.has(RingName(local), SocketName(local)) {
				f.change(FileChange{Kind: RingAppeared, PodUID: p.uid, Local: local})
			}
		}
	}
}

func (f *Fleet) problem(pod string, err error) {
	f.publish(Event{Kind: Problem, PodUID: pod, Err: err})
}

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
