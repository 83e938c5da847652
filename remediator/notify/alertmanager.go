package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/pitcrew/pitcrew/docs/runbooks"
)

// Alertmanager sends notices as alerts of the v2 API. An incident is one alert, PitcrewIncident, from its opening to its close; while
// a person is needed, also after the close, PitcrewNeedsPerson fires beside it. A finding on which no rule acts is a
// PitcrewFinding, which Alertmanager's own resolve_timeout ends. Labels do not change over an incident, so that it stays one alert.
// What it takes is read back: an alert that fires must be there, and one that ended must not.
type Alertmanager struct {
	to, back, silences, silence endpoint
	runbooks                    string // base address of the pages that say what to do
	now                         func() time.Time
}

// lasts is how long an alert fires when nothing more is heard of it: the remediator says each stage once and does not repeat it.
const lasts = 7 * 24 * time.Hour

// The names of the alerts.
const (
	incidentAlert = "PitcrewIncident"
	personAlert   = "PitcrewNeedsPerson"
	findingAlert  = "PitcrewFinding"
)

const (
	maxReadBack = 1 << 20
	apiMedia    = "application/json"
)

// NewAlertmanager makes a receiver for an Alertmanager at an address such as http://alertmanager:9093. Its alerts lead to
// the runbooks below a base address; empty: runbooks.DefaultBase.
func NewAlertmanager(address, books string) (*Alertmanager, error) {
	a := &Alertmanager{runbooks: books, now: time.Now}
	for path, e := range map[string]*endpoint{"/api/v2/alerts": &a.to, "/api/v2/silences": &a.silence} {
		var err error
		if *e, err = newEndpoint(address, path, apiMedia); err != nil {
			return nil, fmt.Errorf("alertmanager: %w", err)
		}
	}
	a.back, a.silences = a.to, a.silence
	return a, nil
}

// Name implements Receiver.
func (a *Alertmanager) Name() string { return a.to.name() }

// Follows implements Follower: what an incident came to is in the alert's annotations.
func (*Alertmanager) Follows() bool { return true }

// Send implements Receiver.
func (a *Alertmanager) Send(ctx context.Context, n Notice) (proof string, err error) {
	said := alerts(n, a.now(), a.runbooks)
	if err := a.to.post(ctx, said); err != nil {
		return "", err
	}
	if n.Stage == Progress { // the alert was proven to be there when it was opened
		return "", nil
	}
	return a.proven(ctx, said, a.now())
}

// proven reads back what was sent.
func (a *Alertmanager) proven(ctx context.Context, said []alert, at time.Time) (proof string, err error) {
	there := 0
	for _, s := range said {
		got, err := a.read(ctx, s.Labels)
		if err != nil {
			return "", fmt.Errorf("%w: %w", ErrUnproven, err)
		}
		fires := s.EndsAt.IsZero() || s.EndsAt.After(at)
		if fires != (got != nil) {
			return "", fmt.Errorf("%w: alert %s of %s: firing is %t there, %t was sent", ErrUnproven, s.Labels["alertname"], s.Labels["incident"], got != nil, fires)
		}
		if got != nil {
			there++
		}
	}
	return fmt.Sprintf("read back: %d firing, %d ended", there, len(said)-there), nil
}

// standing is Alertmanager's gettableAlert, as far as it is needed.
type standing struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	Status      struct {
		SilencedBy []string `json:"silencedBy"`
	} `json:"status"`
}

// read gives the alert of exactly these labels that is active; nil: there is none. Alertmanager may have added labels of its own.
func (a *Alertmanager) read(ctx context.Context, labels map[string]string) (*standing, error) {
	e := a.back
	e.url = withFilters(e.url, labels)
	raw, err := e.do(ctx, http.MethodGet, nil, maxReadBack)
	if err != nil {
		return nil, err
	}
	var all []standing
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, fmt.Errorf("the alerts cannot be read: %w", err)
	}
	for _, s := range all {
		same := true
		for name, value := range labels {
			same = same && s.Labels[name] == value
		}
		if same {
			return &s, nil
		}
	}
	return nil, nil //nolint:nilnil // absent is an answer
}

// withFilters is an address of the API that asks for what has these labels.
func withFilters(u *url.URL, labels map[string]string) *url.URL {
	out := *u
	q := out.Query()
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		q.Add("filter", name+"="+strconv.Quote(labels[name]))
	}
	out.RawQuery = q.Encode()
	return &out
}

// alert is Alertmanager's postableAlert.
type alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt"`
	EndsAt      time.Time         `json:"endsAt,omitzero"` // zero: Alertmanager's resolve_timeout from now
}

// alerts are those of a notice that is sent now.
func alerts(n Notice, now time.Time, books string) []alert {
	if n.Stage == Finding {
		return []alert{n.alert(findingAlert, time.Time{}, books)}
	}
	firing := now.Add(lasts)
	if n.At.After(now) {
		firing = n.At.Add(lasts)
	}
	end := firing
	if n.Stage == Closed {
		end = n.Ended
	}
	out := []alert{n.alert(incidentAlert, end, books)}
	switch {
	case n.NeedsPerson:
		out = append(out, n.alert(personAlert, firing, books))
	case n.Stage == Closed: // it may have been waited for
		out = append(out, n.alert(personAlert, n.Ended, books))
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
			"broken": n.Broken, "doing": n.Doing, "person": n.Person, "runbook_url": runbooks.URL(books, name),
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
