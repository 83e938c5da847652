package event

import (
	"fmt"
	"slices"
	"strings"
)

// GatewaySource is the CloudEvents source of a component of a gateway, which speaks of the ranks of whole jobs.
func GatewaySource(cluster, gateway, component string) string {
	return "//" + cluster + "/gateway/" + gateway + "/" + component
}

// GatewayOf is the gateway that a source names; empty when it is not one of a gateway.
func GatewayOf(source string) string {
	parts := strings.Split(source, "/")
	if len(parts) != 6 || parts[0] != "" || parts[1] != "" || parts[3] != "gateway" {
		return ""
	}
	return parts[4]
}

// GatewaySignals are what a gateway may say of a rank or a job: how it compares with its peers, and a job's class with others. It may also say what an operator's
// alert rule found (cause kind rule). What happened on a node is for that node alone to say.
var GatewaySignals = []string{"rank/straggler", "rank/imbalance", "rank/absent", "torch/desync", "job/slowdown", "class/slow-driver", "class/slow-framework"}

// MayGateway reports why a gateway may not say an event; nil: it may. Nothing that it says is certain, so nothing is a fault or fatal.
func MayGateway(e Event) error {
	signal := e.Data.Cause.Signal()
	switch {
	case e.Type != Anomaly && e.Type != Recovery:
		return fmt.Errorf("event %s is of type %s, which is not a gateway's to say", e.ID, e.Type)
	case e.Data.Severity == Fatal:
		return fmt.Errorf("event %s of a gateway calls itself fatal", e.ID)
	case e.Data.Cause.Kind != "rule" && !slices.Contains(GatewaySignals, signal):
		return fmt.Errorf("event %s says %s, which only the node itself may", e.ID, signal)
	case e.Data.Cause.Code != "":
		return fmt.Errorf("event %s of a gateway has a code", e.ID)
	case e.Data.Advice != "":
		return fmt.Errorf("event %s of a gateway advises %q", e.ID, e.Data.Advice)
	}
	return nil
}
