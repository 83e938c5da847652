//go:build !accelerators

package collector

import "go.opentelemetry.io/collector/receiver"

// scrapers is empty: `make accelerators` builds the collector with the Prometheus receiver.
func scrapers() []receiver.Factory { return nil }
