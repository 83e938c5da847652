package catalog

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// The engine that evaluates, and what it reads: series of a test, held in memory.
var (
	engine = promql.NewEngine(promql.EngineOpts{MaxSamples: 5e6, Timeout: time.Minute, EnableNegativeOffset: true, EnableAtModifier: true})
	promQL = parser.NewParser(parser.Options{})
	epoch  = time.Unix(0, 0).UTC()
)

type sample struct {
	t int64
	v float64
}

func (s sample) T() int64                    { return s.t }
func (sample) ST() int64                     { return 0 }
func (s sample) F() float64                  { return s.v }
func (sample) H() *histogram.Histogram       { return nil }
func (sample) FH() *histogram.FloatHistogram { return nil }
func (sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample         { return s }

// stored is the series of one timeline.
type stored struct {
	series []storage.Series
	end    time.Duration
}

// store reads series in promtool's notation.
func store(step time.Duration, lists ...map[string]string) (*stored, error) {
	all := map[string]string{}
	for _, l := range lists {
		maps.Copy(all, l)
	}
	s := &stored{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		lset, values, err := promQL.ParseSeriesDesc(name + " " + all[name])
		if err != nil {
			return nil, fmt.Errorf("series %s: %w", name, err)
		}
		var list []chunks.Sample
		for i, v := range values {
			if !v.Omitted {
				list = append(list, sample{int64(i) * step.Milliseconds(), v.Value})
			}
		}
		s.series = append(s.series, storage.NewListSeries(lset, list))
		s.end = max(s.end, time.Duration(len(values)-1)*step)
	}
	return s, nil
}

func (s *stored) Querier(int64, int64) (storage.Querier, error) { return s, nil }
func (*stored) Close() error                                    { return nil }
func (*stored) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}
func (*stored) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (s *stored) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var out []storage.Series
	for _, x := range s.series {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(x.Labels().Get(m.Name)) }) {
			out = append(out, x)
		}
	}
	slices.SortFunc(out, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
	return &found{all: out}
}

type found struct {
	all []storage.Series
	n   int
}

func (f *found) Next() bool                      { f.n++; return f.n <= len(f.all) }
func (f *found) At() storage.Series              { return f.all[f.n-1] }
func (*found) Err() error                        { return nil }
func (*found) Warnings() annotations.Annotations { return nil }

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
	expr, err := promQL.ParseExpr(c.expr)
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
	q, err := engine.NewRangeQuery(context.Background(), s, nil, expr, epoch, epoch.Add(s.end), step)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	defer q.Close()
	m, err := q.Exec(context.Background()).Matrix()
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
