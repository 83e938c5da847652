package rankinfo

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processorhelper"
)

// Type is the processor's name in configurations.
var Type = component.MustNewType("rankinfo")

// Config of the processor: there is nothing to choose.
type Config struct{}

// NewFactory makes the processor's factory.
func NewFactory() processor.Factory {
	return processor.NewFactory(Type, func() component.Config { return &Config{} },
		processor.WithMetrics(func(ctx context.Context, set processor.Settings, cfg component.Config, next consumer.Metrics) (processor.Metrics, error) {
			d := &describer{gpus: map[string]card{}}
			return processorhelper.NewMetrics(ctx, set, cfg, next, func(_ context.Context, md pmetric.Metrics) (pmetric.Metrics, error) {
				if out := d.pass(md); out.ResourceMetrics().Len() > 0 {
					return out, nil
				}
				return md, processorhelper.ErrSkipProcessingData
			}, processorhelper.WithCapabilities(consumer.Capabilities{}))
		}, component.StabilityLevelAlpha))
}
