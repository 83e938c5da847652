package detectorconnector

import (
	"context"
	"time"

	"github.com/pitcrew/pitcrew/detector"
	"github.com/pitcrew/pitcrew/event"
)

const (
	askDeadline = 100 * time.Millisecond // for the kubelet, on the path of a finding
	rankFor     = time.Minute            // a rank that says nothing no longer uses its GPU
)

// rankSeen is the rank that last said that it uses a GPU.
type rankSeen struct {
	pod  string // UID
	rank int
	at   time.Time // by this process's clock
}

// uses notes which rank uses which GPU. The caller holds mu.
func (c *core) uses(t event.Target) {
	if t.GPU == "" || t.Rank == nil {
		return
	}
	if _, known := c.ranks[t.GPU]; known || len(c.ranks) < detector.DefaultMaxSeries {
		c.ranks[t.GPU] = rankSeen{t.PodUID, *t.Rank, time.Now()}
	}
}

// enrich names the pod that holds the target's GPU, its job, and the rank that uses it. It asks the kubelet when the answer it has is
// older than a second, and does with the answer it has when the kubelet is slow or gone.
//
// Of a GPU that several pods share, none is the faulty one, and none is named: but the pod of the process that the kernel names, where
// the fault is that process's alone. A GPU that is lost is lost to all of them. What names a pod already is left as it is.
func (c *core) enrich(ctx context.Context, e *event.Event) {
	t := &e.Data.Target
	if t.Pod != "" {
		return
	}
	fatal, process := e.Data.Severity.AtLeast(event.Fatal), ""
	if t.Rank == nil { // of a rank it is the rank's own pod; of a kernel line the process's
		process, t.PodUID = t.PodUID, ""
	}
	if t.GPU == "" {
		if t.Rank == nil && !fatal {
			t.PodUID = process
		}
		return
	}
	c.pods.Refresh(ctx, askDeadline)
	alone, several := false, false
	for i, h := range c.pods.HoldersOf(t.GPU, t.MIG) {
		switch {
		case i == 0:
			t.Namespace, t.Pod, alone = h.Namespace, h.Pod, true
		case h.Namespace != t.Namespace || h.Pod != t.Pod:
			alone, several = false, true
		}
	}
	if several {
		t.Namespace, t.Pod = "", ""
	}
	if process != "" && !alone && (!several || !fatal) {
		t.PodUID = process
		t.Namespace, t.Pod, _ = c.pods.PodOfUID(process)
	}
	if t.Pod == "" {
		return
	}
	p, known := c.pods.Pod(t.Namespace, t.Pod)
	if known && t.Job == nil {
		t.Job = p.Job
	}
	uses := c.pods.UUID(t.GPU, t.MIG)
	c.mu.Lock()
	r, ok := c.ranks[uses]
	c.mu.Unlock()
	if ok && t.Rank == nil && alone && time.Since(r.at) < rankFor && (!known || r.pod == p.UID) {
		t.Rank = &r.rank
	}
}
