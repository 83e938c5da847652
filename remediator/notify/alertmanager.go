package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
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
// PitcrewFinding, which Alertmanager's own resolve_timeout ends. Labels do not change over an incident, so that it stays one alert: what
// a notice says of the fault may change, so the labels are those of the alert that is active there already.
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
	listWithin  = 3 * time.Second
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
	now := a.now()
	there, unread := a.ofIncident(ctx, n)
	said := rejoin(alerts(n, now, a.runbooks), there, now)
	if err := a.to.post(ctx, said); err != nil {
		return "", err
	}
	switch {
	case unread != nil && n.Stage == Closed && !errors.Is(unread, ErrRefused): // an alert with other labels may still be active
		return "", unread
	case n.Stage == Progress: // the alert was proven to be there when it was opened
		return "", nil
	case unread != nil:
		return "", fmt.Errorf("%w: %w", ErrUnproven, unread)
	}
	return a.proven(ctx, said, a.now())
}

// ofIncident lists the active alerts of the notice's incident. It takes a part of a try, so that the notice is posted without the list
// where that cannot be read.
func (a *Alertmanager) ofIncident(ctx context.Context, n Notice) ([]standing, error) {
	id := n.thread()
	if id == "" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()
	all, err := a.list(ctx, filled(map[string]string{"incident": id, "cluster": n.Cluster}))
	return slices.DeleteFunc(all, func(s standing) bool {
		return s.Labels["alertname"] != incidentAlert && s.Labels["alertname"] != personAlert
	}), err
}

// rejoin gives each alert the labels of the active alert of its name, which is then updated or ended. Further active alerts of that name
// are ended: an incident has one of each.
func rejoin(said []alert, there []standing, now time.Time) []alert {
	out, joined := slices.Clone(said), map[string]bool{}
	for _, s := range there {
		name := s.Labels["alertname"]
		k := slices.IndexFunc(said, func(a alert) bool { return a.Labels["alertname"] == name })
		switch {
		case k < 0:
		case !joined[name]:
			joined[name], out[k].Labels = true, s.Labels
		default:
			more := said[k]
			more.Labels = s.Labels
			out = append(out, more.endedBy(now))
		}
	}
	return out
}

// endedBy is the alert with an end that is not later. Alertmanager refuses an alert that ends before it starts, as it does if the
// node's clock is ahead.
func (a alert) endedBy(end time.Time) alert {
	if a.EndsAt.IsZero() || a.EndsAt.After(end) {
		a.EndsAt = end
	}
	if a.StartsAt.After(a.EndsAt) {
		a.StartsAt = a.EndsAt
	}
	return a
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
	all, err := a.list(ctx, labels)
	if err != nil || len(all) == 0 {
		return nil, err //nolint:nilnil // absent is an answer
	}
	return &all[0], nil
}

// list gives the active alerts that have these labels.
func (a *Alertmanager) list(ctx context.Context, labels map[string]string) ([]standing, error) {
	e := a.back
	e.url = withFilters(e.url, labels)
	raw, err := e.do(ctx, http.MethodGet, nil, maxReadBack)
	if err != nil {
		return nil, err
	}
	var all []standing
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, fmt.Errorf("%w: the alerts cannot be read: %w", ErrRefused, err)
	}
	return slices.DeleteFunc(all, func(s standing) bool {
		for name, value := range labels {
			if s.Labels[name] != value {
				return true
			}
		}
		return false
	}), nil
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
	a := alert{
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
	if ends.IsZero() {
		return a
	}
	return a.endedBy(ends)
}

func filled(m map[string]string) map[string]string {
	for k, v := range m {
		if v == "" {
			delete(m, k)
		}
	}
	return m
}
