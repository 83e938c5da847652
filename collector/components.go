package collector

import (
	"errors"

	"go.opentelemetry.io/collector/connector"
	"go.opentelemetry.io/collector/connector/forwardconnector"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/debugexporter"
	"go.opentelemetry.io/collector/exporter/otlpexporter"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/memorylimiterprocessor"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"

	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/healthcheckextension"
	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage"

	"github.com/pitcrew/pitcrew/collector/accelerators"
	"github.com/pitcrew/pitcrew/collector/detectorconnector"
	"github.com/pitcrew/pitcrew/collector/megatron"
	"github.com/pitcrew/pitcrew/collector/natsexporter"
	"github.com/pitcrew/pitcrew/collector/pilotextension"
	"github.com/pitcrew/pitcrew/collector/podlabels"
	"github.com/pitcrew/pitcrew/collector/promexporter"
	"github.com/pitcrew/pitcrew/collector/rankinfo"
	"github.com/pitcrew/pitcrew/collector/statementsextension"
	"github.com/pitcrew/pitcrew/receivers/dcgmreceiver"
	"github.com/pitcrew/pitcrew/receivers/fabricreceiver"
	"github.com/pitcrew/pitcrew/receivers/gpuprocessreceiver"
	"github.com/pitcrew/pitcrew/receivers/torchreceiver"
	"github.com/pitcrew/pitcrew/receivers/xidreceiver"
)

// The distribution: what a configuration may name. manifest.yaml says the same to the OpenTelemetry Collector Builder; a test
// keeps the two equal.
func receivers() []receiver.Factory {
	return append([]receiver.Factory{
		xidreceiver.NewFactory(),
		torchreceiver.NewFactory(),
		dcgmreceiver.NewFactory(),
		gpuprocessreceiver.NewFactory(),
		fabricreceiver.NewFactory(),
		otlpreceiver.NewFactory(),
	}, scrapers()...)
}

func processors() []processor.Factory {
	return []processor.Factory{
		megatron.NewFactory(),
		podlabels.NewFactory(),
		accelerators.NewFactory(),
		rankinfo.NewFactory(),
		memorylimiterprocessor.NewFactory(),
	}
}

func connectors() []connector.Factory {
	return append([]connector.Factory{
		detectorconnector.NewFactory(),
		forwardconnector.NewFactory(),
	}, onDemand().connectors...)
}

func exporters() []exporter.Factory {
	return append([]exporter.Factory{
		natsexporter.NewFactory(),
		promexporter.NewFactory(),
		otlpexporter.NewFactory(),
		debugexporter.NewFactory(),
	}, onDemand().exporters...)
}

func extensions() []extension.Factory {
	return []extension.Factory{
		pilotextension.NewFactory(),
		statementsextension.NewFactory(),
		healthcheckextension.NewFactory(),
		filestorage.NewFactory(),
	}
}

// extra are parts that a build has by the tag gateway. The load-balancing exporter brings the Kubernetes client and AWS's SDK, the rules
// Prometheus' query engine: more than twice the program, and memory on each node for what no node needs.
type extra struct {
	connectors []connector.Factory
	exporters  []exporter.Factory
}

// Factories gives every component by its name.
func Factories() (otelcol.Factories, error) {
	f := otelcol.Factories{Telemetry: otelconftelemetry.NewFactory()}
	var errs [5]error
	f.Receivers, errs[0] = otelcol.MakeFactoryMap(receivers()...)
	f.Processors, errs[1] = otelcol.MakeFactoryMap(processors()...)
	f.Connectors, errs[2] = otelcol.MakeFactoryMap(connectors()...)
	f.Exporters, errs[3] = otelcol.MakeFactoryMap(exporters()...)
	f.Extensions, errs[4] = otelcol.MakeFactoryMap(extensions()...)
	return f, errors.Join(errs[:]...)
}
