package incident

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/ledger"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// world is a cluster, its agents and its bus in memory. It lives in a synctest bubble, whose clock is everybody's. Each write is listed
// in did by what it changed, and only if it changed something.
type world struct {
	t  *testing.T
	mu sync.Mutex

	nodes      map[string]*node
	sorted     []string          // their names
	gangs      map[string]*gang  // by job UID
	reserved   map[string]string // by owner and index: the node
	reservedBy map[string]string // and the incident
	kubelets   map[string]error  // of silent nodes

	did   []string
	wrote int           // write calls, also those that changed nothing
	crash func(nth int) // called after each write call, before its caller hears of it

	incidents *kv[Incident]
	attempts  *kv[bus.Attempt]
	books     *kv[ledger.Book]
	seen      map[string]bool
	seenErr   error

	plans   map[string]Plan // by signal, or by signal and node
	refuses func(p *Plan, f Facts) []guard.Verdict
	saveErr error
	saves   map[string]bus.Save
	holding map[string]string    // by job: the round its ranks hold for
	expires map[string]time.Time // by job: when those ranks leave
	left    []string             // rounds of which ranks left at their deadline
	kept    int                  // pods made so far, for names

	ill         map[string]string   // by node: a condition of its hardware
	stands      map[string]Standing // by signal and node
	steered     bool                // replacements go where they are reserved
	bindsIn     time.Duration       // from eviction to a node
	slips       int                 // replacements that are not stamped though the API server steers
	slipsTo     string              // the node where they come down
	recreateErr error
	resumeErr   func() error                        // of a gang that is suspended by now
	asked       int                                 // whether a pod may be evicted
	budget      func() error                        // what a PodDisruptionBudget says to an eviction
	lets        int                                 // how many pods a PodDisruptionBudget lets a recreation take at once; 0: all
	cut         error                               // a member's kubelet is silent, so the others stand still
	goesOn      bool                                // the others step on all the same
	mute        bool                                // no rank carries the hook
	beat        func(attempt int) *bus.ClaimReading // ranks are in an evaluation, and read this
	falls       map[int]bool                        // attempts of which a worker ends before it is a rank
	stepS       time.Duration                       // of one step; 0: a tenth of a second
	fastAgain   bool                                // steps are half as long once an attempt began
	startsIn    time.Duration                       // from the attempt's beginning to ranks that have resumed
}

type node struct {
	product     string // of its GPUs
	rack, pool  string
	quarantined string
	gone        bool
	off         string // the taint that says that it is off
	held        string // why nobody may touch it
}

type gang struct {
	cluster.Gang
	began           time.Time // of the present attempt's ranks
	attempt         int
	from            int64
	dead            map[int]bool // ranks of the present attempt that ended
	deleted         bool
	personSuspended bool                 // by a person
	bound           map[string]time.Time // by pod UID: when it will get its node
	slipped         map[string]string    // by pod UID: where one comes down that was not stamped
}

const nproc = 2

func newWorld(t *testing.T) *world {
	w := &world{t: t, ill: map[string]string{}, stands: map[string]Standing{}, nodes: map[string]*node{}, gangs: map[string]*gang{}, reserved: map[string]string{}, reservedBy: map[string]string{}, kubelets: map[string]error{}, seen: map[string]bool{},
		plans: map[string]Plan{}, saves: map[string]bus.Save{}, holding: map[string]string{}, expires: map[string]time.Time{}, steered: true, bindsIn: time.Second, startsIn: 500 * time.Millisecond}
	w.incidents, w.attempts = newKV[Incident](w), newKV[bus.Attempt](w)
	w.books = newKV[ledger.Book](w)
	w.attempts.stored = func(job string) { delete(w.holding, job) } // the launchers end whoever is of an older attempt
	for k := range 6 {
		w.nodes[fmt.Sprintf("n%d", k+1)] = &node{}
	}
	w.gang("train", "n1", "n2")
	full := Plan{Policy: "gpu", Rule: "leave", Mode: "enforce", Steps: does(policy.Cordon, policy.Checkpoint, policy.RestartJob), VerifyWithin: 20 * time.Second, TakeUpWithin: 24 * time.Hour}
	stay := full
	stay.Rule, stay.Steps = "again", does(policy.RestartJob)
	w.plans["gpu/row-remap"], w.plans["xid/79"], w.plans["node/lost"], w.plans["rank/dead"], w.plans["rank/hung"] = full, full, full, stay, stay
	return w
}

// does are the steps of a plan.
func does(verbs ...policy.Verb) (out []policy.PlannedStep) {
	for _, v := range verbs {
		s := policy.PlannedStep{Step: policy.Step{Do: v}}
		if v == policy.RestartJob {
			s.With = &policy.With{Placement: policy.Equivalent, MaxPerJob: 3}
		}
		out = append(out, s)
	}
	return out
}

// fast lets the plan replace pods without the Job controller's back-off, or not.
func (p *Plan) fast(on bool) {
	p.Steps = slices.Clone(p.Steps)
	for k, s := range p.Steps {
		if s.With != nil {
			with := *s.With
			with.FastReplace = on
			p.Steps[k].With = &with
		}
	}
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

// names are the nodes in order. Tests add nodes and take none away.
func (w *world) names() []string {
	if len(w.sorted) != len(w.nodes) {
		w.sorted = slices.Sorted(maps.Keys(w.nodes))
	}
	return w.sorted
}
