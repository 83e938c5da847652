package notify

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/pitcrew/pitcrew/docs/runbooks"
)

// Alertmanager sends notices as alerts of the v2 API. An incident is one alert, PitcrewIncident, from its opening to its close; while
// a person is needed, also after the close, PitcrewNeedsPerson fires beside it. A finding on which no rule acts is a
// PitcrewFinding, which Alertmanager's own resolve_timeout ends. Labels do not change over an incident, so that it stays one alert.
type Alertmanager struct {
	to       endpoint
	runbooks string // base address of the pages that say what to do
}

// lasts is how long an alert fires when nothing more is heard of it: the remediator says each stage once and does not repeat it.
const lasts = 7 * 24 * time.Hour

// NewAlertmanager makes a receiver for an Alertmanager at an address such as http://alertmanager:9093. Its alerts lead to
// the runbooks below a base address; empty: runbooks.DefaultBase.
func NewAlertmanager(address, books string) (*Alertmanager, error) {
	e, err := newEndpoint(address, "/api/v2/alerts", "application/json")
	if err != nil {
		return nil, fmt.Errorf("alertmanager: %w", err)
	}
	return &Alertmanager{e, books}, nil
}

// Name implements Receiver.
func (a *Alertmanager) Name() string { return a.to.name() }

// Send implements Receiver.
func (a *Alertmanager) Send(ctx context.Context, n Notice) error {
	return a.to.post(ctx, alerts(n, a.runbooks))
}

// alert is Alertmanager's postableAlert.
type alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt"`
	EndsAt      time.Time         `json:"endsAt,omitzero"` // zero: Alertmanager's resolve_timeout from now
}

func alerts(n Notice, books string) []alert {
	if n.Stage == Finding {
		return []alert{n.alert("PitcrewFinding", time.Time{}, books)}
	}
	firing := n.At.Add(lasts)
	end := firing
	if n.Stage == Closed {
		end = n.Ended
	}
	out := []alert{n.alert("PitcrewIncident", end, books)}
	switch {
	case n.NeedsPerson:
		out = append(out, n.alert("PitcrewNeedsPerson", firing, books))
	case n.Stage == Closed: // it may have been waited for
		out = append(out, n.alert("PitcrewNeedsPerson", n.Ended, books))
	}
	return out
}

func (n Notice) alert(name string, ends time.Time, books string) alert {
	return alert{
		Labels: filled(map[string]string{
			"alertname": name, "severity": n.Severity, "cluster": n.Cluster, "node": n.Node, "gpu": n.GPU, "namespace": n.Namespace, "job": n.Job,
			"signal": n.Signal, "incident": cmp.Or(n.Thread, n.Incident),
		}),
		Annotations: filled(map[string]string{
			"summary": n.Summary, "description": n.Detail, "policy": n.Policy, "rule": n.Rule, "state": n.State, "outcome": n.Outcome,
			"runbook_url": runbooks.URL(books, name),
		}),
		StartsAt: n.Began, EndsAt: ends,
	}
}

func filled(m map[string]string) map[string]string {
	for k, v := range m {
		if v == "" {
			delete(m, k)
		}
	}
	return m
}
