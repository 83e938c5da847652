package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/demo"
)

// command is how a process was started, and its id.
func (r *rig) command(name string) ([]string, int) {
	r.Helper()
	all := r.Box().Processes()
	k := slices.IndexFunc(all, func(p sandbox.Process) bool { return p.Node == "" && p.Name == name })
	if k < 0 {
		r.Fatalf("no process %s", name)
	}
	raw, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(all[k].PID), "cmdline"))
	r.must(err)
	return strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00"), all[k].PID
}

// leads waits until a process holds the lease.
func (r *rig) leads(pid int) {
	r.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		l, err := r.Box().Client().CoordinationV1().Leases(demo.SystemNamespace).Get(r.ctx, "pitcrew-remediator", metav1.GetOptions{})
		if err == nil && l.Spec.HolderIdentity != nil && strings.Contains(*l.Spec.HolderIdentity, fmt.Sprintf("/%d/", pid)) {
			return
		}
		if time.Now().After(end) {
			r.Fatalf("process %d does not lead: %v", pid, err)
		}
	}
}

// The ranks have saved together and hold; whoever made them is dead before that is recorded.
func TestAStandbyGoesOnAfterASaveWhereADeadLeaderWas(t *testing.T) {
	const lease = 2 * time.Second
	r := newRig(t)
	j := r.training(sandbox.LauncherPitcrew)
	alone, _ := r.command("remediator")
	elected := append(slices.Clone(alone), "--elect", lease.String())
	r.must(r.Box().RestartProcess("", "remediator", elected))
	t.Cleanup(func() {
		r.must(r.Box().StopProcess("", "standby"))
		r.must(r.Box().RestartProcess("", "remediator", alone))
	})
	_, first := r.command("remediator")
	r.leads(first)
	r.must(r.Box().StartProcess("", "standby", append(elected, "--metrics", ""), nil))
	b := r.before(j)
	r.crashAfter(incident.Checkpointed)
	in := r.fault(sandbox.ECCDegrading, 1)
	r.awaitDeath()
	died := time.Now()
	i := r.follow(j, in)
	_, second := r.command("standby")
	r.leads(second)
	r.healed(j, b, i)
	if !i.Checkpoint.Taken || *i.LostSteps != 0 {
		t.Errorf("checkpoint %+v, %d steps lost though every rank had saved", i.Checkpoint, *i.LostSteps)
	}
	if took, limit := i.ClosedAt.Sub(died), lease+lease/2+9*time.Second; took > limit { // the lease, a try, and what was left to do
		t.Errorf("it took %v after the death, not %v", took, limit)
	} else {
		t.Logf("recovered %v after the death", took.Round(10*time.Millisecond))
	}
}
