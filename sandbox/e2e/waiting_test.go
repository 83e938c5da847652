package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/demo"
)

// With its rack full the job stays where it is and trains on; the free node of another rack is not equivalent.
func TestWithoutAnEquivalentNodeNothingIsKilledAndTheIncidentWaits(t *testing.T) {
	r := newRig(t)
	j := r.training(sandbox.LauncherPitcrew)
	spares := r.fill(j)
	b := r.before(j)
	in := r.fault(sandbox.ECCDegrading, 1)
	r.waitsAndTrains(j, b)
	r.goesOn(j, b, in, spares[0])
}

// The ranks have been saved and hold when the last free node is taken away: they are let go, and saved again when there is one.
func TestRanksThatHoldAreLetGoWhenTheNodeTheyWereToGoToIsTaken(t *testing.T) {
	r := newRig(t)
	j := r.training(sandbox.LauncherPitcrew)
	b := r.before(j)
	r.crashAfter(incident.Checkpointed)
	in := r.fault(sandbox.ECCDegrading, 1)
	r.awaitDeath()
	spares := r.fill(j)
	r.must(r.Box().RestartProcess("", "remediator", nil))
	r.waitsAndTrains(j, b)
	r.goesOn(j, b, in, spares[0])
}

// fill takes every equivalent node away, and leaves a free one in another rack. It returns those taken.
func (r *rig) fill(j *demo.Job) []string {
	r.Helper()
	spares := r.spares(j)
	for _, n := range spares {
		r.must(cordon(r.Stage, n, true))
	}
	r.must(cordon(r.Stage, far, false))
	r.Cleanup(func() { r.must(cordon(r.Stage, far, true)) })
	return spares
}

func (r *rig) waitsAndTrains(j *demo.Job, b before) {
	r.Helper()
	i := r.reaches(j, b.at, func(i incident.Incident) bool { return strings.Contains(i.Waiting, "no equivalent node") })
	r.must(r.steps(j, 30*time.Second))
	for rank := range demo.WorldSize {
		if err := unbroken(j.Dir, rank, b.lines[rank]); err != nil {
			r.Error(err)
		}
	}
	now := r.pods(j)
	for index, p := range b.pods {
		if now[index] == nil || now[index].UID != p.UID {
			r.Errorf("pod %s of index %s is not there any more", p.Name, index)
		}
	}
	r.removedOnce(j, b, 0)
	if is := r.opened(b.at); len(is) != 1 || !is[0].Open() || is[0].ID != i.ID {
		r.Errorf("not one waiting incident: %s", summary(is))
	}
}

// goesOn checks that the incident heals the job as soon as a node is free, without anybody telling it.
func (r *rig) goesOn(j *demo.Job, b before, in sandbox.Injected, free string) {
	r.Helper()
	r.must(cordon(r.Stage, free, false))
	i := r.follow(j, in)
	r.healed(j, b, i)
	r.lostNothing(i)
	if i.Moves[0].To != free {
		r.Errorf("moved to %s, the node that became free is %s", i.Moves[0].To, free)
	}
}
