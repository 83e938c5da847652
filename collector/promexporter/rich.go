package promexporter

import (
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/protobuf/proto"
)

// stamped adds what every kind has: labels, and the time where it is sent.
func (b *batch) stamped(m *dto.Metric, attrs pcommon.Map, at pcommon.Timestamp) *dto.Metric {
	labels, err := b.labeler.labels(b.res, b.scope, attrs)
	if err != nil {
		return nil
	}
	for _, l := range labels {
		m.Label = append(m.Label, &dto.LabelPair{Name: proto.String(l.name), Value: proto.String(l.value)})
	}
	if b.cfg.SendTimestamps {
		m.TimestampMs = proto.Int64(int64(at / 1e6))
	}
	return m
}

func (b *batch) put(x *series, m *dto.Metric, attrs pcommon.Map, at pcommon.Timestamp) {
	if x.rich != nil { // the labels of before
		m.Label = x.rich.Label
		if b.cfg.SendTimestamps {
			m.TimestampMs = proto.Int64(int64(at / 1e6))
		}
	} else {
		m = b.stamped(m, attrs, at)
	}
	x.at = at
	if m == nil || proto.Equal(m, x.rich) {
		return
	}
	x.rich = m
	b.touch(x.of)
}

func (b *batch) histogram(f *family, p pmetric.HistogramDataPoint, delta bool) {
	before := pcommon.Timestamp(0)
	x := b.find(f, p.Attributes(), p.Flags(), p.Timestamp())
	if x == nil {
		return
	}
	before = x.at
	h := &dto.Histogram{SampleCount: proto.Uint64(p.Count()), SampleSum: proto.Float64(p.Sum())}
	bounds, counts := p.ExplicitBounds(), p.BucketCounts()
	type bucket struct {
		upper float64
		count uint64
	}
	var all []bucket
	for i := range bounds.Len() {
		if i < counts.Len() && !math.IsInf(bounds.At(i), 1) {
			all = append(all, bucket{bounds.At(i), counts.At(i)})
		}
	}
	slices.SortStableFunc(all, func(a, b bucket) int { return compare(a.upper, b.upper) })
	all = slices.CompactFunc(all, func(a, b bucket) bool { return a.upper == b.upper })
	sum := uint64(0)
	for _, k := range all {
		sum += k.count
		h.Bucket = append(h.Bucket, &dto.Bucket{UpperBound: proto.Float64(k.upper), CumulativeCount: proto.Uint64(sum)})
	}
	if delta && x.rich != nil {
		if p.StartTimestamp() < before { // overlaps what was counted
			return
		}
		if p.StartTimestamp() == before {
			accumulate(h, x.rich.Histogram)
		}
	}
	b.put(x, &dto.Metric{Histogram: h}, p.Attributes(), p.Timestamp())
}

func compare(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// accumulate adds what was counted before, where the bounds are the same.
func accumulate(h, before *dto.Histogram) {
	if !slices.EqualFunc(h.Bucket, before.Bucket, func(a, b *dto.Bucket) bool { return a.GetUpperBound() == b.GetUpperBound() }) {
		return
	}
	h.SampleCount = proto.Uint64(h.GetSampleCount() + before.GetSampleCount())
	h.SampleSum = proto.Float64(h.GetSampleSum() + before.GetSampleSum())
	for i, k := range h.Bucket {
		k.CumulativeCount = proto.Uint64(k.GetCumulativeCount() + before.Bucket[i].GetCumulativeCount())
	}
}

// exponential serves the count and the sum: the text format has no buckets for it.
func (b *batch) exponential(f *family, p pmetric.ExponentialHistogramDataPoint) {
	x := b.find(f, p.Attributes(), p.Flags(), p.Timestamp())
	if x == nil {
		return
	}
	b.put(x, &dto.Metric{Histogram: &dto.Histogram{SampleCount: proto.Uint64(p.Count()), SampleSum: proto.Float64(p.Sum())}}, p.Attributes(), p.Timestamp())
}

func (b *batch) summary(f *family, p pmetric.SummaryDataPoint) {
	x := b.find(f, p.Attributes(), p.Flags(), p.Timestamp())
	if x == nil {
		return
	}
	s := &dto.Summary{SampleCount: proto.Uint64(p.Count()), SampleSum: proto.Float64(p.Sum())}
	for _, q := range p.QuantileValues().All() {
		s.Quantile = append(s.Quantile, &dto.Quantile{Quantile: proto.Float64(q.Quantile()), Value: proto.Float64(q.Value())})
	}
	slices.SortFunc(s.Quantile, func(a, b *dto.Quantile) int { return compare(a.GetQuantile(), b.GetQuantile()) })
	b.put(x, &dto.Metric{Summary: s}, p.Attributes(), p.Timestamp())
}
