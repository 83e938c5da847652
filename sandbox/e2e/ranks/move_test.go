package ranks

import (
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/policy"
	"github.com/pitcrew/pitcrew/sandbox"
)

// awaitIncident waits until the job's newest incident is as wanted.
func (r *rig) awaitIncident(within time.Duration, what string, want func(incident.Incident) bool) incident.Incident {
	r.Helper()
	var last incident.Incident
	for end := time.Now().Add(within); ; time.Sleep(200 * time.Millisecond) {
		all, err := r.Incidents().List(r.ctx)
		if err != nil {
			r.Fatal(err)
		}
		for _, c := range all {
			if c.Value.Opened.After(last.Opened) || c.Value.ID == last.ID {
				last = c.Value
			}
		}
		if last.ID != "" && want(last) {
			return last
		}
		if time.Now().After(end) {
			r.Fatalf("no incident is %s after %v; the newest is %s %s %s, waits: %s", what, within, last.ID, last.State, last.Outcome, last.Waiting)
		}
	}
}

// A real rank is slowed by its device, and its node's DCGM says why: the job is saved, moved, and as fast as before.
func TestASlowRankThatItsNodeConfirmsIsMovedAndLosesNoStep(t *testing.T) {
	r := newRig(t, 1, policy.Enforce)
	r.step(settled, 4*time.Minute)
	in, err := r.Box().Fault(r.ctx, sandbox.Fault{Kind: sandbox.ThermalThrottle, Rank: 2})
	if err != nil {
		t.Fatal(err)
	}
	i := r.awaitIncident(2*time.Minute, "closed", func(i incident.Incident) bool { return !i.Open() && i.Opened.After(in.At) })
	for _, n := range i.Notes {
		t.Logf("%s %s %s", n.At.Sub(in.At).Round(10*time.Millisecond), n.State, n.Text)
	}
	for _, v := range i.Guards {
		t.Log(v)
	}
	if i.Outcome != incident.Recovered || len(i.Cordons) != 1 || i.Cordons[0] != in.Node || i.LostSteps == nil || *i.LostSteps != 0 {
		t.Fatalf("%s (%s), cordons %v, lost %v", i.Outcome, i.Reason, i.Cordons, i.LostSteps)
	}
	if i.Pace == nil || i.Pace.After == 0 || i.Pace.After >= i.Pace.Before {
		t.Errorf("pace %+v", i.Pace)
	}
	asked := map[guard.Name]bool{}
	for _, v := range i.Guards {
		asked[v.Guard] = v.Asked && v.Allowed && (v.Guard == guard.OneCulprit || v.Current != "")
	}
	for _, g := range []guard.Name{guard.Lasts, guard.SecondSign, guard.OneCulprit, guard.WorthIt, guard.Fresh} {
		if !asked[g] {
			t.Errorf("the record has no value of guard %s", g)
		}
	}
}
