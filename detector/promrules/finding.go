package promrules

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

// Open is a firing alert, as Snapshot gives it.
type Open struct {
	Key   string          `json:"key"`
	Until time.Time       `json:"until,omitzero"` // restored: ends then, unless it fires again
	Raw   json.RawMessage `json:"event"`

	event event.Event
}

// severities says which of ours a rule's label severity means. Others count as warning. None is fatal: a rule compares numbers that
// came over a network, and nothing that it says is certain (event.MayGateway).
var severities = map[string]event.Severity{
	"info": event.Info, "none": event.Info, "notice": event.Info, "warning": event.Warning, "warn": event.Warning,
	"critical": event.Critical, "error": event.Critical, "page": event.Critical, "fatal": event.Critical, "emergency": event.Critical,
}

// targets says which labels name what, the first that is there counts: OpenTelemetry's names as Prometheus spells them, then those of
// dcgm-exporter and kube-state-metrics. Prometheus' own job and instance name a scrape, and are left alone.
var targets = []struct {
	labels []string
	set    func(*event.Target, string)
}{
	{[]string{"k8s_cluster_name", "cluster"}, func(t *event.Target, v string) { t.Cluster = v }},
	{[]string{"k8s_node_name", "Hostname", "node"}, func(t *event.Target, v string) { t.Node = hostOnly(v) }},
	{[]string{"hw_id", "UUID", "gpu_uuid"}, func(t *event.Target, v string) { t.GPU = v }},
	{[]string{"hw_pci"}, func(t *event.Target, v string) { t.PCI = v }},
	{[]string{"k8s_namespace_name", "namespace"}, func(t *event.Target, v string) { t.Namespace = v }},
	{[]string{"k8s_pod_name", "pod"}, func(t *event.Target, v string) { t.Pod = v }},
	{[]string{"k8s_pod_uid"}, func(t *event.Target, v string) { t.PodUID = v }},
	{[]string{"k8s_job_name", "job_name"}, func(t *event.Target, v string) {
		t.Job = &event.Job{APIVersion: "batch/v1", Kind: "Job", Namespace: t.Namespace, Name: v}
	}},
	{[]string{"pitcrew_rank"}, func(t *event.Target, v string) {
		if n, err := strconv.Atoi(v); err == nil && n >= 0 {
			t.Rank = &n
		}
	}},
}

func hostOnly(v string) string {
	if host, _, err := net.SplitHostPort(v); err == nil {
		return host
	}
	return v
}

func (r *Runner) target(l labels.Labels) event.Target {
	t := event.Target{Cluster: r.o.Cluster}
	for _, row := range targets {
		for _, name := range row.labels {
			if v := l.Get(name); v != "" {
				row.set(&t, v)
				break
			}
		}
	}
	return t
}

// findings makes an event of a change. An alert that was already open before a restart says nothing new.
func (r *Runner) findings(c change, now time.Time) []finding.Finding {
	e, key, err := r.event(c, now)
	if err != nil {
		if c.fired {
			r.counts.Homeless++
			r.o.Warn(c.rule.alert, fmt.Errorf("alert fires for %s, of which nothing can be said: %w", bounded(c.alert.labels.String(), maxText), err))
		}
		return nil
	}
	have, was := r.open[key]
	switch {
	case c.fired && was:
		have.Until = time.Time{}
		return nil
	case c.fired:
		r.open[key] = &Open{Key: key, event: e}
		return []finding.Finding{{Event: e, Active: true}}
	case was:
		return []finding.Finding{r.recover(have, now)}
	}
	return nil
}

func (r *Runner) recover(o *Open, now time.Time) finding.Finding {
	delete(r.open, o.Key)
	e := o.event
	e.ID, e.Type, e.Time, e.Subject = event.NewID(e.Source, "recovery", e.ID), event.Recovery, now, ""
	e.Data.Severity = event.Info
	return finding.Finding{Event: e}
}

func (r *Runner) event(c change, now time.Time) (event.Event, string, error) {
	a := c.alert
	t := r.target(a.labels)
	severity, ok := severities[strings.ToLower(a.labels.Get("severity"))]
	if !ok {
		severity = event.Warning
	}
	value := a.value
	src := event.GatewaySource(t.Cluster, r.o.Speaker, r.o.Component)
	e := event.Event{
		ID: event.NewID(src, c.rule.alert, a.labels.String(), strconv.FormatInt(a.since.UnixNano(), 10)), Source: src, Type: event.Anomaly, Time: now,
		Data: event.Data{
			Target: t, Cause: event.Cause{Kind: "rule", Name: c.rule.alert}, Severity: severity, Onset: a.since, Count: 1,
			Evidence: event.Evidence{Signal: bounded(c.rule.expr, maxText), Value: &value, WindowS: c.rule.hold.Seconds(), Baseline: "rule", Raw: words(a.annotations)},
		},
	}
	key := fmt.Sprintf("rule/%s %s %08x", c.rule.alert, t.Subject(), uint32(a.labels.Hash()))
	if t.Node == "" { // whoever receives it would take the speaker's node for the one that is meant
		return e, key, errors.New("its labels name no node (keep one in the expression, as in: sum by (k8s_node_name) (…))")
	}
	return e, key, errors.Join(e.Validate(), event.MayGateway(e))
}

// words puts what the rule's author wrote for a reader into one line.
func words(notes labels.Labels) string {
	var parts []string
	for _, name := range []string{"summary", "description", "message", "runbook_url"} {
		if v := strings.Join(strings.Fields(notes.Get(name)), " "); v != "" {
			parts = append(parts, v)
		}
	}
	return bounded(strings.Join(parts, " · "), maxText)
}

// Snapshot lists what is open, for Restore of a later runner.
func (r *Runner) Snapshot() []Open {
	out := []Open{}
	for _, o := range r.open {
		if o.Raw == nil {
			o.Raw, _ = event.Encode(o.event)
		}
		out = append(out, *o)
	}
	return out
}

// Restore takes up what an earlier runner left open, so that an alert which fires across a restart stays one finding. It is over
// when it has not fired again after its rule's `for`, its interval twice, and keep_firing_for: what the empty window has to fill
// with again. What cannot be read is left out.
func (r *Runner) Restore(open []Open, now time.Time) {
	waits := map[string]time.Duration{}
	for _, g := range r.groups {
		for _, u := range g.rules {
			if u.alert != "" {
				waits[u.alert] = max(waits[u.alert], u.hold+u.keep+2*g.interval+r.o.Window)
			}
		}
	}
	for _, o := range open {
		e, err := event.Decode(o.Raw)
		if err != nil || o.Key == "" {
			continue
		}
		o.event, o.Until = e, now.Add(waits[e.Data.Cause.Name])
		r.open[o.Key] = &o
	}
}

// lapsed ends what was open before a restart and has not fired since.
func (r *Runner) lapsed(now time.Time) (out []finding.Finding) {
	for _, o := range r.open {
		if !o.Until.IsZero() && !now.Before(o.Until) {
			out = append(out, r.recover(o, now))
		}
	}
	return out
}
