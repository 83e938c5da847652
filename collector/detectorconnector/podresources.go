package detectorconnector

import (
	"context"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

const askDeadline = 100 * time.Millisecond // for the kubelet, on the path of a finding

// enrich names the pod that holds the target's GPU. It asks the kubelet when the answer it has is older than a second, and does
// with the answer it has when the kubelet is slow or gone. A GPU that several pods share names none: none is the faulty one.
func (c *core) enrich(ctx context.Context, t *event.Target) {
	if t.GPU == "" || t.Pod != "" {
		return
	}
	c.pods.Refresh(ctx, askDeadline)
	holders := c.pods.Holders(t.GPU)
	if len(holders) == 0 {
		return
	}
	for _, h := range holders {
		if h.Namespace != holders[0].Namespace || h.Pod != holders[0].Pod {
			return
		}
	}
	t.Namespace, t.Pod = holders[0].Namespace, holders[0].Pod
}
