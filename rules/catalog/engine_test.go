package catalog

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/rules"

	"github.com/pitcrew/pitcrew/rules/ruletest"
)

// epoch is when the series of a test begin.
var epoch = ruletest.Epoch

// stored is the series of one timeline.
type stored struct {
	ruletest.Store
	end time.Duration
}

// store reads series in promtool's notation, one value a step.
func store(step time.Duration, all map[string]string) (*stored, error) {
	s := &stored{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := s.AddSeries(name, all[name], epoch, step); err != nil {
			return nil, err
		}
	}
	s.end = s.End().Sub(epoch)
	return s, nil
}

// condition is what of a record decides when it fires. A mutant is another one.
type condition struct {
	expr       string
	hold, keep time.Duration
}

func (r *Record) condition() condition {
	return condition{r.Expr, time.Duration(r.For), time.Duration(r.KeepFiringFor)}
}

// alertingRule is Prometheus' own.
func alertingRule(t testing.TB, r *Record, c condition, notes labels.Labels) *rules.AlertingRule {
	t.Helper()
	expr, err := ruletest.PromQL.ParseExpr(c.expr)
	if err != nil {
		t.Fatalf("%s:%d: %s: %v", r.File, r.Line, r.Alert, err)
	}
	return rules.NewAlertingRule(r.Alert, expr, c.hold, c.keep, labels.FromMap(r.labels()), notes, labels.EmptyLabels(), "", true, promslog.NewNopLogger())
}

// firing gives the times at which the alert fires, asked at every step. look, if set, sees the rule after each evaluation.
func firing(t testing.TB, rule *rules.AlertingRule, query rules.QueryFunc, step, end time.Duration, look func(time.Duration, *rules.AlertingRule)) (at []time.Duration) {
	t.Helper()
	for d := time.Duration(0); d <= end; d += step {
		if _, err := rule.Eval(context.Background(), 0, epoch.Add(d), query, nil, 0); err != nil {
			t.Fatalf("%s at %s: %v", rule.Name(), d, err)
		}
		rule.SetEvaluationTimestamp(epoch.Add(d)) // without it, Prometheus does not tell a state
		if rule.State() == rules.StateFiring {
			at = append(at, d)
		}
		if look != nil {
			look(d, rule)
		}
	}
	return at
}

// atOnce answers instant queries from one range query over the whole timeline: thousands of mutants are evaluated this way.
func atOnce(t testing.TB, s *stored, expr string, step time.Duration) rules.QueryFunc {
	t.Helper()
	m, err := s.Range(expr, epoch, epoch.Add(s.end), step)
	if err != nil {
		return func(context.Context, string, time.Time) (promql.Vector, error) { return nil, err }
	}
	byTime := map[int64]promql.Vector{}
	for _, series := range m {
		for _, p := range series.Floats {
			byTime[p.T] = append(byTime[p.T], promql.Sample{Metric: series.Metric, T: p.T, F: p.F})
		}
	}
	return func(_ context.Context, _ string, at time.Time) (promql.Vector, error) {
		return byTime[at.UnixMilli()], nil
	}
}

// span tells from when until when an alert fired; ok is false if it fired never or in pieces.
func span(at []time.Duration, step time.Duration) (from, until time.Duration, ok bool) {
	if len(at) == 0 {
		return 0, 0, false
	}
	from, until = at[0], at[len(at)-1]+step
	return from, until, time.Duration(len(at))*step == until-from
}
