package promexporter

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"
)

// Type is the exporter's name in configurations: the stock exporter's.
var Type = component.MustNewType("prometheus")

// NewFactory makes the exporter's factory.
func NewFactory() exporter.Factory {
	return exporter.NewFactory(Type, createDefaultConfig,
		exporter.WithMetrics(func(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Metrics, error) {
			e := newEndpoint(cfg.(*Config), set)
			return exporterhelper.NewMetrics(ctx, set, cfg, e.store.consume,
				exporterhelper.WithStart(e.start), exporterhelper.WithShutdown(e.shutdown), exporterhelper.WithTimeout(exporterhelper.TimeoutConfig{}),
				exporterhelper.WithCapabilities(consumer.Capabilities{})) // what comes in is read and not changed: nothing is copied for it
		}, component.StabilityLevelBeta))
}
