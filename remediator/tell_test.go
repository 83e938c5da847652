package remediator

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/notify"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// ear is a receiver that keeps what it hears.
type ear struct{ heard []notify.Notice }

func (*ear) Name() string { return "ear" }

func (e *ear) Send(_ context.Context, n notify.Notice) (string, error) {
	e.heard = append(e.heard, n)
	return "", nil
}

// telling runs f with a remediator that tells an ear, and gives what that heard.
func telling(t *testing.T, policies string, f func(*remediator)) []notify.Notice {
	t.Helper()
	file := filepath.Join(t.TempDir(), "p.yaml")
	if err := os.WriteFile(file, []byte(policies), 0o600); err != nil {
		t.Fatal(err)
	}
	ps, err := newPolicies([]string{file}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	e := &ear{}
	d := notify.New(notify.Options{Receivers: []notify.Receiver{e}})
	f(&remediator{o: Options{Cluster: "c", Log: slog.New(slog.DiscardHandler)}, policies: ps, notices: d, metrics: newMetrics()})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d.Run(ctx) // sends what waits
	return e.heard
}

func stages(ns []notify.Notice) (out []string) {
	for _, n := range ns {
		s := string(n.Stage)
		if n.NeedsPerson {
			s += " person"
		}
		out = append(out, s)
	}
	return out
}

const tellPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
metadata: {name: p}
spec:
  mode: enforce
  order: 1
  rules:
  - name: told
    when: {signal: [nic/mlx5, xid/13]}
    steps: [{do: notify}]
  - name: act
    when: {signal: xid/79}
    steps: [{do: cordon}, {do: notify}]
  default: notify
`

var t0 = time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)

func opened(change ...func(*incident.Incident)) *incident.Incident {
	i := &incident.Incident{
		ID: "inc-1", Cluster: "c", State: incident.Planned, Opened: t0, StateAt: t0, Round: 1,
		Faults: []incident.Fault{{Signal: "xid/79", Sev: event.Fatal, Node: "a1", GPU: "GPU-1", At: t0.Add(-time.Second)}},
		Job:    &event.Job{Kind: "Job", Namespace: "train", Name: "llm", UID: "j-1"},
		Plan:   &incident.Plan{Policy: "p", Rule: "act", Mode: "enforce", Steps: []policy.PlannedStep{{Step: policy.Step{Do: policy.Notify}}}},
	}
	for _, f := range change {
		f(i)
	}
	return i
}

func TestAnIncidentIsToldWhenItOpensWaitsForAPersonAndCloses(t *testing.T) {
	lost := int64(3)
	heard := telling(t, tellPolicy, func(r *remediator) {
		r.tell(opened(func(i *incident.Incident) { i.Plan = nil })) // not judged yet
		r.tell(opened())
		for range 2 {
			r.tell(opened(func(i *incident.Incident) { i.Waiting = "a person's yes: pitcrew incident approve inc-1" }))
		}
		r.tell(opened(func(i *incident.Incident) { i.Waiting = "step after cordoned: connection refused" })) // tried again, no news
		r.tell(opened(func(i *incident.Incident) { i.State, i.Waiting = incident.Approved, "guard hold: held by ann" }))
		r.tell(opened(func(i *incident.Incident) {
			i.State, i.Outcome, i.Reason, i.ClosedAt, i.LostSteps = incident.Closed, incident.Recovered, "all step", t0.Add(4*time.Second), &lost
		}))
	})
	if got, want := stages(heard), []string{"opened", "waiting person", "waiting person", "closed"}; !slices.Equal(got, want) {
		t.Fatalf("told %q, want %q", got, want)
	}
	n := heard[3]
	if n.Key != "inc-1/closed" || n.Job != "llm" || n.Outcome != "recovered" || *n.LostSteps != 3 || !n.Ended.Equal(t0.Add(4*time.Second)) || !n.Began.Equal(t0.Add(-time.Second)) ||
		n.Summary != "xid/79 (GPU fell off the bus) on a1, Job train/llm. Closed as recovered: all step. No person is needed." {
		t.Errorf("notice %+v", n)
	}
}

func TestARuleWithoutNotifyTellsNothing(t *testing.T) {
	heard := telling(t, tellPolicy, func(r *remediator) { r.tell(opened(func(i *incident.Incident) { i.Plan.Steps = nil })) })
	if len(heard) > 0 {
		t.Errorf("told %q", stages(heard))
	}
}

func TestWhatOnlyObservesIsToldOnceAndCallsAPerson(t *testing.T) {
	heard := telling(t, tellPolicy, func(r *remediator) {
		observed := func(i *incident.Incident) { i.Plan.Mode = "observe" }
		r.tell(opened(observed))
		r.tell(opened(observed, func(i *incident.Incident) { i.State, i.Outcome, i.ClosedAt = incident.Closed, incident.Observed, t0 }))
	})
	if got := stages(heard); !slices.Equal(got, []string{"closed person"}) {
		t.Errorf("told %q", got)
	}
}

// ignore hands over an event that no rule acts on, as the engine does.
func ignore(r *remediator, e event.Event) {
	r.ignored(e, incident.Facts{}, r.policies.current().Decide(e, policy.Node{}, policy.Job{}, policy.Incident{}))
}

func TestEventsOnWhichNoRuleActsAreToldByPolicy(t *testing.T) {
	ev := func(kind, code, name string, s event.Severity) event.Event {
		return event.Event{
			ID: "e-" + kind + code + name, Type: event.Fault, Time: t0,
			Data: event.Data{Target: event.Target{Node: "a1"}, Cause: event.Cause{Kind: kind, Code: code, Name: name}, Severity: s},
		}
	}
	cases := map[string]struct {
		event event.Event
		tells bool
	}{
		"a warning that no rule takes":       {ev("xid", "31", "", event.Warning), true},
		"information that no rule takes":     {ev("xid", "32", "", event.Info), false},
		"a rule of notify alone":             {ev("xid", "13", "", event.Info), true},
		"information of a kind never to act": {ev("agent", "", "lines-lost", event.Warning), true},
		"what another rule acts on":          {ev("xid", "79", "", event.Fatal), false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			heard := telling(t, tellPolicy, func(r *remediator) {
				ignore(r, c.event)
				ignore(r, c.event) // two gangs on the node
			})
			if c.tells != (len(heard) == 1) || len(heard) > 1 {
				t.Errorf("told %+v", heard)
			}
		})
	}
	quiet := tellPolicy[:len(tellPolicy)-len("notify\n")] + "ignore\n"
	if heard := telling(t, quiet, func(r *remediator) { ignore(r, ev("xid", "31", "", event.Warning)) }); len(heard) > 0 {
		t.Errorf("a policy that ignores told %+v", heard)
	}
}
