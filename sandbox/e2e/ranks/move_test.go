package ranks

import (
	"os"
	"testing"

	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/demo"
)

// Real ranks are slowed one after the other, and their nodes say why: each is saved, moved, and as fast as before.
func TestASlowRankThatItsNodeConfirmsIsMovedAndLosesNoStep(t *testing.T) {
	r := newRig(t, 1, demo.Relaxed) // only what counts moves over a day is relaxed: each fault has a job of its own
	faults := sandbox.SlowFaults
	if os.Getenv("PITCREW_TEST_FULL") == "" { // each takes most of a minute
		faults = []sandbox.FaultKind{sandbox.ThermalThrottle}
	}
	for k, fault := range faults {
		t.Run(string(fault), func(t *testing.T) {
			got, _ := r.Try(r.ctx, string(fault), demo.Scenario{Fault: fault, Rank: (k + 2) % world, Launcher: sandbox.LauncherPitcrew, Workload: demo.KindJob, Pods: world})
			if got.Slowed != nil {
				t.Logf("%+v, phases %+v", *got.Slowed, got.Phases)
			}
			if !got.OK || got.LostSteps != 0 || got.NewNode == got.FaultyNode || got.Placement != "equivalent" {
				t.Fatalf("%+v", got)
			}
			c, _, err := r.Incidents().Get(r.ctx, got.Incident)
			if err != nil {
				t.Fatal(err)
			}
			r.judged(t, c, got.FaultyNode)
		})
		if t.Failed() {
			return
		}
	}
}

// judged checks that the record names the node, the pace before and after, and the value of each guard of findings.
func (r *rig) judged(t *testing.T, i incident.Incident, node string) {
	t.Helper()
	if i.Outcome != incident.Recovered || len(i.Cordons) != 1 || i.Cordons[0] != node {
		t.Errorf("%s (%s), cordons %v", i.Outcome, i.Reason, i.Cordons)
	}
	if i.Pace == nil || i.Pace.After == 0 || i.Pace.After >= i.Pace.Before {
		t.Errorf("pace %+v", i.Pace)
	}
	asked := map[guard.Name]string{}
	for _, v := range i.Guards {
		if v.Asked && v.Allowed {
			asked[v.Guard] = v.Current
		}
	}
	for _, g := range []guard.Name{guard.Lasts, guard.SecondSign, guard.OneCulprit, guard.WorthIt, guard.Fresh} {
		if value, ok := asked[g]; !ok || value == "" && g != guard.OneCulprit {
			t.Errorf("the record has no value of guard %s", g)
		}
	}
	t.Logf("confirmed by %s, worth %s", asked[guard.SecondSign], asked[guard.WorthIt])
}
