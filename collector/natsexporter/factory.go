package natsexporter

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/exporter"
)

// Type is the exporter's name in configurations.
var Type = component.MustNewType("nats")

// NewFactory makes the exporter's factory.
func NewFactory() exporter.Factory {
	return exporter.NewFactory(Type, createDefaultConfig,
		exporter.WithLogs(func(_ context.Context, set exporter.Settings, cfg component.Config) (exporter.Logs, error) {
			return newExporter(set, cfg.(*Config))
		}, component.StabilityLevelAlpha))
}
