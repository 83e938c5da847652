package torchreceiver

import (
	"cmp"
	"runtime/metrics"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/hook"
)

// Bounds of shedding. The memory limiter of the agent refuses ranks' samples only above these.
const (
	shedAbove    = 0.75 // of the memory limit: one more pod is shed
	restoreBelow = 0.6  // one pod fewer
	shedEvery    = time.Second
	restoreEvery = 30 * time.Second // series need so long to end
)

// shedder leaves out the samples of pods while the process is short of memory, the cheapest pod first. It touches neither the kernel log
// nor DCGM's samples, nor the lifecycle events of ranks. It is used by one goroutine.
type shedder struct {
	limit  uint64 // bytes; 0 sheds nothing
	used   func() uint64
	ration *ration
	order  []string // pods that are shed, the last one last
	at     time.Time
}

func newShedder(limitMiB int, r *ration) *shedder {
	return &shedder{limit: uint64(limitMiB) << 20, used: heapInUse, ration: r}
}

func heapInUse() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// look sheds or restores at most one pod.
func (s *shedder) look(pods []*hook.Pod, now time.Time) {
	if s.limit == 0 || now.Sub(s.at) < shedEvery {
		return
	}
	switch used := float64(s.used()) / float64(s.limit); {
	case used > shedAbove:
		s.at = now
		if p := cheapest(pods, s.ration.shed); p != nil {
			s.ration.shed[p.UID()] = true
			s.order = append(s.order, p.UID())
			p.Exceed(hook.Memory, 1)
		}
	case used < restoreBelow && len(s.order) > 0 && now.Sub(s.at) >= restoreEvery:
		s.at = now
		last := len(s.order) - 1
		delete(s.ration.shed, s.order[last])
		s.order = s.order[:last]
	}
}

// cheapest is the pod whose samples are missed least and that is not shed yet: one that exceeds a budget, then one of which no rank
// names a GPU, then the one with the fewest ranks. The last pod is never shed.
func cheapest(pods []*hook.Pod, shed map[string]bool) *hook.Pod {
	type priced struct {
		pod  *hook.Pod
		over bool
		gpus int
		all  int
	}
	var left []priced
	for _, pod := range pods {
		if shed[pod.UID()] {
			continue
		}
		p := priced{pod: pod, over: pod.OverBudget()}
		named := map[string]bool{}
		for _, r := range pod.Ranks() {
			if gpu := gpuOf(r); gpu != "" {
				named[gpu] = true
			}
			p.all++
		}
		p.gpus = len(named)
		left = append(left, p)
	}
	if len(left) < 2 {
		return nil
	}
	return slices.MinFunc(left, func(a, b priced) int {
		if a.over != b.over {
			return map[bool]int{true: -1, false: 1}[a.over]
		}
		return cmp.Or(cmp.Compare(a.gpus, b.gpus), cmp.Compare(a.all, b.all))
	}).pod
}
