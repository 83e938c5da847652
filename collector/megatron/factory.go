package megatron

import (
	"context"
	"fmt"
	"math"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processorhelper"
)

// Type is the processor's name in configurations.
var Type = component.MustNewType("megatron")

// Config of the processor.
type Config struct {
	// PeakTFLOPS is what one accelerator can do, in TFLOP/s; 0: no MFU is told.
	PeakTFLOPS float64 `mapstructure:"peak_tflops"`
}

// Validate refuses what cannot be meant.
func (c *Config) Validate() error {
	if c.PeakTFLOPS < 0 || math.IsNaN(c.PeakTFLOPS) || math.IsInf(c.PeakTFLOPS, 0) {
		return fmt.Errorf("peak_tflops: %v is no speed", c.PeakTFLOPS)
	}
	return nil
}

// NewFactory makes the processor's factory.
func NewFactory() processor.Factory {
	return processor.NewFactory(Type, func() component.Config { return &Config{} },
		processor.WithMetrics(func(ctx context.Context, set processor.Settings, cfg component.Config, next consumer.Metrics) (processor.Metrics, error) {
			t := newTranslator(cfg.(*Config).PeakTFLOPS, time.Now)
			return processorhelper.NewMetrics(ctx, set, cfg, next, func(_ context.Context, md pmetric.Metrics) (pmetric.Metrics, error) {
				if keep(md); md.MetricCount() == 0 {
					return md, processorhelper.ErrSkipProcessingData
				}
				t.translate(md)
				return md, nil
			}, processorhelper.WithCapabilities(consumer.Capabilities{MutatesData: true}))
		}, component.StabilityLevelAlpha))
}
