package promrules

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/template"
)

// alert is one label set for which an alert's expression gives a value.
type alert struct {
	labels      labels.Labels
	annotations labels.Labels
	value       float64
	since       time.Time // the expression gives a value from then on
	firing      bool
	quiet       time.Time // zero, or since when a firing alert's expression gives nothing
}

// change is what an evaluation did to an alert.
type change struct {
	rule  *rule
	alert *alert
	fired bool // else resolved
}

// judge takes the result of one evaluation. The rules are Prometheus': an alert is pending until `for` has passed without a gap,
// fires, and is over when the expression has given nothing for keep_firing_for. The caller says what it is to be called.
func (u *rule) judge(ctx context.Context, now time.Time, result promql.Vector, limit int, x *expander) ([]change, error) {
	seen := map[uint64]bool{}
	fresh := map[uint64]*alert{}
	for _, s := range result {
		a := x.alert(ctx, u, s, now)
		h := a.labels.Hash()
		if seen[h] {
			return nil, fmt.Errorf("alert %s: two results have the same labels %s; aggregate them in the expression", u.alert, a.labels)
		}
		seen[h], fresh[h] = true, a
	}
	if limit > 0 && len(fresh) > limit {
		clear(u.active)
		return nil, fmt.Errorf("alert %s: %d results, the group's limit is %d", u.alert, len(fresh), limit)
	}
	for h, a := range fresh {
		have, ok := u.active[h]
		if !ok {
			u.active[h] = a
			continue
		}
		have.value, have.annotations, have.quiet = a.value, a.annotations, time.Time{}
		if have.since.After(now) { // the clock was set back
			have.since = now
		}
	}
	var out []change
	for h, a := range u.active {
		switch {
		case seen[h]:
			if !a.firing && now.Sub(a.since) >= u.hold {
				a.firing = true
				out = append(out, change{rule: u, alert: a, fired: true})
			}
		case !a.firing:
			delete(u.active, h)
		default:
			if a.quiet.IsZero() || a.quiet.After(now) {
				a.quiet = now
			}
			if now.Sub(a.quiet) >= u.keep {
				delete(u.active, h)
				out = append(out, change{rule: u, alert: a})
			}
		}
	}
	return out, nil
}

// maxText bounds what a template may give, in bytes.
const maxText = 2048

// expander fills in the templates of labels and annotations.
type expander struct {
	query  template.QueryFunc
	shared string // definitions that every template starts with
}

func newExpander(query template.QueryFunc) *expander {
	return &expander{query: query, shared: "{{$labels := .Labels}}{{$externalLabels := .ExternalLabels}}{{$externalURL := .ExternalURL}}{{$value := .Value}}"}
}

func (x *expander) alert(ctx context.Context, u *rule, s promql.Sample, now time.Time) *alert {
	data := template.AlertTemplateData(s.Metric.Map(), nil, "", s)
	fill := func(text string) string {
		if !strings.Contains(text, "{{") {
			return text
		}
		out, err := template.NewTemplateExpander(ctx, x.shared+text, "alert "+u.alert, data, model.TimeFromUnixNano(now.UnixNano()), x.query, nil, nil).Expand()
		if err != nil {
			return fmt.Sprintf("<template: %v>", err)
		}
		return bounded(out, maxText)
	}
	b := labels.NewBuilder(s.Metric)
	b.Del(model.MetricNameLabel)
	u.labels.Range(func(l labels.Label) { b.Set(l.Name, fill(l.Value)) })
	b.Set(labels.AlertName, u.alert)
	notes := labels.NewScratchBuilder(u.annotations.Len())
	u.annotations.Range(func(l labels.Label) { notes.Add(l.Name, fill(l.Value)) })
	notes.Sort()
	return &alert{labels: b.Labels(), annotations: notes.Labels(), value: s.F, since: now}
}

func bounded(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
