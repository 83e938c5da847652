//go:build loadbalancing

package collector

import (
	"go.opentelemetry.io/collector/exporter"

	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/loadbalancingexporter"
)

// onDemand are exporters that a build has by its tag.
func onDemand() []exporter.Factory {
	return []exporter.Factory{
		loadbalancingexporter.NewFactory(),
	}
}
