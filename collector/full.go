//go:build gateway

package collector

import (
	"go.opentelemetry.io/collector/connector"
	"go.opentelemetry.io/collector/exporter"

	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/loadbalancingexporter"

	"github.com/pitcrew/pitcrew/collector/promrulesconnector"
)

// onDemand is what gateways have beside the node's parts.
func onDemand() extra {
	return extra{
		connectors: []connector.Factory{
			promrulesconnector.NewFactory(),
		},
		exporters: []exporter.Factory{
			loadbalancingexporter.NewFactory(),
		},
	}
}
