//go:build !loadbalancing

package collector

import "go.opentelemetry.io/collector/exporter"

// onDemand are exporters that a build has by its tag. The load-balancing exporter brings the Kubernetes client and AWS's SDK: twice the
// program, and a third of the memory on each node.
func onDemand() []exporter.Factory { return nil }
