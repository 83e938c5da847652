package dcgmreceiver

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
)

// Type is the receiver's name in a collector's configuration.
var Type = component.MustNewType("dcgm")

// ScopeName names the instrumentation scope of everything this receiver emits but the DCGM_FI_* metrics.
const ScopeName = "github.com/pitcrew/pitcrew/receivers/dcgmreceiver"

// DCGMNamesScope names the scope of the DCGM_FI_* metrics, so that a pipeline can tell the doubles by one comparison.
const DCGMNamesScope = ScopeName + "/dcgmnames"

// NewFactory returns the factory of the dcgm receiver: metrics, and logs for policy violations.
func NewFactory() receiver.Factory {
	return receiver.NewFactory(Type,
		func() component.Config { return NewDefaultConfig() },
		receiver.WithMetrics(createMetrics, component.StabilityLevelAlpha),
		receiver.WithLogs(createLogs, component.StabilityLevelAlpha),
	)
}

func createMetrics(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
	return attach(set, cfg.(*Config), func(r *dcgmReceiver) { r.metrics = next }), nil
}

func createLogs(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Logs) (receiver.Logs, error) {
	return attach(set, cfg.(*Config), func(r *dcgmReceiver) { r.logs = next }), nil
}
