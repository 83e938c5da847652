package collector

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// scraped is the Prometheus exporter, less a copy. It says of itself that it changes what it is given (it writes the resource's
// attributes on each point), and so everything that the detector and it both read would be copied for it: a tenth of what an agent
// costs. What it is given by the processor podlabels is a copy already. What is shared all the same is marked read-only by the
// collector, and copied here.
func scraped(stock exporter.Factory) exporter.Factory {
	return exporter.NewFactory(stock.Type(), stock.CreateDefaultConfig,
		exporter.WithMetrics(func(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Metrics, error) {
			e, err := stock.CreateMetrics(ctx, set, cfg)
			if err != nil {
				return nil, err
			}
			return sharing{e}, nil
		}, stock.MetricsStability()))
}

// sharing lets an exporter that changes its input share it with others.
type sharing struct{ exporter.Metrics }

// Capabilities implements consumer.Metrics.
func (sharing) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

// ConsumeMetrics implements consumer.Metrics.
func (s sharing) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	if md.IsReadOnly() {
		own := pmetric.NewMetrics()
		md.CopyTo(own)
		md = own
	}
	return s.Metrics.ConsumeMetrics(ctx, md)
}
