package promrulesconnector

import (
	"math"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// writer puts one metric's points into the window, as the Prometheus exporter would serve them. Points without a time, exponential
// histograms and summaries are left out.
type writer struct {
	c    *rulesConnector
	name string
	res  func() []string // labels of the resource
}

func (w writer) write(m pmetric.Metric) {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		w.numbers(m.Gauge().DataPoints())
	case pmetric.MetricTypeSum:
		if m.Sum().AggregationTemporality() == pmetric.AggregationTemporalityCumulative {
			w.numbers(m.Sum().DataPoints())
		}
	case pmetric.MetricTypeHistogram:
		if m.Histogram().AggregationTemporality() == pmetric.AggregationTemporalityCumulative {
			w.histograms(m.Histogram().DataPoints())
		}
	}
}

func (w writer) numbers(points pmetric.NumberDataPointSlice) {
	if !w.c.runner.Wants(w.name) {
		return
	}
	for _, p := range points.All() {
		v := p.DoubleValue()
		if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
			v = float64(p.IntValue())
		}
		if !p.Flags().NoRecordedValue() {
			w.put("", p.Attributes(), p.Timestamp(), v)
		}
	}
}

func (w writer) histograms(points pmetric.HistogramDataPointSlice) {
	bucket, sum, count := w.c.runner.Wants(w.name+"_bucket"), w.c.runner.Wants(w.name+"_sum"), w.c.runner.Wants(w.name+"_count")
	if !bucket && !sum && !count {
		return
	}
	for _, p := range points.All() {
		if p.Flags().NoRecordedValue() {
			continue
		}
		if sum && p.HasSum() {
			w.put("_sum", p.Attributes(), p.Timestamp(), p.Sum())
		}
		if count {
			w.put("_count", p.Attributes(), p.Timestamp(), float64(p.Count()))
		}
		if !bucket {
			continue
		}
		below := uint64(0)
		bounds := p.ExplicitBounds()
		for i := range bounds.Len() {
			if i < p.BucketCounts().Len() {
				below += p.BucketCounts().At(i)
			}
			w.put("_bucket", p.Attributes(), p.Timestamp(), float64(below), "le", number(bounds.At(i)))
		}
		w.put("_bucket", p.Attributes(), p.Timestamp(), float64(p.Count()), "le", number(math.Inf(1)))
	}
}

func (w writer) put(suffix string, attrs pcommon.Map, at pcommon.Timestamp, v float64, more ...string) {
	if at == 0 {
		return
	}
	res := w.res()
	pairs := w.c.names.add(append(make([]string, 0, len(res)+2*attrs.Len()+4), res...), attrs)
	pairs = append(pairs, more...)
	pairs = append(pairs, "__name__", w.name+suffix)
	w.c.runner.Put(pairs, at.AsTime(), v)
}
