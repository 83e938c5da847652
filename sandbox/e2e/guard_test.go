package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/demo"
)

// A person has taken the cordon away from a node whose GPU still waits for a reset: the job is not moved there.
func TestAJobIsNotMovedToANodeWhoseAgentSaysThatItIsIll(t *testing.T) {
	r := newRig(t)
	j := r.training(sandbox.LauncherPitcrew)
	ill := r.spares(j)[0] // by name the first: it would be taken
	begun := time.Now()
	_, err := r.Box().Fault(r.ctx, sandbox.Fault{Kind: sandbox.ECCDegrading, Node: ill, GPU: 3})
	r.must(err)
	r.awaitClosed(begun, incident.Quarantined)
	r.measuredIll(ill)
	r.must(r.Uncordon(r.ctx, ill))
	b := r.before(j)
	in := r.fault(sandbox.ECCDegrading, 1)
	i := r.follow(j, in)
	r.healed(j, b, i)
	said := false
	for _, c := range i.Moves[0].Decision.Candidates {
		said = said || c.Node == ill && c.Reason == "open-condition" && strings.Contains(c.Detail, "gpu/row-remap")
	}
	if i.Moves[0].To == ill || !said {
		t.Errorf("moved to %s, of the candidates %+v", i.Moves[0].To, i.Moves[0].Decision.Candidates)
	}
}

// measuredIll waits until the node's agent says by DCGM's values what the kernel log said first.
func (r *rig) measuredIll(node string) {
	r.Helper()
	r.when(func(ctx context.Context, done func()) error {
		return r.Bus().Conditions(ctx, nil, func(c bus.Condition) {
			if c.Node == node && c.Active && strings.HasPrefix(c.Key, "gpu/row-remap") {
				done()
			}
		})
	})()
}

// awaitClosed waits until an incident that was opened since has closed so.
func (r *rig) awaitClosed(since time.Time, o incident.Outcome) incident.Incident {
	r.Helper()
	found := make(chan incident.Incident, 1)
	r.when(func(ctx context.Context, done func()) error {
		return r.Incidents().Watch(ctx, nil, func(c bus.Change[incident.Incident]) {
			if i := c.Value; i.Opened.After(since) && i.Outcome == o {
				select {
				case found <- i:
				default:
				}
				done()
			}
		})
	})()
	return <-found
}

// What breaks under a hold or a kill switch is healed when that is lifted, and not before.
func TestAFaultThatAGuardHoldsBackIsHealedWhenItLetsGo(t *testing.T) {
	for name, hold := range map[string]func(*rig, *demo.Job, bool){"hold": (*rig).holdNode, "kill-switch": (*rig).pauses} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			j := r.training(sandbox.LauncherPitcrew)
			b := r.before(j)
			hold(r, j, true)
			t.Cleanup(func() { hold(r, j, false) })
			in := r.fault(sandbox.ECCDegrading, 1)
			r.reaches(j, b.at, func(i incident.Incident) bool { return strings.HasPrefix(i.Waiting, "guard "+name) })
			r.must(r.steps(j, 30*time.Second))
			r.removedOnce(j, b, 0)
			hold(r, j, false)
			i := r.follow(j, in)
			r.healed(j, b, i)
			r.lostNothing(i)
			if i.TakenUp.IsZero() || i.HeldAt.IsZero() {
				t.Errorf("it does not say that it was held back and taken up: %+v", i.Notes)
			}
		})
	}
}

// What is mended while it is held back is left alone for good.
func TestAFaultThatIsMendedUnderAHoldDisturbsNobody(t *testing.T) {
	r := newRig(t)
	j := r.training(sandbox.LauncherPitcrew)
	b := r.before(j)
	r.pauses(j, true)
	t.Cleanup(func() { r.pauses(j, false) })
	in := r.fault(sandbox.ECCDegrading, 1)
	r.reaches(j, b.at, func(i incident.Incident) bool { return strings.HasPrefix(i.Waiting, "guard kill-switch") })
	r.measuredIll(in.Node)
	r.must(r.Box().Repair(r.ctx, in.Node))
	r.measuredWell()
	r.pauses(j, false)
	r.awaitClosed(b.at, incident.Resolved)
	r.must(r.steps(j, 30*time.Second))
	r.removedOnce(j, b, 0)
}

// holdNode asks that nobody touches the node of rank 1.
func (r *rig) holdNode(j *demo.Job, on bool) {
	r.Helper()
	value, only := "null", ""
	if on {
		value, only = `"maintenance"`, r.pods(j)["1"].Spec.NodeName
	}
	for _, n := range r.Box().Nodes() {
		if on && n.Name != only {
			continue
		}
		_, err := r.Box().Client().CoreV1().Nodes().Patch(context.Background(), n.Name, types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, cluster.AnnotationHold, value), metav1.PatchOptions{})
		r.must(err)
	}
}

// pauses turns the kill switch.
func (r *rig) pauses(_ *demo.Job, on bool) {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, rev, err := r.Bus().Control().Get(ctx, bus.KillKey)
	if err != nil {
		rev = 0
	}
	_, err = r.Bus().Control().Put(ctx, bus.KillKey, bus.KillSwitch{On: on, By: "e2e", Since: time.Now()}, rev)
	r.must(err)
}

// A disruption budget that allows nothing: the ranks train on, no attempt is begun, and the incident says which budget it is.
func TestARefusalByADisruptionBudgetCostsTheJobNothing(t *testing.T) {
	for _, launcher := range []string{sandbox.LauncherPitcrew, sandbox.LauncherTorchrun} {
		t.Run(launcher, func(t *testing.T) {
			r := newRig(t)
			j := r.training(launcher)
			b := r.before(j)
			all := intstr.FromInt32(100)
			pdbs := r.Box().Client().PolicyV1().PodDisruptionBudgets(demo.Namespace)
			_, err := pdbs.Create(r.ctx, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "keep-" + j.Name}, Spec: policyv1.PodDisruptionBudgetSpec{
				MinAvailable: &all, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"batch.kubernetes.io/job-name": j.Name}}}}, metav1.CreateOptions{})
			r.must(err)
			remove := func() { _ = pdbs.Delete(context.Background(), "keep-"+j.Name, metav1.DeleteOptions{}) }
			t.Cleanup(remove)
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
				p, err := pdbs.Get(r.ctx, "keep-"+j.Name, metav1.GetOptions{})
				r.must(err)
				if p.Status.ObservedGeneration >= p.Generation && p.Status.ExpectedPods > 0 {
					break
				}
				if time.Now().After(end) {
					t.Fatal("the budget has no status")
				}
			}
			in := r.fault(sandbox.ECCDegrading, 1)
			r.reaches(j, b.at, func(i incident.Incident) bool {
				return strings.Contains(i.Waiting, "The disruption budget keep-"+j.Name)
			})
			r.must(r.steps(j, 30*time.Second))
			for rank := range demo.WorldSize {
				if err := unbroken(j.Dir, rank, b.lines[rank]); err != nil {
					t.Error(err)
				}
			}
			r.removedOnce(j, b, 0)
			if a := r.attempt(j); a != b.attempt {
				t.Errorf("attempt %d was begun", a)
			}
			remove()
			i := r.follow(j, in)
			r.healed(j, b, i)
			r.lostNothing(i)
		})
	}
}
