package incident

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/guard"
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

	ill         map[string]string   // by node: a condition of its hardware
	stands      map[string]Standing // by signal and node
	steered     bool                // replacements go where they are reserved
	bindsIn     time.Duration       // from eviction to a node
	slips       int                 // replacements that are not stamped though the API server steers
	slipsTo     string              // the node where they come down
	recreateErr error
	resumeErr   func() error  // of a gang that is suspended by now
	asked       int           // whether a pod may be evicted
	budget      func() error  // what a PodDisruptionBudget says to an eviction
	lets        int           // how many pods a PodDisruptionBudget lets a recreation take at once; 0: all
	mute        bool          // no rank carries the hook
	falls       map[int]bool  // attempts of which a worker ends before it is a rank
	startsIn    time.Duration // from the attempt's beginning to ranks that have resumed
}

type node struct {
	product     string // of its GPUs
	quarantined string
	gone        bool
}

type gang struct {
	cluster.Gang
	began   time.Time // of the present attempt's ranks
	attempt int
	from    int64
	dead    map[int]bool // ranks of the present attempt that ended
	deleted bool
	bound   map[string]time.Time // by pod UID: when it will get its node
	slipped map[string]string    // by pod UID: where one comes down that was not stamped
}

const nproc = 2

func newWorld(t *testing.T) *world {
	w := &world{t: t, ill: map[string]string{}, stands: map[string]Standing{}, nodes: map[string]*node{}, gangs: map[string]*gang{}, reserved: map[string]string{}, kubelets: map[string]error{}, seen: map[string]bool{},
		plans: map[string]Plan{}, saves: map[string]bus.Save{}, holding: map[string]string{}, steered: true, bindsIn: time.Second, startsIn: 500 * time.Millisecond}
	w.incidents, w.attempts = newKV[Incident](w), newKV[bus.Attempt](w)
	w.attempts.stored = func(job string) { delete(w.holding, job) } // the launchers end whoever is of an older attempt
	for k := range 6 {
		w.nodes[fmt.Sprintf("n%d", k+1)] = &node{}
	}
	w.gang("train", "n1", "n2")
	full := Plan{Policy: "gpu", Rule: "leave", Mode: "enforce", Cordon: true, Checkpoint: true, Restart: true, Placement: "equivalent", MaxPerJob: 3, VerifyWithin: 20 * time.Second, TakeUpWithin: 24 * time.Hour}
	stay := full
	stay.Rule, stay.Cordon, stay.Checkpoint = "again", false, false
	w.plans["gpu/row-remap"], w.plans["xid/79"], w.plans["node/lost"], w.plans["rank/dead"], w.plans["rank/hung"] = full, full, full, stay, stay
	return w
}

// gang starts a job with one pod a node, run by the launcher.
func (w *world) gang(name string, on ...string) *gang {
	g := &gang{attempt: 0, began: time.Now().Add(-time.Minute), dead: map[int]bool{}, bound: map[string]time.Time{}, slipped: map[string]string{}}
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
	return cluster.Member{Index: index, CompletionIndex: index, Namespace: "ml", Pod: "pod-" + uid, PodUID: uid, Node: on, Phase: "Running", Created: time.Now(), PodIP: "10.0.0." + fmt.Sprint(w.kept),
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
		on := m.SentTo
		if on == "" {
			on = g.slipped[m.PodUID]
		}
		if on == "" {
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
