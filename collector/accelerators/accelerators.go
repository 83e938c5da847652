package accelerators

import (
	"context"
	"math"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"

	"github.com/pitcrew/pitcrew/semconv"
)

// Type is the processor's name in configurations.
var Type = component.MustNewType("accelerators")

// Config of the processor: there is nothing to configure.
type Config struct{}

// NewFactory makes the processor's factory.
func NewFactory() processor.Factory {
	return processor.NewFactory(Type, func() component.Config { return &Config{} },
		processor.WithMetrics(func(_ context.Context, _ processor.Settings, _ component.Config, next consumer.Metrics) (processor.Metrics, error) {
			return &renamer{next: next, most: map[string]float64{}}, nil
		}, component.StabilityLevelAlpha))
}

// scope is of what was renamed.
const scope = "github.com/pitcrew/pitcrew/collector/accelerators"

type renamer struct {
	component.StartFunc
	component.ShutdownFunc
	next consumer.Metrics

	mu   sync.Mutex
	most map[string]float64 // accelerators counted, by vendor
}

// Capabilities says that what comes in is not changed: others read it as well.
func (*renamer) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

// ConsumeMetrics passes a batch on, with our names for what other makers' exporters say.
func (r *renamer) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	if theirs(md) {
		md = r.rename(md)
	}
	return r.next.ConsumeMetrics(ctx, md)
}

func theirs(md pmetric.Metrics) bool {
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if maker, _ := lookup(m.Name()); maker != nil {
					return true
				}
			}
		}
	}
	return false
}

func (r *renamer) rename(md pmetric.Metrics) pmetric.Metrics {
	out := pmetric.NewMetrics()
	for _, rm := range md.ResourceMetrics().All() {
		to := out.ResourceMetrics().AppendEmpty()
		rm.Resource().CopyTo(to.Resource())
		to.SetSchemaUrl(rm.SchemaUrl())
		ours := batch{metrics: map[string]pmetric.NumberDataPointSlice{}, told: map[[3]string]bool{}}
		for _, sm := range rm.ScopeMetrics().All() {
			var kept pmetric.ScopeMetrics
			for _, m := range sm.Metrics().All() {
				maker, row := lookup(m.Name())
				if maker != nil && (m.Type() == pmetric.MetricTypeGauge || m.Type() == pmetric.MetricTypeSum) {
					r.take(&ours, maker, row, m)
					continue
				}
				if kept == (pmetric.ScopeMetrics{}) {
					kept = to.ScopeMetrics().AppendEmpty()
					sm.Scope().CopyTo(kept.Scope())
				}
				m.CopyTo(kept.Metrics().AppendEmpty())
			}
		}
		if ours.scope != (pmetric.ScopeMetrics{}) {
			ours.scope.MoveTo(to.ScopeMetrics().AppendEmpty())
		}
	}
	return out
}

// batch is what one resource's metrics become.
type batch struct {
	scope   pmetric.ScopeMetrics
	metrics map[string]pmetric.NumberDataPointSlice
	told    map[[3]string]bool // accelerators whose status and info were told, with whom they are given to
}

func (b *batch) points(name, unit string, counter bool) pmetric.NumberDataPointSlice {
	if p, ok := b.metrics[name]; ok {
		return p
	}
	if b.scope == (pmetric.ScopeMetrics{}) {
		b.scope = pmetric.NewScopeMetrics()
		b.scope.Scope().SetName(scope)
	}
	m := b.scope.Metrics().AppendEmpty()
	m.SetName(name)
	m.SetUnit(unit)
	var p pmetric.NumberDataPointSlice
	if counter {
		s := m.SetEmptySum()
		s.SetIsMonotonic(true)
		s.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		p = s.DataPoints()
	} else {
		p = m.SetEmptyGauge().DataPoints()
	}
	b.metrics[name] = p
	return p
}

// take turns one metric into ours. Points that are no number, or of no accelerator, are left out.
func (r *renamer) take(b *batch, maker *maker, row row, m pmetric.Metric) {
	in := m.Gauge().DataPoints
	if m.Type() == pmetric.MetricTypeSum {
		in = m.Sum().DataPoints
	}
	for _, p := range in().All() {
		v := p.DoubleValue()
		if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
			v = float64(p.IntValue())
		}
		id := maker.id(p.Attributes())
		if p.Flags().NoRecordedValue() || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 || id == "" && !row.nodeWide ||
			row.where[0] != "" && label(p.Attributes(), row.where[0]) != row.where[1] {
			continue // a negative one is how these exporters say that they do not know
		}
		if row.upside {
			v = 2 - 2*min(v, 1)
		}
		add := func(name, unit string, counter bool, v float64) pmetric.NumberDataPoint {
			q := b.points(name, unit, counter).AppendEmpty()
			q.SetTimestamp(p.Timestamp())
			if counter {
				q.SetStartTimestamp(p.StartTimestamp())
			}
			q.SetDoubleValue(v)
			return q
		}
		q := add(row.name, row.unit, row.counter, v*row.scale)
		if row.nodeWide {
			q.Attributes().PutStr(vendorKey, maker.vendor) // each maker's are counted for themselves
			add(semconv.GPUExpected, row.unit, false, r.expected(maker.vendor, v)).Attributes().PutStr(vendorKey, maker.vendor)
			continue
		}
		maker.identify(p.Attributes(), q.Attributes(), id, row.name)
		if row.key != "" {
			q.Attributes().PutStr(row.key, row.value)
		}
		if given := maker.given(p.Attributes(), id); row.status && !b.told[given] {
			b.told[given] = true
			answers := add(semconv.GPUStatus, "1", false, 1).Attributes()
			maker.identify(p.Attributes(), answers, id, "")
			answers.PutStr(vendorKey, maker.vendor)
			info := add(semconv.GPUInfo, "1", false, 1).Attributes()
			maker.identify(p.Attributes(), info, id, "")
			maker.describe(p.Attributes(), info)
		}
	}
}

// expected is the most accelerators that were counted.
func (r *renamer) expected(vendor string, v float64) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.most[vendor] = max(r.most[vendor], v)
	return r.most[vendor]
}
