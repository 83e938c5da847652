package promrulesconnector

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/connector"
	"go.opentelemetry.io/collector/consumer"
)

// Type is the connector's name in configurations.
var Type = component.MustNewType("promrules")

// NewFactory makes the connector's factory.
func NewFactory() connector.Factory {
	return connector.NewFactory(Type, createDefaultConfig,
		connector.WithMetricsToLogs(func(_ context.Context, set connector.Settings, cfg component.Config, next consumer.Logs) (connector.Metrics, error) {
			return newConnector(set, cfg.(*Config), next)
		}, component.StabilityLevelAlpha),
	)
}
