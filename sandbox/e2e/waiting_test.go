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
	spares := r.spares(j)
	for _, n := range spares {
		r.must(cordon(r.Stage, n, true))
	}
	r.must(cordon(r.Stage, far, false))
	t.Cleanup(func() { r.must(cordon(r.Stage, far, true)) })
	b := r.before(j)
	in := r.fault(sandbox.ECCDegrading, 1)
	i := r.reaches(j, b.at, func(i incident.Incident) bool { return i.Waiting != "" })
	if !strings.Contains(i.Waiting, "no equivalent node") {
		t.Errorf("the incident waits for: %s", i.Waiting)
	}
	r.must(r.steps(j, 30*time.Second)) // released from the round that had been begun
	for rank := range demo.WorldSize {
		if err := unbroken(j.Dir, rank, b.lines[rank]); err != nil {
			t.Error(err)
		}
	}
	now := r.pods(j)
	for index, p := range b.pods {
		if now[index] == nil || now[index].UID != p.UID {
			t.Errorf("pod %s of index %s is not there any more", p.Name, index)
		}
	}
	r.removedOnce(j, b, 0)
	if is := r.opened(b.at); len(is) != 1 || !is[0].Open() {
		t.Errorf("not one waiting incident: %s", summary(is))
	}

	r.must(cordon(r.Stage, spares[0], false))
	i = r.follow(j, in)
	r.healed(j, b, i)
	r.lostNothing(i)
	if i.Moves[0].To != spares[0] {
		t.Errorf("moved to %s, the node that became free is %s", i.Moves[0].To, spares[0])
	}
}
