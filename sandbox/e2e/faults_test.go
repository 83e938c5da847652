package e2e

import (
	"testing"

	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/demo"
)

// One job of each kind takes all faults in turn, so that a fault costs its recovery and not also a job's start.
func TestEveryFaultHealsInBothKindsOfWorkloadUnderBothLaunchers(t *testing.T) {
	for _, workload := range []string{demo.KindJob, demo.KindJobSet} {
		for _, launcher := range []string{sandbox.LauncherPitcrew, sandbox.LauncherTorchrun} {
			t.Run(workload+" under "+launcher, func(t *testing.T) {
				r := newRig(t)
				if r.Trainer() != "torch" {
					t.Fatalf("the ranks would run %s: this test needs a Python with torch", r.Trainer())
				}
				for turn, fault := range sandbox.FaultKinds {
					j := r.trainingAs(workload, launcher)
					b := r.before(j)
					i := r.follow(j, r.fault(fault, turn%demo.WorldSize))
					restarts := 1
					if fault == sandbox.NodeLost {
						restarts = 2 // the peer's rank ends first: a restart on the same nodes may have begun before the node counts as lost
					}
					r.healedWithin(j, b, i, restarts)
					if fault == sandbox.ECCDegrading { // every rank is alive and can be saved
						r.lostNothing(i)
					}
					t.Logf("%s healed on the path %s", fault, i.Path)
				}
			})
		}
	}
}
