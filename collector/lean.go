//go:build !gateway

package collector

// onDemand is empty: `make gateway` builds the collector with what gateways have beside it.
func onDemand() extra { return extra{} }
