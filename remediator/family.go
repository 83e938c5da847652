package remediator

import (
	"slices"
	"strings"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

// family is a group of signals that move together for one reason: of each family one is a witness.
type family struct {
	name string
	host bool // it is of the host or of a port, and not of one GPU
}

// metricFamilies are the families of what the node itself measures, by metric: DCGM and the kernel. What a training pod says of itself is in
// none, so that no pod can confirm its own slowness. Nor is what a slow rank causes: the load of its GPU and the power that it draws.
var metricFamilies = map[string]family{
	semconv.HWTemperature:         {name: "temperature"},
	semconv.GPUTemperatureMargin:  {name: "temperature"},
	semconv.GPUClock:              {name: "clock"},
	semconv.GPUThrottle:           {name: "throttle"},
	semconv.GPUPowerLimit:         {name: "power"},
	semconv.HWErrors:              {name: "memory"},
	semconv.GPUNVLinkErrors:       {name: "nvlink"},
	semconv.GPUPCIeReplay:         {name: "pcie"},
	semconv.GPUPCIeCorrectable:    {name: "pcie"},
	semconv.GPUPCIeLinkWidth:      {name: "pcie"},
	semconv.GPUPCIeLinkGeneration: {name: "pcie"},
	semconv.FabricErrors:          {name: "nic", host: true},
}

// causeFamilies are the same of conditions that need no statistics, by signal or kind.
var causeFamilies = map[string]family{
	"gpu/thermal": {name: "temperature"}, "gpu/ecc": {name: "memory"}, "gpu/row-remap": {name: "memory"}, "gpu/nvlink": {name: "nvlink"},
	"gpu/pcie": {name: "pcie"}, "nvlink": {name: "nvlink"}, "pcie": {name: "pcie", host: true}, "nic": {name: "nic", host: true},
	"fabric": {name: "nic", host: true},
}

// familiesOf are the families of what a node's event says that the node itself measured. host: they are of the whole host.
func familiesOf(e event.Event) (names []string, host bool) {
	if event.GatewayOf(e.Source) != "" {
		return nil, false
	}
	c := e.Data.Cause
	for _, key := range []string{c.Signal(), c.Kind} {
		if f, ok := causeFamilies[key]; ok {
			return []string{f.name}, f.host
		}
	}
	if c.Kind != "anomaly" {
		return nil, false
	}
	signals := []string{e.Data.Evidence.Signal}
	for _, w := range e.Data.Evidence.Signals {
		signals = append(signals, w.Signal)
	}
	for _, s := range signals {
		metric, _, _ := strings.Cut(s, "{")
		if f, ok := metricFamilies[metric]; ok && !slices.Contains(names, f.name) {
			names, host = append(names, f.name), host || f.host
		}
	}
	slices.Sort(names)
	return names, host
}
