package ranks

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/sandbox"
)

// One job lives through all of it, in this order, so that the job's own doings and the ends of earlier faults are part of each test.
func TestTheRankThatFellBehindIsNamedAndNobodyForWhatAJobDoesByItself(t *testing.T) {
	r := newRig(t, 0, observing)
	r.submit()
	r.step(1, 2*time.Minute)
	began := time.Now()
	r.step(settled, 2*time.Minute)
	if found := r.findings(began); len(found) > 0 {
		t.Errorf("a warm-up, checkpoints, evaluations and a change of schedule made findings:%s", r.all(began))
	}
	t.Logf("quiet for %v", time.Since(began).Round(time.Second))

	for _, c := range []struct {
		fault         sandbox.FaultKind
		rank          int
		signal        string        // in the evidence
		node          string        // what the rank's own agent says of it by itself; it has to have learnt for a while by then
		within, heals time.Duration // the spike of 15 s ends by itself, and is not waited for
	}{
		{sandbox.SlowRank, 1, "", "", 10 * time.Second, 15 * time.Second},
		{sandbox.ThermalThrottle, 3, "", "anomaly/thermal-throttle", 25 * time.Second, 20 * time.Second},
		{sandbox.LaunchSpike, 2, "pitcrew.train.launch.latency", "anomaly/launch-latency", 10 * time.Second, 0},
	} {
		t.Run(string(c.fault), func(t *testing.T) {
			r.T = t
			in, err := r.Box().Fault(r.ctx, sandbox.Fault{Kind: c.fault, Rank: c.rank})
			if err != nil {
				t.Fatal(err)
			}
			e := r.wait(in.At, event.Anomaly, "rank/straggler", c.within)
			d := e.Data
			t.Logf("named after %v, onset %v after the fault: %s", e.Time.Sub(in.At).Round(10*time.Millisecond), d.Onset.Sub(in.At).Round(10*time.Millisecond), d.Evidence.Raw)
			if d.Target.Rank == nil || *d.Target.Rank != c.rank || d.Target.Node != in.Node || d.Target.Job == nil || d.Target.Job.UID != r.job.UID {
				t.Errorf("culprit %+v, want rank %d on %s", d.Target, c.rank, in.Node)
			}
			if ev := d.Evidence; !strings.HasPrefix(ev.Baseline, "peers(3)") || ev.Ratio == nil || *ev.Ratio < 1.05 || ev.PromQL == "" || len(ev.Samples) == 0 {
				t.Errorf("evidence %+v", ev)
			}
			if c.signal != "" && d.Evidence.Signal != c.signal {
				t.Errorf("shown by %s, want %s", d.Evidence.Signal, c.signal)
			}
			if c.node != "" {
				e := r.wait(in.At, event.Anomaly, c.node, c.within)
				t.Logf("%s %s after %v: %s", e.Data.Severity, c.node, e.Time.Sub(in.At).Round(10*time.Millisecond), e.Data.Evidence.Raw)
				if d := e.Data; d.Target.Rank == nil || *d.Target.Rank != c.rank || d.Target.Node != in.Node || !d.Severity.AtLeast(event.Warning) {
					t.Errorf("the node's finding %+v, want a warning of rank %d on %s", d, c.rank, in.Node)
				}
			}
			if c.heals > 0 {
				if err := r.Box().Repair(r.ctx, in.Node); err != nil {
					t.Fatal(err)
				}
				end := r.wait(in.At, event.Recovery, "rank/straggler", c.heals)
				t.Logf("over after %v: %s", end.Time.Sub(in.At).Round(10*time.Millisecond), end.Data.Evidence.Raw)
				if end.Data.Evidence.LostGPUSeconds <= 0 {
					t.Errorf("it cost nothing: %+v", end.Data.Evidence)
				}
			}
			others := slices.DeleteFunc(r.findings(in.At), func(e event.Event) bool {
				return e.Data.Target.Node == in.Node
			})
			if len(others) > 0 {
				t.Errorf("others are named too:%s", r.all(in.At))
			}
		})
	}
	r.T = t
	all, err := r.Incidents().List(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		i := c.Value
		t.Logf("incident %s %s: faults %d, joined %d, %s", i.ID, i.State, len(i.Faults), len(i.Joined), i.Outcome)
		if len(i.Cordons) > 0 || i.Restarts > 0 {
			t.Errorf("a slow rank was acted on: %+v", i)
		}
	}
}
