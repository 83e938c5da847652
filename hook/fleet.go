package hook

import (
	"context"
	"errors"
	"io/fs"
	"sort"
	"sync"
	"time"
)

// FleetOptions say where a Fleet looks.
type FleetOptions struct {
	KubeletRoot string        // for example /var/lib/kubelet
	Limits      Limits        // zero means DefaultLimits
	Now         func() uint64 // clock of the rings; nil means Monotonic
}

// Fleet is every training pod of this node: its ranks, their rings and sessions, and its launcher. One Fleet is shared by all
// who need it in a process, so that each socket has one connection.
type Fleet struct {
	opts FleetOptions

	cancel context.CancelFunc
	ctx    context.Context
	tasks  sync.WaitGroup

	mu          sync.Mutex
	pods        map[string]*Pod
	subscribers map[*subscriber]struct{}
}

// Pod is one training pod.
type Pod struct {
	fleet *Fleet
	uid   string
	dir   *Dir
	tasks sync.WaitGroup // of its peers

	mu       sync.Mutex
	ranks    map[int]*Rank
	launcher *Launcher
}

// NewFleet makes a Fleet; Start sets it to work.
func NewFleet(o FleetOptions) *Fleet {
	if o.Limits == (Limits{}) {
		o.Limits = DefaultLimits()
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Fleet{opts: o, ctx: ctx, cancel: cancel, pods: map[string]*Pod{}, subscribers: map[*subscriber]struct{}{}}
}

// watchAgain is after how long a failed inotify watch is tried again.
const watchAgain = 5 * time.Second

// Start begins to watch. It does not wait for anything to be there.
func (f *Fleet) Start() {
	f.tasks.Go(func() {
		for f.ctx.Err() == nil {
			w := NewWatcher(f.opts.KubeletRoot, f.opts.Limits, f.change)
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
	case PodGone:
		f.forget(c.PodUID)
		return
	}
	p := f.podOf(c.PodUID)
	if p == nil {
		return
	}
	switch c.Kind {
	case RingAppeared:
		r := p.rank(c.Local)
		r.openRing()
		r.peer.touch()
	case SocketAppeared:
		p.rank(c.Local).peer.touch()
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
	f.mu.Lock()
	f.pods[uid] = p
	f.mu.Unlock()
	return p
}

// rank is the local rank, made when it is new. The Watcher bounds how many there can be.
func (p *Pod) rank(local int) *Rank {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, ok := p.ranks[local]
	if !ok {
		r = &Rank{pod: p, local: local}
		r.peer = newPeer(p.dir, SocketName(local), r)
		p.ranks[local] = r
		p.start(r.peer)
	}
	return r
}

func (p *Pod) launch() *Launcher {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.launcher == nil {
		p.launcher = &Launcher{pod: p, changed: make(chan struct{})}
		p.launcher.peer = newPeer(p.dir, LauncherSocket, p.launcher)
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
	delete(f.pods, uid)
	f.mu.Unlock()
	if p == nil {
		return
	}
	for _, r := range p.Ranks() {
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
}

func (f *Fleet) problem(pod string, err error) {
	f.publish(Event{Kind: Problem, PodUID: pod, Err: err})
}

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
