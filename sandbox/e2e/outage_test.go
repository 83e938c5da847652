package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/sandbox"
)

func TestABusThatIsKilledDuringAnIncidentDelaysItOnly(t *testing.T) {
	for _, when := range []incident.State{incident.Cordoned, incident.Placed} {
		t.Run("after "+string(when), func(t *testing.T) {
			r := newRig(t)
			j := r.training(sandbox.LauncherPitcrew)
			b := r.before(j)
			reached := r.whenReached(j, b.at, did(when))
			in := r.fault(sandbox.XID79, 1)
			reached()
			r.kill9("", "bus")
			time.Sleep(time.Second)
			r.must(r.Box().RestartProcess("", "bus", nil))
			r.must(r.Bus().Wait(r.ctx))
			r.healed(j, b, r.follow(j, in))
		})
	}
}

func TestAnAPIServerThatIsAwayDuringAnIncidentDelaysItOnly(t *testing.T) {
	t.Run("when the fault comes", func(t *testing.T) {
		r := newRig(t)
		j := r.training(sandbox.LauncherPitcrew)
		b := r.before(j)
		r.freeze("kube-apiserver", 3*time.Second)
		in := r.fault(sandbox.ECCDegrading, 1)
		i := r.follow(j, in)
		r.healed(j, b, i)
		r.lostNothing(i)
	})
	t.Run("while a pod is moved", func(t *testing.T) {
		r := newRig(t)
		j := r.training(sandbox.LauncherPitcrew)
		b := r.before(j)
		reached := r.whenReached(j, b.at, did(incident.Placed))
		in := r.fault(sandbox.ECCDegrading, 0)
		reached()
		r.freeze("kube-apiserver", 3*time.Second)
		i := r.follow(j, in)
		r.healed(j, b, i)
		r.lostNothing(i)
	})
}

// freeze stops a process of the control plane for a while, without anybody's connection being closed.
func (r *rig) freeze(component string, d time.Duration) {
	r.Helper()
	id, err := os.ReadFile(filepath.Join(r.Box().Dir(), "id"))
	r.must(err)
	marks := [][]byte{[]byte("PITCREW_SANDBOX=" + strings.TrimSpace(string(id))), []byte("PITCREW_SANDBOX_UNIT=cluster/" + component + "/")}
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	r.must(err)
	for _, f := range all {
		env, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(env, marks[0]) || !bytes.Contains(env, marks[1]) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		r.must(err)
		r.must(syscall.Kill(pid, syscall.SIGSTOP))
		time.AfterFunc(d, func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
		return
	}
	r.Fatalf("no process of %s", component)
}
