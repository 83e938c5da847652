package promexporter

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"
)

// series is one line of a page, or the lines of one histogram or summary.
type series struct {
	of     *family
	labels string // as they are written, with braces; empty without labels
	value  float64
	rich   *dto.Metric // of a histogram or summary
	at     pcommon.Timestamp
	seen   int64 // when its last value came, Unix ns by this host's clock
	gone   bool
}

// source identifies a metric as it comes in.
type source struct {
	name, unit string
	kind       kind
	translated otlptranslator.MetricType
}

// store is what the endpoint serves: the newest value of each series. mu guards all of it but the families' text, which belongs to
// the scrape that is under way.
type store struct {
	cfg   *Config
	log   *zap.Logger
	now   func() time.Time
	namer otlptranslator.MetricNamer

	mu         sync.Mutex
	labeler    *labeler
	sources    map[source]*family // nil: not served
	families   map[string]*family
	order      []*family // by name; stale where unordered
	unordered  bool
	series     map[uint64]*series // by hash of what identifies it as it comes in
	targets    map[string]*target // target_info, by job and instance
	generation uint64             // rises with each change of a page
	lastID     uint64
	swept      int64
	complained map[string]bool
}

func newStore(cfg *Config, log *zap.Logger) *store {
	return &store{
		cfg: cfg, log: log, now: time.Now, namer: otlptranslator.MetricNamer{Namespace: cfg.Namespace, WithMetricSuffixes: cfg.AddMetricSuffixes},
		labeler: newLabeler(cfg), sources: map[source]*family{}, families: map[string]*family{}, series: map[uint64]*series{},
		targets: map[string]*target{}, complained: map[string]bool{},
	}
}

// maxComplaints bounds what is remembered of what was reported.
const maxComplaints = 1024

// complain reports a reason once for each metric.
func (s *store) complain(metric, why string, fields ...zap.Field) {
	if s.complained[metric+why] || len(s.complained) >= maxComplaints {
		return
	}
	s.complained[metric+why] = true
	s.log.Warn("a metric is not served: "+why, append(fields, zap.String("metric", metric))...)
}

// consume takes in a batch. It does not change it.
func (s *store) consume(_ context.Context, md pmetric.Metrics) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now().UnixNano()
	for _, rm := range md.ResourceMetrics().All() {
		res := rm.Resource()
		of := hashMap(res.Attributes())
		s.target(res, of, now)
		for _, sm := range rm.ScopeMetrics().All() {
			b := batch{store: s, res: res, scope: sm, hash: of, now: now}
			if !s.cfg.WithoutScopeInfo {
				b.hash += hashScope(sm)
			}
			for _, m := range sm.Metrics().All() {
				if s.cfg.serves(m.Name()) {
					b.metric(m)
				}
			}
		}
	}
	if now-s.swept >= int64(s.cfg.MetricExpiration) {
		s.expire(now)
	}
	return nil
}

// batch is one scope's metrics on their way in.
type batch struct {
	*store
	res   pcommon.Resource
	scope pmetric.ScopeMetrics
	hash  uint64 // of both
	now   int64
}

func (b *batch) metric(m pmetric.Metric) {
	f := b.family(m)
	if f == nil {
		return
	}
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		for _, p := range m.Gauge().DataPoints().All() {
			b.number(f, p, false)
		}
	case pmetric.MetricTypeSum:
		delta := m.Sum().AggregationTemporality() == pmetric.AggregationTemporalityDelta
		for _, p := range m.Sum().DataPoints().All() {
			b.number(f, p, delta)
		}
	case pmetric.MetricTypeHistogram:
		delta := m.Histogram().AggregationTemporality() == pmetric.AggregationTemporalityDelta
		for _, p := range m.Histogram().DataPoints().All() {
			b.histogram(f, p, delta)
		}
	case pmetric.MetricTypeExponentialHistogram:
		for _, p := range m.ExponentialHistogram().DataPoints().All() {
			b.exponential(f, p)
		}
	case pmetric.MetricTypeSummary:
		for _, p := range m.Summary().DataPoints().All() {
			b.summary(f, p)
		}
	}
}

// family gives the family that a metric is of, and nil for what is not served.
func (s *store) family(m pmetric.Metric) *family {
	k, t, ok := kindOf(m)
	if !ok {
		s.complain(m.Name(), "its type or temporality has no form in the text format; send it cumulative", zap.Stringer("type", m.Type()))
		return nil
	}
	src := source{m.Name(), m.Unit(), k, t}
	if f, known := s.sources[src]; known {
		return f
	}
	if len(s.sources) >= maxNames {
		clear(s.sources)
	}
	s.sources[src] = nil
	name, err := s.namer.Build(otlptranslator.Metric{Name: m.Name(), Unit: m.Unit(), Type: t})
	if err != nil {
		s.complain(m.Name(), "its name has no form in the text format", zap.Error(err))
		return nil
	}
	f := s.families[name]
	switch {
	case f == nil:
		f = s.newFamily(name, m.Description(), k)
	case f.kind != k:
		s.complain(m.Name(), "another metric of this name has another type", zap.String("family", name), zap.String("served_as", kindWords[f.kind]))
		return nil
	}
	s.sources[src] = f
	return f
}

func (s *store) newFamily(name, help string, k kind) *family {
	s.lastID++
	f := &family{name: name, help: help, kind: k, id: s.lastID, by: map[string]*series{}}
	s.families[name] = f
	s.order, s.unordered = append(s.order, f), true
	return f
}

// find gives the series of a point; nil where it has none and gets none. A series that ended is none.
func (b *batch) find(f *family, attrs pcommon.Map, flags pmetric.DataPointFlags, at pcommon.Timestamp) *series {
	k := (b.hash*31+f.id)*31 + hashMap(attrs)
	x := b.series[k]
	if x != nil && x.gone {
		x = nil
	}
	if flags.NoRecordedValue() {
		if x != nil {
			b.end(x)
		}
		return nil
	}
	if x == nil {
		labels, err := b.labeler.labels(b.res, b.scope, attrs)
		if err != nil {
			b.complain(f.name, err.Error())
			return nil
		}
		x = b.add(f, written(labels))
		b.series[k] = x
	}
	if at < x.at { // late
		return nil
	}
	x.seen = b.now
	return x
}

// add gives the family's series of these labels, which is made where there is none.
func (s *store) add(f *family, labels string) *series {
	if x := f.by[labels]; x != nil {
		return x
	}
	x := &series{of: f, labels: labels, value: math.NaN()}
	f.by[labels] = x
	f.series, f.unsorted = append(f.series, x), true
	s.touch(f)
	return x
}

// touch notes that a family's text is not what it was.
func (s *store) touch(f *family) {
	f.version++
	s.generation++
}

func (b *batch) number(f *family, p pmetric.NumberDataPoint, delta bool) {
	x := b.find(f, p.Attributes(), p.Flags(), p.Timestamp())
	if x == nil {
		return
	}
	v := p.DoubleValue()
	if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
		v = float64(p.IntValue())
	}
	if delta && x.at != 0 && p.StartTimestamp() == x.at {
		v += x.value
	}
	b.set(x, v, p.Timestamp())
}

func (s *store) set(x *series, v float64, at pcommon.Timestamp) {
	if math.Float64bits(v) != math.Float64bits(x.value) || s.cfg.SendTimestamps && at != x.at {
		s.touch(x.of)
	}
	x.value, x.at = v, at
}

// end takes a series off the page. What comes in under its key later is a new one.
func (s *store) end(x *series) {
	x.gone = true
	f := x.of
	delete(f.by, x.labels)
	f.series = slices.DeleteFunc(f.series, func(y *series) bool { return y == x })
	s.touch(f)
}

// expire ends the series whose source stopped, and the families that have none left.
func (s *store) expire(now int64) {
	before := now - int64(s.cfg.MetricExpiration)
	ended, empty := false, false
	for _, f := range s.order {
		was := len(f.series)
		f.series = slices.DeleteFunc(f.series, func(x *series) bool {
			if x.seen >= before {
				return false
			}
			x.gone = true
			delete(f.by, x.labels)
			return true
		})
		if len(f.series) != was {
			s.touch(f)
			ended = true
		}
		empty = empty || len(f.series) == 0
	}
	if ended || now-s.swept >= int64(s.cfg.MetricExpiration) {
		s.swept = now
		for k, x := range s.series {
			if x.gone {
				delete(s.series, k)
			}
		}
		for k, t := range s.targets {
			if t.gone {
				delete(s.targets, k)
			}
		}
	}
	if empty {
		s.order = slices.DeleteFunc(s.order, func(f *family) bool {
			if len(f.series) > 0 {
				return false
			}
			delete(s.families, f.name)
			return true
		})
		clear(s.sources) // they are looked up anew: a name may be another type's now
		s.generation++
	}
}

// served lists the families in order, after what is over is gone.
func (s *store) served() ([]*family, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(s.now().UnixNano())
	if s.unordered {
		s.unordered = false
		slices.SortFunc(s.order, func(a, b *family) int { return cmp.Compare(a.name, b.name) })
	}
	return slices.Clone(s.order), s.generation
}
