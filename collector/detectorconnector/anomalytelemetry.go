package detectorconnector

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/pitcrew/pitcrew/detector/anomaly"
	"github.com/pitcrew/pitcrew/semconv"
)

// The anomalies' own metrics (metadata.yaml). share divides, 0 by nothing.
var (
	anomalyCounters = []struct {
		name, unit, about string
		of                func(anomaly.Counts) int64
	}{
		{semconv.AnomalySamples, "{sample}", "Values of signals that are judged", func(c anomaly.Counts) int64 { return c.Samples }},
		{semconv.AnomalyUnknown, "{sample}", "Values that were not judged: learning, set-up, another phase", func(c anomaly.Counts) int64 { return c.Unknown }},
		{semconv.AnomalyLate, "{sample}", "Values that came twice or after a later one", func(c anomaly.Counts) int64 { return c.Late }},
		{semconv.AnomalyNotANumber, "{sample}", "Values that are no finite number", func(c anomaly.Counts) int64 { return c.NotANumber }},
		{semconv.AnomalyMalformed, "{sample}", "Values without what identifies them, or of the future", func(c anomaly.Counts) int64 { return c.Malformed }},
		{semconv.AnomalyRefused, "{sample}", "Values for which there was no room, and of other nodes", func(c anomaly.Counts) int64 { return c.Refused }},
		{semconv.AnomalyEvicted, "{entity}", "GPUs and ranks forgotten at the bound", func(c anomaly.Counts) int64 { return c.Evicted }},
		{semconv.AnomalyClockSteps, "{step}", "Steps of the node's clock", func(c anomaly.Counts) int64 { return c.ClockSteps }},
		{semconv.AnomalyMuted, "{finding}", "Findings held back by a mute", func(c anomaly.Counts) int64 { return c.Muted }},
		{semconv.AnomalySuppressed, "{finding}", "Findings of one signal beyond the node's budget of information", func(c anomaly.Counts) int64 { return c.Suppressed }},
	}
	anomalyGauges = []struct {
		name, unit, about string
		of                func(anomaly.Counts) float64
	}{
		{semconv.AnomalySeries, "{series}", "Series that are held", func(c anomaly.Counts) float64 { return float64(c.Series) }},
		{semconv.AnomalySeriesUnknown, "1", "Share of the series whose last value could not be judged", func(c anomaly.Counts) float64 { return share(c.UnknownSeries, c.Series) }},
		{semconv.AnomalyCoverage, "1", "Share of the catalogue's signals of the GPUs and ranks at hand that are said and judged", func(c anomaly.Counts) float64 {
			return share(c.Series-c.UnknownSeries, c.Judgeable)
		}},
		{semconv.AnomalyOpen, "{finding}", "Findings that are open or accepted", func(c anomaly.Counts) float64 { return float64(c.Open) }},
		{semconv.AnomalyBytes, "By", "State of the series", func(c anomaly.Counts) float64 { return float64(c.Bytes) }},
	}
)

func share(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

func (a *anomalies) measure(meter metric.Meter) (metric.Registration, error) {
	var all []metric.Observable
	var failed error
	keep := func(o metric.Observable, name string, err error) {
		if err != nil && failed == nil {
			failed = fmt.Errorf("metric %s: %w", name, err)
		}
		all = append(all, o)
	}
	counters := make([]metric.Int64ObservableCounter, len(anomalyCounters))
	for i, m := range anomalyCounters {
		var err error
		counters[i], err = meter.Int64ObservableCounter(m.name, metric.WithUnit(m.unit), metric.WithDescription(m.about))
		keep(counters[i], m.name, err)
	}
	gauges := make([]metric.Float64ObservableGauge, len(anomalyGauges))
	for i, m := range anomalyGauges {
		var err error
		gauges[i], err = meter.Float64ObservableGauge(m.name, metric.WithUnit(m.unit), metric.WithDescription(m.about))
		keep(gauges[i], m.name, err)
	}
	onsets, err := meter.Int64ObservableCounter(semconv.AnomalyOnsets, metric.WithUnit("{onset}"), metric.WithDescription("Onsets of findings, by signal"))
	keep(onsets, semconv.AnomalyOnsets, err)
	asked, err := meter.Float64ObservableCounter(semconv.AnomalyAsked, metric.WithUnit("{onset}"), metric.WithDescription("False onsets that the asked rate allows in the time that was judged, by signal"))
	keep(asked, semconv.AnomalyAsked, err)
	if failed != nil {
		return nil, failed
	}
	reg, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		counts, signals := a.counts()
		for i, m := range anomalyCounters {
			o.ObserveInt64(counters[i], m.of(counts))
		}
		for i, m := range anomalyGauges {
			o.ObserveFloat64(gauges[i], m.of(counts))
		}
		for _, s := range signals {
			by := metric.WithAttributes(attribute.String(semconv.Signal, s.Signal))
			o.ObserveInt64(onsets, s.Onsets, by)
			o.ObserveFloat64(asked, s.Asked, by)
		}
		return nil
	}, all...)
	if err != nil {
		return nil, fmt.Errorf("anomalies' own metrics: %w", err)
	}
	return reg, nil
}
