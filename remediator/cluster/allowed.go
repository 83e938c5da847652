package cluster

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// allowedFor is how long the answer to MayReplace saves ReplacePod the same question. MayReplace itself always asks. If a budget changes in
// between, the eviction is refused and the pod gets its finalizer back.
const allowedFor = 2 * time.Second

// allowances are evictions that the API server allowed in a dry run, by the pod's UID.
type allowances struct {
	mu sync.Mutex
	by map[types.UID]allowance
}

// allowance holds for one version of a pod: what changed it may change the answer.
type allowance struct {
	version string
	until   time.Time
}

func (a *allowances) has(p *corev1.Pod, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	got, ok := a.by[p.UID]
	return ok && p.ResourceVersion != "" && got.version == p.ResourceVersion && now.Before(got.until)
}

func (a *allowances) grant(p *corev1.Pod, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid, old := range a.by {
		if !now.Before(old.until) {
			delete(a.by, uid)
		}
	}
	if a.by == nil {
		a.by = map[types.UID]allowance{}
	}
	a.by[p.UID] = allowance{p.ResourceVersion, now.Add(allowedFor)}
}
