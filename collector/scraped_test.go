package collector

import (
	"context"
	"testing"

	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/prometheusexporter"
)

// changing is an exporter that writes on what it is given, as the Prometheus exporter does.
type changing struct {
	exporter.Metrics
	next consumertest.MetricsSink
}

func (c *changing) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	md.ResourceMetrics().At(0).Resource().Attributes().PutStr("written", "yes")
	return c.next.ConsumeMetrics(ctx, md)
}

func TestWhatIsSharedIsCopiedForTheEndpointAndWhatIsNotIsNot(t *testing.T) {
	batch := func() pmetric.Metrics {
		md := pmetric.NewMetrics()
		md.ResourceMetrics().AppendEmpty()
		return md
	}
	written := func(md pmetric.Metrics) bool {
		_, ok := md.ResourceMetrics().At(0).Resource().Attributes().Get("written")
		return ok
	}
	c := &changing{}
	shared, own := batch(), batch()
	shared.MarkReadOnly() // as the collector does before it gives one batch to several
	for _, md := range []pmetric.Metrics{shared, own} {
		if err := (sharing{c}).ConsumeMetrics(t.Context(), md); err != nil {
			t.Fatal(err)
		}
	}
	if written(shared) || !written(own) || len(c.next.AllMetrics()) != 2 || !written(c.next.AllMetrics()[0]) {
		t.Errorf("the shared batch was written on: %v; the other was copied: %v", written(shared), !written(own))
	}
}

func TestTheEndpointsExporterTakesPartInNoCopy(t *testing.T) {
	f := scraped(prometheusexporter.NewFactory())
	cfg := f.CreateDefaultConfig()
	cfg.(*prometheusexporter.Config).NetAddr.Endpoint = "127.0.0.1:0"
	e, err := f.CreateMetrics(t.Context(), exportertest.NewNopSettings(f.Type()), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if e.Capabilities() != (consumer.Capabilities{}) {
		t.Error("all that the detector reads would be copied for it")
	}
	if f.Type().String() != "prometheus" {
		t.Errorf("it is called %s", f.Type())
	}
}
