package ruletest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// PromQL reads expressions and series as Prometheus does by default.
var PromQL = parser.NewParser(parser.Options{})

// Epoch is the time of the first value of a series in promtool's notation.
var Epoch = time.Unix(0, 0).UTC()

// Engine is Prometheus' query engine.
var Engine = promql.NewEngine(promql.EngineOpts{MaxSamples: 5e7, Timeout: time.Minute, EnableNegativeOffset: true, EnableAtModifier: true})

type sample struct {
	t int64
	v float64
	h *histogram.FloatHistogram // nil: v counts
}

func (s sample) T() int64                      { return s.t }
func (sample) ST() int64                       { return 0 }
func (s sample) F() float64                    { return s.v }
func (sample) H() *histogram.Histogram         { return nil }
func (s sample) FH() *histogram.FloatHistogram { return s.h }
func (s sample) Copy() chunks.Sample           { return s }
func (s sample) Type() chunkenc.ValueType {
	if s.h != nil {
		return chunkenc.ValFloatHistogram
	}
	return chunkenc.ValFloat
}

// series is one of a store, with its samples in the order of their times.
type series struct {
	labels  labels.Labels
	samples []chunks.Sample
}

// Store holds series in memory and answers the query engine. Reads may run concurrently; writes must not run beside anything.
type Store struct {
	byName map[string][]*series
	byHash map[uint64][]*series
	end    time.Time
}

// Add appends a sample. Samples of one series must come in the order of their times.
func (s *Store) Add(lset labels.Labels, at time.Time, v float64) {
	s.append(lset, sample{t: at.UnixMilli(), v: v})
}

func (s *Store) append(lset labels.Labels, x sample) {
	if s.byName == nil {
		s.byName, s.byHash = map[string][]*series{}, map[uint64][]*series{}
	}
	hash := lset.Hash()
	at := slices.IndexFunc(s.byHash[hash], func(o *series) bool { return labels.Equal(o.labels, lset) })
	if at < 0 {
		one, name := &series{labels: lset}, lset.Get(labels.MetricName)
		s.byName[name] = append(s.byName[name], one)
		at = len(s.byHash[hash])
		s.byHash[hash] = append(s.byHash[hash], one)
	}
	one := s.byHash[hash][at]
	one.samples = append(one.samples, x)
	if t := time.UnixMilli(x.t).UTC(); t.After(s.end) {
		s.end = t
	}
}

// AddSeries appends a series in promtool's notation: selector, then values such as 0x9 1x5, one a step from the start on.
func (s *Store) AddSeries(selector, values string, start time.Time, step time.Duration) error {
	lset, list, err := PromQL.ParseSeriesDesc(selector + " " + values)
	if err != nil {
		return fmt.Errorf("series %s: %w", selector, err)
	}
	for i, v := range list {
		at := start.Add(time.Duration(i) * step)
		if at.After(s.end) {
			s.end = at
		}
		if !v.Omitted {
			s.append(lset, sample{at.UnixMilli(), v.Value, v.Histogram})
		}
	}
	return nil
}

// End is the time of the last value, omitted ones included.
func (s *Store) End() time.Time { return s.end }

// Names are those of the metrics, in order.
func (s *Store) Names() []string { return slices.Sorted(maps.Keys(s.byName)) }

// Querier implements storage.Queryable.
func (s *Store) Querier(int64, int64) (storage.Querier, error) { return s, nil }

// Close implements storage.Querier.
func (*Store) Close() error { return nil }

// LabelValues implements storage.Querier. Queries do not need it.
func (*Store) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

// LabelNames implements storage.Querier. Queries do not need it.
func (*Store) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

// Select implements storage.Querier.
func (s *Store) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var out []storage.Series
	for name, all := range s.byName {
		if slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return m.Name == labels.MetricName && !m.Matches(name) }) {
			continue
		}
		for _, x := range all {
			if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(x.labels.Get(m.Name)) }) {
				out = append(out, storage.NewListSeries(x.labels, x.samples))
			}
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

// Range evaluates an expression at each step of a range.
func (s *Store) Range(expr string, from, to time.Time, step time.Duration) (promql.Matrix, error) {
	q, err := Engine.NewRangeQuery(context.Background(), s, nil, expr, from, to, step)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	m, err := q.Exec(context.Background()).Matrix()
	if err != nil {
		return nil, err
	}
	out := make(promql.Matrix, 0, len(m)) // the engine takes its points back
	for _, x := range m {
		out = append(out, promql.Series{Metric: x.Metric.Copy(), Floats: slices.Clone(x.Floats), Histograms: slices.Clone(x.Histograms)})
	}
	return out, nil
}

// Instant evaluates an expression at one time. A scalar is a series without labels.
func (s *Store) Instant(expr string, at time.Time) (promql.Vector, error) {
	q, err := Engine.NewInstantQuery(context.Background(), s, nil, expr, at)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	r := q.Exec(context.Background())
	if x, err := r.Scalar(); err == nil {
		return promql.Vector{{T: x.T, F: x.V}}, nil
	}
	v, err := r.Vector()
	return slices.Clone(v), err
}
