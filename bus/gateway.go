package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

// gatewayMark begins the node's place in the subjects of gateways. No node of Kubernetes has it in its name, so that what a node may
// publish and what a gateway may do not meet.
const gatewayMark = "@"

const (
	findingsFor  = 10 * time.Minute // after which a finding is forgotten that its gateway has not set again
	findingsMost = 64 << 20         // bytes, of all gateways
	asideMost    = 64 << 20         // bytes of events that were set aside
	noticesMost  = 64 << 20         // bytes of the records of notices; one has a few kilobytes
)

func (b *Bus) findings() Bucket[Condition] { return NewBucket[Condition](b, FindingBucket) }

// foundID is the key under which a gateway's finding lies in its bucket.
func (b *Bus) foundID(c Condition) string {
	return b.cluster + "\n" + gatewayMark + c.Gateway + "\n" + c.Key
}

// ours reports whether a key begins with the cluster's name.
func (b *Bus) ours(key string) bool { return strings.HasPrefix(key, b.cluster+"\n") }

func (b *Bus) setFound(ctx context.Context, c Condition) error {
	if c.Active {
		return b.findings().Set(ctx, b.foundID(c), c)
	}
	return b.findings().Remove(ctx, b.foundID(c))
}

// Found are the findings of the cluster's gateways that stand, as each was told last. What does not lie where its gateway may write, or
// is not a gateway's to say, is left out and told in refused.
func (b *Bus) Found(ctx context.Context) (all []Condition, refused []error, err error) {
	refuse := func(key string, err error) { refused = append(refused, fmt.Errorf("finding %q: %w", key, err)) }
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err = b.findings().refusing(refuse).Watch(ctx, cancel, func(v Change[Condition]) {
		if v.Deleted || !b.ours(v.Key) {
			return
		}
		c, err := b.admitFound(v)
		if err != nil {
			refuse(v.Key, err)
			return
		}
		all = append(all, c)
	})
	return all, refused, err
}

// WatchFound follows the findings of the cluster's gateways: each as it is set, and not active once it is taken away. current is called when all
// that stood has been told. What its gateway may not say is refused.
func (b *Bus) WatchFound(ctx context.Context, current func(), handle func(Condition), refused func(key string, err error)) error {
	return b.findings().refusing(refused).Watch(ctx, current, func(v Change[Condition]) {
		switch parts := strings.SplitN(v.Key, "\n", 3); {
		case !b.ours(v.Key):
		case v.Deleted:
			if len(parts) == 3 {
				handle(Condition{Gateway: strings.TrimPrefix(parts[1], gatewayMark), Key: parts[2]})
			}
		default:
			c, err := b.admitFound(v)
			if err != nil {
				refused(v.Key, err)
				return
			}
			handle(c)
		}
	})
}

func (b *Bus) admitFound(v Change[Condition]) (Condition, error) {
	c := v.Value
	e, err := event.Decode(c.Raw)
	switch {
	case err != nil:
		return c, err
	case v.Key != b.foundID(c):
		return c, fmt.Errorf("it calls itself %q of gateway %q", c.Key, c.Gateway)
	case event.GatewayOf(e.Source) != c.Gateway:
		return c, fmt.Errorf("its source is %q", e.Source)
	case e.Data.Target.Node != c.Node:
		return c, fmt.Errorf("it is of node %q and speaks of %q", c.Node, e.Data.Target.Node)
	case !strings.HasPrefix(c.Key, e.Data.Cause.Signal()+" "):
		return c, fmt.Errorf("it says %s", e.Data.Cause.Signal())
	}
	c.Event, c.Since = &e, v.Stored
	return c, event.MayGateway(e)
}

// speaker is whose place an event takes in its subject: the gateway that its source names, else the node that it is about.
func speaker(source, node string) string {
	if g := event.GatewayOf(source); g != "" {
		return gatewayMark + g
	}
	return node
}

// ErrForged is wrapped for an event that its publisher may not send: it speaks for another node or gateway.
var ErrForged = errors.New("refused, since its publisher may not say that")

// admit checks an event against who was allowed to publish it. A node speaks of itself. A gateway speaks of the ranks of any node,
// and says of them how they compare and nothing else.
func (d *Delivery) admit(spoke string) error {
	gateway, ok := strings.CutPrefix(spoke, gatewayMark)
	claim := d.Event.Data.Target.Node
	switch source := event.GatewayOf(d.Event.Source); {
	case ok && source != gateway:
		return fmt.Errorf("event %s of source %q came on the subject of gateway %q: %w", d.Event.ID, d.Event.Source, gateway, ErrForged)
	case ok:
		if err := event.MayGateway(d.Event); err != nil {
			return fmt.Errorf("%w: %w", err, ErrForged)
		}
		d.Gateway = gateway
		return nil
	case source != "":
		return fmt.Errorf("event %s of gateway %q came on the subject of node %q: %w", d.Event.ID, source, spoke, ErrForged)
	case claim != "" && claim != spoke:
		return fmt.Errorf("event %s speaks of node %q on the subject of node %q: %w", d.Event.ID, claim, spoke, ErrForged)
	}
	d.Node = spoke
	return nil
}
