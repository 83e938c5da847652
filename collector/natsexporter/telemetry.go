package natsexporter

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/otel/metric"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/semconv"
)

// selfMetrics are the publisher's counts as the collector's own metrics (metadata.yaml).
type selfMetrics struct {
	reg     metric.Registration
	ack     metric.Float64Histogram
	refused atomic.Int64
}

func newSelfMetrics(set component.TelemetrySettings, counts func() (bus.Counts, int64)) (*selfMetrics, error) {
	meter := set.MeterProvider.Meter("github.com/pitcrew/pitcrew/collector/natsexporter")
	m := &selfMetrics{}
	var err error
	m.ack, err = meter.Float64Histogram(semconv.NATSAckDuration, metric.WithUnit("s"),
		metric.WithDescription("From taking a finding to JetStream's acknowledgement"),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30, 300))
	if err != nil {
		return nil, fmt.Errorf("metric pitcrew.nats.ack.duration: %w", err)
	}
	table := []struct {
		name, unit, about string
		of                func(c bus.Counts, conditions int64) int64
	}{
		{semconv.NATSSent, "{event}", "Events sent, resends counted", func(c bus.Counts, _ int64) int64 { return c.Sent }},
		{semconv.NATSAcked, "{event}", "Events acknowledged by JetStream", func(c bus.Counts, _ int64) int64 { return c.Acked }},
		{semconv.NATSFailed, "{event}", "Attempts that were not acknowledged", func(c bus.Counts, _ int64) int64 { return c.Failed }},
		{semconv.NATSDropped, "{event}", "Events dropped because the queue was full", func(c bus.Counts, _ int64) int64 { return c.Dropped }},
		{semconv.NATSRefused, "{record}", "Log records that are no finding", func(bus.Counts, int64) int64 { return m.refused.Load() }},
	}
	all := []metric.Observable{}
	counters := make([]metric.Int64ObservableCounter, len(table))
	for i, row := range table {
		c, err := meter.Int64ObservableCounter(row.name, metric.WithUnit(row.unit), metric.WithDescription(row.about))
		if err != nil {
			return nil, fmt.Errorf("metric %s: %w", row.name, err)
		}
		counters[i], all = c, append(all, c)
	}
	gauges := map[string]metric.Int64ObservableGauge{}
	for name, about := range map[string]string{
		semconv.NATSWaiting:           "Events without an acknowledgement yet",
		semconv.NATSConditionsWaiting: "Conditions not set yet",
	} {
		g, err := meter.Int64ObservableGauge(name, metric.WithUnit("{event}"), metric.WithDescription(about))
		if err != nil {
			return nil, fmt.Errorf("metric %s: %w", name, err)
		}
		gauges[name], all = g, append(all, g)
	}
	m.reg, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		c, conditions := counts()
		for i, row := range table {
			o.ObserveInt64(counters[i], row.of(c, conditions))
		}
		o.ObserveInt64(gauges[semconv.NATSWaiting], c.Waiting)
		o.ObserveInt64(gauges[semconv.NATSConditionsWaiting], conditions)
		return nil
	}, all...)
	if err != nil {
		return nil, fmt.Errorf("exporter's own metrics: %w", err)
	}
	return m, nil
}

func (m *selfMetrics) acked(d time.Duration) { m.ack.Record(context.Background(), d.Seconds()) }

func (m *selfMetrics) close() { _ = m.reg.Unregister() }
