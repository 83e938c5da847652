package promrulesconnector

import (
	"context"
	"fmt"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/otel/metric"

	"github.com/pitcrew/pitcrew/detector/promrules"
)

// selfMetrics are the runner's counts as the collector's own metrics.
type selfMetrics struct{ reg metric.Registration }

// ownMetrics: counters end in what they count, gauges say what is there now.
var ownMetrics = []struct {
	name, unit, about string
	gauge             bool
	of                func(promrules.Counts, promrules.WindowCounts) int64
}{
	{"pitcrew.rules.loaded", "{rule}", "Rules in force", true, func(c promrules.Counts, _ promrules.WindowCounts) int64 { return int64(c.Rules) }},
	{"pitcrew.rules.firing", "{alert}", "Alerts that fire", true, func(c promrules.Counts, _ promrules.WindowCounts) int64 { return int64(c.Firing) }},
	{"pitcrew.rules.evaluations", "{evaluation}", "Evaluations of rules", false, func(c promrules.Counts, _ promrules.WindowCounts) int64 { return c.Evaluations }},
	{"pitcrew.rules.failures", "{evaluation}", "Evaluations that gave an error", false, func(c promrules.Counts, _ promrules.WindowCounts) int64 { return c.Failures }},
	{"pitcrew.rules.homeless", "{alert}", "Alerts that fired for something which names no node", false, func(c promrules.Counts, _ promrules.WindowCounts) int64 { return c.Homeless }},
	{"pitcrew.rules.series", "{series}", "Series in the window", true, func(_ promrules.Counts, w promrules.WindowCounts) int64 { return int64(w.Series) }},
	{"pitcrew.rules.samples", "{sample}", "Samples in the window", true, func(_ promrules.Counts, w promrules.WindowCounts) int64 { return int64(w.Samples) }},
	{"pitcrew.rules.refused", "{sample}", "Samples of series beyond max_series", false, func(_ promrules.Counts, w promrules.WindowCounts) int64 { return w.Refused }},
	{"pitcrew.rules.late", "{sample}", "Samples not later than the last of their series", false, func(_ promrules.Counts, w promrules.WindowCounts) int64 { return w.Late }},
	{"pitcrew.rules.replaced", "{sample}", "Samples that fell out of the window before their time", false, func(_ promrules.Counts, w promrules.WindowCounts) int64 { return w.Replaced }},
}

func newSelfMetrics(set component.TelemetrySettings, read func() (promrules.Counts, promrules.WindowCounts)) (*selfMetrics, error) {
	meter := set.MeterProvider.Meter("github.com/pitcrew/pitcrew/collector/promrulesconnector")
	instruments := make([]metric.Int64Observable, len(ownMetrics))
	all := make([]metric.Observable, len(ownMetrics))
	for i, m := range ownMetrics {
		var err error
		if m.gauge {
			instruments[i], err = meter.Int64ObservableGauge(m.name, metric.WithUnit(m.unit), metric.WithDescription(m.about))
		} else {
			instruments[i], err = meter.Int64ObservableCounter(m.name, metric.WithUnit(m.unit), metric.WithDescription(m.about))
		}
		if err != nil {
			return nil, fmt.Errorf("metric %s: %w", m.name, err)
		}
		all[i] = instruments[i]
	}
	reg, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		c, w := read()
		for i, m := range ownMetrics {
			o.ObserveInt64(instruments[i], m.of(c, w))
		}
		return nil
	}, all...)
	if err != nil {
		return nil, fmt.Errorf("rules' own metrics: %w", err)
	}
	return &selfMetrics{reg}, nil
}

func (m *selfMetrics) close() error { return m.reg.Unregister() }
