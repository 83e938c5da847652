package e2e

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/demo"
)

var everyStep = []incident.State{
	incident.Correlated, incident.Planned, incident.Approved, incident.Cordoned, incident.Checkpointed, incident.Placed, incident.Restarted,
	incident.Resumed, incident.Verified, incident.Closed,
}

// The remediator dies after doing a step and before recording it: the moment at which the record says less than is true.
func TestAnIncidentCompletesThoughTheRemediatorDiesAfterAnyStep(t *testing.T) {
	for _, c := range []struct {
		launcher string
		steps    []incident.State
		rank     int
	}{
		{sandbox.LauncherPitcrew, everyStep, 1},
		{sandbox.LauncherTorchrun, everyStep, 0},
	} {
		for k, step := range c.steps {
			t.Run(c.launcher+"/"+string(step), func(t *testing.T) {
				r := newRig(t)
				j := r.training(c.launcher)
				b := r.before(j)
				r.crashAfter(step)
				in := r.fault(sandbox.ECCDegrading, (c.rank+k)%demo.WorldSize)
				r.revive()
				i := r.follow(j, in)
				r.healed(j, b, i)
				if *i.LostSteps != 0 {
					t.Errorf("%d steps were lost though every rank could be saved", *i.LostSteps)
				}
			})
		}
	}
}

// It dies in the middle of the step that moves a pod: between the fence and the eviction, and after the eviction.
func TestAnIncidentCompletesThoughTheRemediatorDiesWhileItMovesAPod(t *testing.T) {
	t.Run("after the attempt is fenced", func(t *testing.T) {
		r := newRig(t)
		j := r.training(sandbox.LauncherPitcrew)
		b := r.before(j)
		fenced := r.when(func(ctx context.Context, done func()) error {
			return r.Bus().Attempts().Watch(ctx, nil, func(c bus.Change[bus.Attempt]) {
				if c.Key == j.UID && c.Value.Attempt > b.attempt {
					done()
				}
			})
		})
		in := r.fault(sandbox.XID79, 0)
		fenced()
		r.kill9("", "remediator")
		r.revive()
		r.healed(j, b, r.follow(j, in))
	})
	for _, launcher := range []string{sandbox.LauncherPitcrew, sandbox.LauncherTorchrun} {
		t.Run("after an eviction/"+launcher, func(t *testing.T) {
			r := newRig(t)
			j := r.training(launcher)
			b := r.before(j)
			from := r.audited()
			evicted := r.when(func(ctx context.Context, done func()) error {
				for ; ctx.Err() == nil; time.Sleep(2 * time.Millisecond) {
					for _, l := range strings.Split(r.auditSince(from), "\n") {
						if strings.Contains(l, `"stage":"done","verb":"evict"`) && !strings.Contains(l, `"dry_run":true`) {
							done()
						}
					}
				}
				return nil
			})
			in := r.fault(sandbox.XID79, 1)
			evicted()
			r.kill9("", "remediator")
			r.revive()
			r.healed(j, b, r.follow(j, in))
		})
	}
}

// when runs a watch in the background; the function returned waits until it says done.
func (r *rig) when(watch func(ctx context.Context, done func()) error) func() {
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	ended := make(chan error, 1)
	seen := false
	go func() { ended <- watch(ctx, func() { seen = true; cancel() }) }()
	return func() {
		r.Helper()
		if err := <-ended; !seen {
			r.Fatalf("it did not happen within a minute: %v", err)
		}
		cancel()
	}
}

// audited is how long the remediator's own record of its writes is, auditSince what came after.
func (r *rig) audited() int {
	r.Helper()
	st, err := os.Stat(r.RemediatorAudit())
	if os.IsNotExist(err) {
		return 0
	}
	r.must(err)
	return int(st.Size())
}

func (r *rig) auditSince(from int) string {
	raw, err := os.ReadFile(r.RemediatorAudit())
	if err != nil || len(raw) < from {
		return ""
	}
	return string(raw[from:])
}
