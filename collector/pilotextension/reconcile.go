package pilotextension

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/semconv"
)

// loneGrace is how long a launcher that no record knows waits for the bus before it is told to be alone. A launcher by itself
// goes on after 2 s without an agent, so this must be less.
const loneGrace = 1500 * time.Millisecond

// reconciler keeps each launcher of this node in line with the attempts. It works by level: whatever was missed, doubled or
// lost, the next hello or the next change of the bucket leads to the same place.
type reconciler struct {
	log       *zap.Logger
	fleet     *hook.Fleet
	connected func() bool
	grace     time.Duration

	mu       sync.Mutex
	closed   bool
	attempts map[string]bus.Attempt // by job UID
	fresh    map[string]bus.Attempt // those of a watch that has not said yet that it is complete
	answered bool                   // a watch has told all there is, and has not broken since
	told     map[string]hook.Message
	lone     map[string]*time.Timer // pods that wait for the bus
	waited   map[string]bool        // pods that have waited long enough
}

func newReconciler(log *zap.Logger, fleet *hook.Fleet, connected func() bool, grace time.Duration) *reconciler {
	return &reconciler{
		log: log, fleet: fleet, connected: connected, grace: grace, attempts: map[string]bus.Attempt{},
		told: map[string]hook.Message{}, lone: map[string]*time.Timer{}, waited: map[string]bool{},
	}
}

// begin is a new watch of the bucket: until current, what it tells is gathered beside what was known.
func (r *reconciler) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fresh, r.answered = map[string]bus.Attempt{}, false
}

// change is one record of the bucket.
func (r *reconciler) change(c bus.Change[bus.Attempt]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	into := r.attempts
	if r.fresh != nil {
		into = r.fresh
	}
	if c.Deleted {
		delete(into, c.Key)
	} else {
		into[c.Key] = c.Value
	}
	if r.fresh == nil {
		r.all()
	}
}

// current says that the watch has told all there is: what it did not name is no more.
func (r *reconciler) current() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fresh != nil {
		r.attempts, r.fresh = r.fresh, nil
	}
	r.answered = true
	r.all()
}

// event follows the launchers.
func (r *reconciler) event(e hook.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e.Kind {
	case hook.LauncherAttached:
		delete(r.told, e.PodUID) // a new connection has heard nothing
		r.one(e.Launcher)
	case hook.LauncherGone, hook.PodLeft:
		r.forget(e.PodUID)
	}
}

func (r *reconciler) forget(pod string) {
	if t := r.lone[pod]; t != nil {
		t.Stop()
	}
	delete(r.lone, pod)
	delete(r.told, pod)
	delete(r.waited, pod)
}

func (r *reconciler) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for pod := range r.lone {
		r.forget(pod)
	}
}

func (r *reconciler) all() {
	for _, p := range r.fleet.Pods() {
		if l := p.Launcher(); l != nil {
			r.one(l)
		}
	}
}

// one tells a launcher what is to be, unless it was told on this connection already. The lock is held.
func (r *reconciler) one(l *hook.Launcher) {
	v, ok := l.View()
	if !ok || !v.Connected || r.closed {
		return
	}
	pod := l.PodUID()
	m := decide(r.attempts, pod, v.Hello.JobUID)
	if _, alone := m.(hook.Alone); alone && !r.waited[pod] && !(r.answered && r.connected()) {
		r.await(pod, l)
		return
	}
	if r.told[pod] == m {
		return
	}
	if err := l.Send(m); err != nil {
		delete(r.told, pod)
		r.log.Warn("launcher not told; it is when it connects again", zap.String(semconv.K8sPodUID, pod), zap.Error(err))
		return
	}
	r.told[pod] = m
	r.log.Info("launcher told", zap.String(semconv.K8sPodUID, pod), zap.Any("instruction", m))
}

// await gives the bus a moment to answer before a launcher is told to be alone.
func (r *reconciler) await(pod string, l *hook.Launcher) {
	if r.lone[pod] != nil {
		return
	}
	r.lone[pod] = time.AfterFunc(r.grace, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.closed || r.lone[pod] == nil {
			return
		}
		delete(r.lone, pod)
		r.waited[pod] = true
		r.one(l)
	})
}

// decide is what docs/contracts.md, "Attempts", says for a pod. pod is a fact; claim, the job that its launcher names, only
// ever makes it wait or be alone.
func decide(attempts map[string]bus.Attempt, pod, claim string) hook.Message {
	for _, a := range attempts {
		for _, m := range a.Members {
			if m.PodUID != pod {
				continue
			}
			if a.MasterAddr == "" {
				return hook.Stop{Attempt: a.Attempt}
			}
			return hook.Start{
				Attempt: a.Attempt, NodeRank: m.NodeRank, NNodes: len(a.Members), NProc: a.NProc, WorldSize: a.WorldSize,
				MasterAddr: a.MasterAddr, MasterPort: a.MasterPort,
			}
		}
	}
	if _, known := attempts[claim]; known && claim != "" {
		return hook.Wait{}
	}
	return hook.Alone{}
}
