package bus

import (
	"fmt"
	"strings"

	"github.com/pitcrew/pitcrew/event"
)

// gatewayMark begins the node's place in the subjects of gateways. No node of Kubernetes has it in its name, so that what a node may
// publish and what a gateway may do not meet.
const gatewayMark = "@"

// GatewaySubjects are the subjects under which a gateway may publish, for its credentials. It needs no other, and sets no conditions.
func GatewaySubjects(cluster, gateway string) string {
	return subject(eventPrefix, cluster, gatewayMark+gateway) + ".>"
}

// speaker is whose place an event takes in its subject: the gateway that its source names, else the node that it is about.
func speaker(e event.Event) string {
	if g := event.GatewayOf(e.Source); g != "" {
		return gatewayMark + g
	}
	return e.Data.Target.Node
}

// admit checks an event against who was allowed to publish it. A node speaks of itself. A gateway speaks of the ranks of any node,
// and says of them how they compare and nothing else.
func (d *Delivery) admit(spoke string) error {
	gateway, ok := strings.CutPrefix(spoke, gatewayMark)
	claim := d.Event.Data.Target.Node
	switch source := event.GatewayOf(d.Event.Source); {
	case ok && source != gateway:
		return fmt.Errorf("event %s of source %q came on the subject of gateway %q: refused", d.Event.ID, d.Event.Source, gateway)
	case ok:
		if err := event.MayGateway(d.Event); err != nil {
			return fmt.Errorf("%w: refused", err)
		}
		d.Gateway = gateway
		return nil
	case source != "":
		return fmt.Errorf("event %s of gateway %q came on the subject of node %q: refused", d.Event.ID, source, spoke)
	case claim != "" && claim != spoke:
		return fmt.Errorf("event %s speaks of node %q on the subject of node %q: refused", d.Event.ID, claim, spoke)
	}
	d.Node = spoke
	return nil
}
