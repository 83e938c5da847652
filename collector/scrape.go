//go:build accelerators

package collector

import (
	"go.opentelemetry.io/collector/receiver"

	"github.com/open-telemetry/opentelemetry-collector-contrib/receiver/prometheusreceiver"
)

// scrapers is what nodes with other makers' accelerators have beside the node's parts.
func scrapers() []receiver.Factory {
	return []receiver.Factory{
		prometheusreceiver.NewFactory(),
	}
}
