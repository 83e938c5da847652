package detectorconnector

import (
	"context"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/collector/podresources"
	"github.com/pitcrew/pitcrew/detector"
	"github.com/pitcrew/pitcrew/event"
)

const (
	askDeadline = 100 * time.Millisecond // for the kubelet, on the path of findings
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
// older than a second, and does with the answer it has when the kubelet is slow or gone. What names a pod already is left as it is.
func (c *core) enrich(ctx context.Context, e *event.Event) {
	t := &e.Data.Target
	if t.Pod != "" {
		return
	}
	var holders []podresources.Holder
	if t.GPU != "" {
		c.pods.Refresh(ctx, askDeadline)
		holders = podsOf(c.pods.HoldersOf(t.GPU, t.MIG))
	}
	process := t.PodUID != "" && t.Rank == nil // the pod is that of the process on a kernel line; of a rank it is the rank's own
	switch alone, fatal := len(holders) == 1, e.Data.Severity.AtLeast(event.Fatal); {
	case alone:
		t.Namespace, t.Pod = holders[0].Namespace, holders[0].Pod
		if process {
			t.PodUID = ""
		}
	case process && fatal && (t.GPU == "" || len(holders) > 1): // a GPU that is lost is lost to all of them
		t.PodUID = ""
	case process && t.GPU != "": // of a GPU that several pods share none is the faulty one, unless the fault is one process's
		t.Namespace, t.Pod, _ = c.pods.PodOfUID(t.PodUID)
	}
	if t.GPU != "" && t.Pod != "" {
		c.nameJob(t, len(holders) == 1)
	}
}

// nameJob names the job of the target's pod, and the rank that uses the GPU if the pod holds it alone.
func (c *core) nameJob(t *event.Target, alone bool) {
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

// podsOf lists each pod among the holders once.
func podsOf(holders []podresources.Holder) (pods []podresources.Holder) {
	for _, h := range holders {
		if !slices.ContainsFunc(pods, func(p podresources.Holder) bool { return p.Namespace == h.Namespace && p.Pod == h.Pod }) {
			pods = append(pods, h)
		}
	}
	return pods
}
