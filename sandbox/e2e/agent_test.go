package e2e

import (
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/demo"
)

// An agent that is replaced is silent for longer than a lost node needs to be found lost, which its kubelet and the steps of the
// job's other ranks deny.
func TestAnAgentUpgradedWhileTrainingIsNoIncidentAndLosesNoStep(t *testing.T) {
	r := newRig(t)
	j := r.training(sandbox.LauncherPitcrew)
	b := r.before(j)
	for _, p := range r.pods(j) {
		node := p.Spec.NodeName
		r.kill9(node, "agent")
		time.Sleep(3 * time.Second) // the silence that is looked for is 1.5 s
		r.must(r.Box().RestartProcess(node, "agent", nil))
	}
	r.must(r.steps(j, 20*time.Second))
	if is := r.opened(b.at); len(is) > 0 {
		t.Errorf("incidents were opened: %s", summary(is))
	}
	for rank := range demo.WorldSize {
		if err := unbroken(j.Dir, rank, b.lines[rank]); err != nil {
			t.Error(err)
		}
	}
	r.removedOnce(j, b, 0)
	if n := r.attempt(j); n != b.attempt {
		t.Errorf("attempt %d became %d", b.attempt, n)
	}
	// The new agents have taken the ranks over: a fault now is healed with a checkpoint of now.
	b = r.before(j)
	i := r.follow(j, r.fault(sandbox.ECCDegrading, 0))
	r.healed(j, b, i)
	r.lostNothing(i)
}

func (r *rig) lostNothing(i incident.Incident) {
	r.Helper()
	if *i.LostSteps != 0 {
		why := ""
		if i.Checkpoint != nil {
			why = i.Checkpoint.Why
		}
		r.Errorf("%d steps were lost though every rank could be saved: %s", *i.LostSteps, why)
	}
}

// The agent goes at the moment at which the ranks are about to be saved through it.
func TestAnAgentUpgradedInTheMiddleOfAnIncidentLosesNoStep(t *testing.T) {
	for name, faulty := range map[string]bool{"of the faulty rank": true, "of the surviving rank": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			j := r.training(sandbox.LauncherPitcrew)
			b := r.before(j)
			cordoned := r.whenReached(j, b.at, did(incident.Cordoned))
			in := r.fault(sandbox.ECCDegrading, 1)
			var node string
			for _, p := range b.pods {
				if (p.Spec.NodeName == in.Node) == faulty {
					node = p.Spec.NodeName
				}
			}
			cordoned()
			r.kill9(node, "agent")
			time.Sleep(2 * time.Second) // longer than a question for the ranks' state may take
			r.must(r.Box().RestartProcess(node, "agent", nil))
			i := r.follow(j, in)
			r.healed(j, b, i)
			r.lostNothing(i)
		})
	}
}
