package ranks

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/policy"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/demo"
)

const world = 4

// The job: steps of 100 ms, a slow start, a checkpoint each 30 steps, an evaluation each 40, and half as much work again from step 60.
const (
	scheduleStep = 60
	settled      = 120 // everything that a job does by itself has happened
)

var trainer = map[string]string{
	"STEP_SECONDS": "0.1", "WARMUP_STEPS": "8", "CKPT_EVERY": "30", "EVAL_EVERY": "40", "EVAL_SECONDS": "0.5", "SCHEDULE": fmt.Sprintf("%d:1.5", scheduleStep),
}

// rig is the running stage, its job, and what was said on the bus.
type rig struct {
	*testing.T
	*demo.Stage
	ctx context.Context
	job *demo.Job

	mu   sync.Mutex
	said []event.Event
}

// newRig starts the stage with spare nodes, and the policies as change leaves the shipped ones.
func newRig(t *testing.T, spares int, change func([]policy.Policy) []policy.Policy) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	t.Cleanup(cancel)
	root, err := sandbox.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	bin := os.Getenv("PITCREW_BIN")
	if bin == "" {
		bin = filepath.Join(root, "bin")
	}
	var nodes []sandbox.NodeSpec
	for i := range world + spares {
		nodes = append(nodes, sandbox.NodeSpec{Name: fmt.Sprint("a", i+1), Rack: "rack-a", Spine: "spine-1", Zone: "zone-1", GPUCount: 8})
	}
	s, err := demo.SetUp(ctx, demo.StageOptions{Nodes: nodes, Progress: os.Stderr, Bin: bin, Gateway: true, Auth: true, Policies: change})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			keepLogs(s)
		}
		s.Close()
	})
	r := &rig{T: t, Stage: s, ctx: ctx}
	go r.listen()
	return r
}

// submit starts the job of the rig.
func (r *rig) submit() {
	r.Helper()
	var err error
	r.job, err = r.Submit(r.ctx, "ranks", demo.Scenario{Launcher: sandbox.LauncherPitcrew, Workload: demo.KindJob, Pods: world, Env: trainer})
	if err != nil {
		r.Fatal(err)
	}
}

func observing(ps []policy.Policy) []policy.Policy { return policy.WithMode(ps, policy.Observe) }

func (r *rig) listen() {
	_ = r.Bus().Events(r.ctx, "", func(_ context.Context, d bus.Delivery) error {
		if d.Event.Type == event.Incident {
			return nil
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.said = append(r.said, d.Event)
		return nil
	}, func(subject string, err error) { r.Errorf("refused on %s: %v", subject, err) })
}

// step waits until each rank has made a step.
func (r *rig) step(n int64, within time.Duration) {
	r.Helper()
	for end := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		least := int64(1 << 62)
		for rank := range world {
			if l, err := demo.ReadLog(r.job.Dir, rank); err != nil || len(l) == 0 {
				least = 0
			} else {
				least = min(least, l[len(l)-1].Step)
			}
		}
		if least >= n {
			return
		}
		if time.Now().After(end) {
			r.Fatalf("a rank is at step %d after %v, not at %d; logs in %s", least, within, n, r.Box().Logs())
		}
	}
}

// findings are what was said since a moment that is more than information, without ends.
func (r *rig) findings(since time.Time) (out []event.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.said {
		if e.Type != event.Recovery && e.Data.Severity != event.Info && !e.Time.Before(since) {
			out = append(out, e)
		}
	}
	return out
}

// wait is the first event of a signal since a moment.
func (r *rig) wait(since time.Time, typ event.Type, signal string, within time.Duration) event.Event {
	r.Helper()
	for end := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		r.mu.Lock()
		i := slices.IndexFunc(r.said, func(e event.Event) bool {
			return e.Type == typ && e.Data.Cause.Signal() == signal && !e.Time.Before(since)
		})
		if i >= 0 {
			e := r.said[i]
			r.mu.Unlock()
			return e
		}
		r.mu.Unlock()
		if time.Now().After(end) {
			r.Fatalf("no %s of %s within %v; said %s", typ.Kind(), signal, within, r.all(since))
		}
	}
}

func (r *rig) all(since time.Time) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, e := range r.said {
		if !e.Time.Before(since) {
			fmt.Fprintf(&b, "\n  %s %s %s %s: %s", e.Time.Format("05.000"), e.Type.Kind(), e.Data.Severity, e.Data.Cause.Signal(), e.Data.Evidence.Raw)
		}
	}
	return b.String()
}

// keepLogs copies the logs to where they outlive the sandbox.
func keepLogs(s *demo.Stage) {
	dir, err := os.MkdirTemp("", "pitcrew-ranks-logs-")
	if err == nil {
		err = os.CopyFS(dir, os.DirFS(s.Box().Logs()))
	}
	fmt.Fprintln(os.Stderr, "logs of the failed run:", dir, err)
}
