package page

import (
	"fmt"
	"math"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/placement"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// drift is a statistical finding with its samples.
func drift(id string) incident.Incident {
	i := asking(id)
	i.Opened, i.State, i.Outcome, i.Reason = began.Add(-20*time.Minute), incident.Closed, incident.Observed, "policy anomalies only observes"
	i.ClosedAt, i.StateAt, i.Waiting, i.Wait, i.Notes = i.Opened.Add(time.Second), i.Opened.Add(time.Second), "", nil, i.Notes[:1]
	i.Notes[0].At = i.Opened
	i.Plan.Mode, i.Plan.NeedsApproval, i.Plan.Policy, i.Plan.Rule = policy.Observe, false, "anomalies", "slow-rank"
	f := &i.Faults[0]
	f.Signal, f.Sev, f.Node, f.At = "anomaly/step-time", event.Warning, "b1", i.Opened.Add(-time.Minute)
	value, expected, lower, upper := 0.71, 0.42, 0.38, 0.5
	ev := event.Evidence{Signal: "pitcrew.train.step.duration", Unit: "s", Value: &value, Expected: &expected, Lower: &lower, Upper: &upper, WindowS: 60, Baseline: "peers(7)"}
	for k := range 24 {
		v := 0.42 + 0.03*math.Sin(float64(k))
		if k > 11 {
			v += 0.25
		}
		ev.Samples = append(ev.Samples, event.Sample{S: float64(k-12) * 5, V: v})
	}
	f.Event = event.Event{Type: event.Anomaly, Time: f.At, Data: event.Data{Cause: event.Cause{Kind: "anomaly", Name: "step-time"}, Severity: event.Warning, Evidence: ev}}
	return i
}

// stage fills a page with what the browser looks for.
func stage(w *world) {
	w.put(asking("inc-asks"))
	keys := asking("inc-keys")
	keys.Opened, keys.Faults[0].Node = keys.Opened.Add(-time.Hour), "a1"
	w.put(keys)
	open := asking("inc-open")
	open.State, open.Plan.NeedsApproval, open.Cordons, open.Faults[0].Node = incident.Checkpointed, false, []string{"a3"}, "a3"
	open.Waiting, open.Wait = "no equivalent node is free", &incident.Wait{Reason: incident.ReasonNode, Since: began.Add(4 * time.Second), Reported: began.Add(5 * time.Second)}
	open.Notes = append(open.Notes, incident.Note{At: began.Add(4 * time.Second), State: incident.Checkpointed, TookS: 1, Text: "step 30 saved by all ranks"})
	w.put(open)
	done := healed("inc-healed")
	done.Opened = done.Opened.Add(-10 * time.Second)
	for k, c := range []placement.Candidate{{Node: "a2", Reason: "faulty", Detail: "it is the node to be replaced"}, {Node: "a1", Reason: "holds-peer", Detail: "it holds another member of the gang"}} {
		_ = k
		done.Moves[0].Decision.Candidates = append(done.Moves[0].Decision.Candidates, c)
	}
	w.put(done)
	w.put(drift("inc-drift"))
	for k := range 40 {
		x := healed(fmt.Sprintf("inc-old-%d", k))
		x.Opened = began.Add(-time.Duration(k*37) * time.Minute)
		if k%9 == 0 {
			x.Outcome, x.Reason = incident.Failed, "the tries are used up"
		}
		w.put(x)
	}
	child := healed("inc-child")
	child.Parent = "inc-parent"
	w.put(child)
	parent := asking("inc-parent")
	parent.Faults[0].Node, parent.Job, parent.State = "c0", nil, incident.Grouped
	parent.Group = &incident.Group{Domain: incident.Domain{Kind: incident.RackDomain, Name: "pitcrew.dev/rack=c"}, Children: []incident.Child{{ID: "inc-child", Node: "a2"}}, Asking: 1}
	parent.Guards = []guard.Verdict{{Guard: guard.Breaker, Asked: true, Allowed: false, Limit: "5", Current: "6"}}
	w.put(parent)
	w.nodes.mu.Lock()
	for k := range 30 {
		n := &fleet.Node{Name: fmt.Sprintf("c%d", k), Ready: k != 7, Labels: map[string]string{"pitcrew.dev/rack": fmt.Sprintf("c-%d", k/8)},
			GPUs: fleet.GPUs{Resource: "nvidia.com/gpu", Total: 8}, Free: map[string]int64{"nvidia.com/gpu": int64(k % 9)}}
		if k == 9 {
			n.Unschedulable = true
		}
		w.nodes.fleet = append(w.nodes.fleet, n)
	}
	w.nodes.mu.Unlock()
	_ = w.nodes.change("a2", func(n *fleet.Node) { n.Quarantined, n.Unschedulable = "inc-healed", true })
	_ = w.nodes.change("a3", func(n *fleet.Node) { n.Quarantined, n.Unschedulable = "inc-open", true })
	w.page.nodes.take(bus.Condition{Node: "a2", Key: "xid/79 gpu/GPU-1", Active: true, Event: &event.Event{Data: event.Data{Severity: event.Fatal, Target: event.Target{GPU: "GPU-1"}}}})
}

func TestAPersonFindsUnderstandsAndActsInABrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser takes a minute")
	}
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("no Chromium is installed, so the page is not tried in a browser: apt-get install chromium")
	}
	w := newWorld(t, func(o *Options) {
		o.Weeks = func([]*Row) ([]Week, error) {
			monday := time.Date(2026, 11, 16, 0, 0, 0, 0, time.UTC)
			return []Week{{From: monday, Name: "2026-11-16", Agree: 1, Alone: 1, OnlyPeople: []Deed{{At: began, Node: "c9", Action: "cordon"}}, Incidents: []Would{
				{ID: "inc-drift", Signal: "anomaly/step-time", Node: "b1", Actions: []string{"cordon", "restart-job"}, At: began, People: "cordon", PeopleAt: began, Agrees: true},
				{ID: "inc-drift", Signal: "xid/48", Node: "b2", Actions: []string{"cordon"}, At: began, Refused: "breaker"}}}}, nil
		}
	})
	stage(w)
	many, _ := large(t)
	s := httptest.NewServer(many)
	defer func() { s.CloseClientConnections(); s.Close() }()
	args := []string{"-C", "../../tools", "run", "./pagecheck", "-url", w.url, "-large", s.URL, "-token", operatorToken, "-out", os.Getenv("PITCREW_SCREENSHOTS"),
		"-paint", "1s"} // other tests run at the same time; docs/page.md has the figures
	if axe := os.Getenv("PITCREW_AXE"); axe != "" {
		args = append(args, "-axe", axe)
	} else {
		t.Log("accessibility is not checked: PITCREW_AXE names no axe.min.js (npm install axe-core)")
	}
	out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}
