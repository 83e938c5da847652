package gpuprocessreceiver

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
)

// Type is the receiver's name in configurations.
var Type = component.MustNewType("gpuprocess")

// NewFactory makes the receiver's factory.
func NewFactory() receiver.Factory {
	return receiver.NewFactory(Type, createDefaultConfig,
		receiver.WithLogs(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Logs) (receiver.Logs, error) {
			return newReceiver(set, cfg.(*Config), next)
		}, component.StabilityLevelAlpha))
}
