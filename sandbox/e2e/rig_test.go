package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/demo"
)

const healsWithin = time.Minute

// rig is one test's hold on a scene.
type rig struct {
	*testing.T
	*demo.Stage
	scene *scene
	ctx   context.Context
}

func newRig(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	s := <-scenes
	t.Cleanup(func() { scenes <- s })
	if err := s.setUp(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return &rig{t, s.stage, s, ctx}
}

// must ends the test on an error.
func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// training returns an Indexed Job that steps: the job of the previous test if it is still well, else a new one.
func (r *rig) training(launcher string) *demo.Job {
	r.Helper()
	return r.trainingAs(demo.KindJob, launcher)
}

// trainingAs returns a workload of that kind that steps, as training does.
func (r *rig) trainingAs(workload, launcher string) *demo.Job {
	r.Helper()
	r.repair()
	if j := r.scene.job; j != nil && j.Kind == workload && r.scene.launcher == launcher && r.steps(j, 20*time.Second) == nil {
		return j
	}
	j := r.submit(demo.Scenario{Launcher: launcher, Workload: workload})
	r.must(r.Reached(r.ctx, j, 30, 2*time.Minute))
	return j
}

// submit starts a new job in place of the one that was.
func (r *rig) submit(s demo.Scenario) *demo.Job {
	r.Helper()
	if j := r.scene.job; j != nil {
		r.scene.job = nil
		r.must(r.Remove(r.ctx, j))
	}
	r.scene.made++
	j, err := r.Submit(r.ctx, fmt.Sprintf("train-%d", r.scene.made), s)
	r.must(err)
	if r.scene.job, r.scene.launcher = j, s.Launcher; s.Env != nil {
		r.scene.launcher = "" // no other test takes it over
	}
	return j
}

// steps waits until every rank has made ten more steps.
func (r *rig) steps(j *demo.Job, within time.Duration) error {
	most := int64(0)
	for rank := range demo.WorldSize {
		if l, err := demo.ReadLog(j.Dir, rank); err == nil && len(l) > 0 {
			most = max(most, l[len(l)-1].Step)
		}
	}
	return r.Reached(r.ctx, j, most+10, within)
}

// repair mends everything but the far node, which stays cordoned. It waits for incidents under way to end first.
func (r *rig) repair() {
	r.Helper()
	for _, n := range r.Box().Nodes() {
		r.must(r.Box().Repair(r.ctx, n.Name))
		if n.Name != far {
			r.must(r.Uncordon(r.ctx, n.Name))
		}
	}
	r.measuredWell()
}

// measuredWell waits until each agent has seen that its GPUs are whole again: on a busy machine the next fault could come before. What
// only a reboot clears is not waited for.
func (r *rig) measuredWell() {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, 15*time.Second)
	defer cancel()
	var mu sync.Mutex
	ill := map[string]bool{}
	current, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- r.Bus().Conditions(ctx, current, func(c bus.Condition) {
			mu.Lock()
			defer mu.Unlock()
			n := slices.IndexFunc(r.Box().Nodes(), func(n *sandbox.Node) bool { return n.Name == c.Node })
			if n < 0 || !strings.HasPrefix(c.Key, "gpu/row-remap") && !strings.HasPrefix(c.Key, "gpu/lost") || c.BootID != r.Box().Nodes()[n].BootID() {
				return
			}
			if ill[c.Node+" "+c.Key] = c.Active; !c.Active {
				delete(ill, c.Node+" "+c.Key)
			}
		})
	}()
	select {
	case <-current:
	case <-ctx.Done():
	}
	for well := false; !well && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		mu.Lock()
		well = len(ill) == 0
		mu.Unlock()
	}
	cancel()
	r.must(<-ended)
	if len(ill) > 0 {
		r.Logf("still said after the repair: %v", slices.Sorted(maps.Keys(ill)))
	}
}

func cordon(s *demo.Stage, node string, on bool) error {
	nodes := s.Box().Client().CoreV1().Nodes()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		n, err := nodes.Get(context.Background(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.Spec.Unschedulable = on
		_, err = nodes.Update(context.Background(), n, metav1.UpdateOptions{})
		return err
	})
}

// pods are the job's living pods by index.
func (r *rig) pods(j *demo.Job) map[string]*corev1.Pod {
	r.Helper()
	list, err := r.Box().Client().CoreV1().Pods(demo.Namespace).List(r.ctx, metav1.ListOptions{})
	r.must(err)
	out := map[string]*corev1.Pod{}
	for k, p := range list.Items {
		if strings.HasPrefix(p.Name, j.Name+"-") && p.DeletionTimestamp == nil {
			out[p.Annotations["batch.kubernetes.io/job-completion-index"]] = &list.Items[k]
		}
	}
	return out
}

// spares are the rack's nodes without a pod of the job.
func (r *rig) spares(j *demo.Job) []string {
	r.Helper()
	var out []string
	taken := map[string]bool{far: true}
	for _, p := range r.pods(j) {
		taken[p.Spec.NodeName] = true
	}
	for _, n := range r.Box().Nodes() {
		if !taken[n.Name] {
			out = append(out, n.Name)
		}
	}
	return out
}

// before is how things stood when a test began to do harm.
type before struct {
	at      time.Time
	attempt int
	lines   [demo.WorldSize]int // of each rank's log
	pods    map[string]*corev1.Pod
}

func (r *rig) before(j *demo.Job) before {
	r.Helper()
	b := before{at: time.Now(), attempt: r.attempt(j), pods: r.pods(j)}
	for rank := range demo.WorldSize {
		l, err := demo.ReadLog(j.Dir, rank)
		r.must(err)
		b.lines[rank] = len(l)
	}
	return b
}

func (r *rig) attempt(j *demo.Job) int {
	r.Helper()
	a, _, err := r.Bus().Attempts().Get(r.ctx, j.UID)
	if errors.Is(err, bus.ErrNotFound) {
		return 0
	}
	r.must(err)
	return a.Attempt
}

func (r *rig) fault(kind sandbox.FaultKind, rank int) sandbox.Injected {
	r.Helper()
	in, err := r.Box().Fault(r.ctx, sandbox.Fault{Kind: kind, Rank: rank})
	r.must(err)
	return in
}

// follow is the incident of a fault, at its end.
func (r *rig) follow(j *demo.Job, in sandbox.Injected) incident.Incident {
	r.Helper()
	i, err := r.Follow(r.ctx, j, in, func(l string) { r.Log(l) })
	r.must(err)
	return i
}

// opened are the incidents opened since a moment.
func (r *rig) opened(since time.Time) []incident.Incident {
	r.Helper()
	all, err := r.Incidents().List(r.ctx)
	r.must(err)
	var out []incident.Incident
	for _, c := range all {
		if c.Value.Opened.After(since) {
			out = append(out, c.Value)
		}
	}
	return out
}

// reaches waits until the job's incident has done a step, and returns it as it then stood.
func (r *rig) reaches(j *demo.Job, since time.Time, ok func(incident.Incident) bool) incident.Incident {
	r.Helper()
	return r.whenReached(j, since, ok)()
}

func did(s incident.State) func(incident.Incident) bool {
	return func(i incident.Incident) bool {
		return slices.ContainsFunc(i.Notes, func(n incident.Note) bool { return n.State == s && n.TookS > 0 })
	}
}

// whenReached begins to watch for the job's incident to come so far; the function returned waits for it.
func (r *rig) whenReached(j *demo.Job, since time.Time, ok func(incident.Incident) bool) func() incident.Incident {
	found := make(chan incident.Incident, 1)
	wait := r.when(func(ctx context.Context, done func()) error {
		return r.Incidents().Watch(ctx, nil, func(c bus.Change[incident.Incident]) {
			if i := c.Value; i.Job != nil && i.Job.UID == j.UID && i.Opened.After(since) && ok(i) {
				select {
				case found <- i:
				default:
				}
				done()
			}
		})
	})
	return func() incident.Incident {
		r.Helper()
		wait()
		return <-found
	}
}

// revive waits for the remediator's death and starts it again.
func (r *rig) revive() {
	r.Helper()
	r.awaitDeath()
	r.must(r.Box().RestartProcess("", "remediator", nil))
}

func (r *rig) awaitDeath() {
	r.Helper()
	dead := make(chan struct{})
	go func() {
		_, _ = r.Box().WaitProcess("", "remediator")
		close(dead)
	}()
	select {
	case <-dead:
	case <-time.After(time.Minute):
		r.Fatal("the remediator did not die within a minute")
	}
}

// crashAfter has the remediator killed after its next step to a state.
func (r *rig) crashAfter(s incident.State) {
	r.Helper()
	r.must(os.WriteFile(r.scene.crash, []byte(s), 0o600))
	r.Cleanup(func() { _ = os.Remove(r.scene.crash) })
}

func (r *rig) kill9(node, process string) {
	r.Helper()
	r.must(r.Box().SignalProcess(node, process, syscall.SIGKILL))
	_, err := r.Box().WaitProcess(node, process)
	r.must(err)
}

func (r *rig) checkpoints(j *demo.Job) string {
	return filepath.Join(r.Box().Checkpoints(), demo.Namespace+"-"+j.Name)
}

// awaitLine waits for a line in the remediator's log that contains every word, and fails without one.
func (r *rig) awaitLine(words ...string) {
	r.Helper()
	file := filepath.Join(r.Box().Logs(), "remediator.log")
	for end := time.Now().Add(15 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		raw, err := os.ReadFile(file)
		r.must(err)
		for _, l := range strings.Split(string(raw), "\n") {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(l, w) }) {
				return
			}
		}
		if time.Now().After(end) {
			r.Fatalf("no line with %q in %s", words, file)
		}
	}
}
