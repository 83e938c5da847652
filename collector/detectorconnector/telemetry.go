package detectorconnector

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/otel/metric"

	"github.com/pitcrew/pitcrew/detector"
	"github.com/pitcrew/pitcrew/semconv"
)

// selfMetrics are the engine's counts as the collector's own metrics (metadata.yaml).
type selfMetrics struct{ regs []metric.Registration }

var ownMetrics = []struct {
	name, unit, about string
	of                func(detector.Counts) int64
}{
	{semconv.DetectorSamples, "{sample}", "Values and records judged", func(c detector.Counts) int64 { return c.Samples }},
	{semconv.DetectorFindings, "{finding}", "Findings made", func(c detector.Counts) int64 { return c.Findings }},
	{semconv.DetectorHistory, "{record}", "Kernel lines of before, not published", func(c detector.Counts) int64 { return c.History }},
	{semconv.DetectorEchoes, "{record}", "Kernel lines and Xids of DCGM that only follow from another, or say what was said", func(c detector.Counts) int64 { return c.Echoes }},
	{semconv.DetectorTrifles, "{record}", "Kernel lines without a code that the table calls information", func(c detector.Counts) int64 { return c.Trifles }},
	{semconv.DetectorSuppressed, "{record}", "Repeated kernel lines beyond the budget of their key", func(c detector.Counts) int64 { return c.Suppressed }},
	{semconv.DetectorMalformed, "{record}", "Samples without what identifies them", func(c detector.Counts) int64 { return c.Malformed }},
	{semconv.DetectorStale, "{sample}", "Samples of superseded attempts", func(c detector.Counts) int64 { return c.Stale }},
	{semconv.DetectorEvicted, "{series}", "Series and findings dropped at the bound", func(c detector.Counts) int64 { return c.Evicted }},
}

func newSelfMetrics(set component.TelemetrySettings, sum func() (detector.Counts, int64), a *anomalies) (*selfMetrics, error) {
	meter := set.MeterProvider.Meter("github.com/pitcrew/pitcrew/collector/detectorconnector")
	counters := make([]metric.Int64ObservableCounter, len(ownMetrics))
	all := make([]metric.Observable, 0, len(ownMetrics)+1)
	for i, m := range ownMetrics {
		c, err := meter.Int64ObservableCounter(m.name, metric.WithUnit(m.unit), metric.WithDescription(m.about))
		if err != nil {
			return nil, fmt.Errorf("metric %s: %w", m.name, err)
		}
		counters[i], all = c, append(all, c)
	}
	lost, err := meter.Int64ObservableCounter(semconv.DetectorLost, metric.WithUnit("{finding}"), metric.WithDescription("Findings dropped because the next consumer kept refusing"))
	if err != nil {
		return nil, fmt.Errorf("metric pitcrew.detector.lost: %w", err)
	}
	reg, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		counts, dropped := sum()
		for i, m := range ownMetrics {
			o.ObserveInt64(counters[i], m.of(counts))
		}
		o.ObserveInt64(lost, dropped)
		return nil
	}, append(all, lost)...)
	if err != nil {
		return nil, fmt.Errorf("detector's own metrics: %w", err)
	}
	m := &selfMetrics{[]metric.Registration{reg}}
	if a != nil {
		if reg, err = a.measure(meter); err != nil {
			return nil, err
		}
		m.regs = append(m.regs, reg)
	}
	return m, nil
}

func (m *selfMetrics) close() (err error) {
	for _, r := range m.regs {
		err = errors.Join(err, r.Unregister())
	}
	return err
}

// sum adds the counts of all nodes' engines.
func (c *core) sum() (sum detector.Counts, lost int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.engines {
		n := e.Counts()
		sum.Samples += n.Samples
		sum.Findings += n.Findings
		sum.History += n.History
		sum.Echoes += n.Echoes
		sum.Trifles += n.Trifles
		sum.Suppressed += n.Suppressed
		sum.Malformed += n.Malformed
		sum.Stale += n.Stale
		sum.Evicted += n.Evicted
	}
	return sum, c.lost
}
