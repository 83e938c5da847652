package torchreceiver

import (
	"cmp"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/hook"
)

// detail is how much of a rank one sample reads.
type detail int

const (
	nothing detail = iota
	life           // whether it lives and steps, now and then
	full
)

// Bounds of what is read of pods that exceed their budget, and of ranks beyond the node's share.
const (
	lifeRanks     = 4               // ranks of a pod over budget
	lifeEveryOver = 2 * time.Second // between looks at them
	lifeEvery     = time.Second     // between looks at ranks beyond the node's share
)

// ration shares out what one sample reads among the node's pods. Pods that exceed a budget come last. It is used by one goroutine.
type ration struct {
	detailRanks int // of the node, that are read in full
	records     hook.Rate
	tokens      float64 // records that may be read now, of all pods
	at          time.Time
	shed        map[string]bool // pods that memory has no room for
}

func newRation(c *Config) *ration {
	return &ration{detailRanks: c.DetailRanks, records: c.NodeRecords, tokens: c.NodeRecords.Burst, shed: map[string]bool{}}
}

// portion is what one sample reads of one pod.
type portion struct {
	ranks   []*hook.Rank
	over    bool
	shed    bool
	full    int // so many of the ranks
	records int // at most
}

// of is the detail of the pod's i-th rank, and how often it is read.
func (p *portion) of(i int) (detail, time.Duration) {
	switch {
	case p.shed || p.over && i >= lifeRanks:
		return nothing, 0
	case p.over:
		return life, lifeEveryOver
	case i >= p.full:
		return life, lifeEvery
	}
	return full, 0
}

// share divides a sample among the pods: ranks in full by max-min fairness, smaller pods first, and records alike while many are read.
func (r *ration) share(pods []*hook.Pod, now time.Time) map[*hook.Pod]*portion {
	if !r.at.IsZero() {
		r.tokens = min(r.tokens+now.Sub(r.at).Seconds()*r.records.PerSecond, r.records.Burst)
	}
	r.at = now
	out := make(map[*hook.Pod]*portion, len(pods))
	var fair []*portion
	for _, pod := range pods {
		p := &portion{ranks: pod.Ranks(), over: pod.OverBudget(), shed: r.shed[pod.UID()]}
		out[pod] = p
		if !p.over && !p.shed {
			fair = append(fair, p)
		}
	}
	slices.SortStableFunc(fair, func(a, b *portion) int { return cmp.Compare(len(a.ranks), len(b.ranks)) })
	left := r.detailRanks
	for i, p := range fair {
		p.full = min(len(p.ranks), left/(len(fair)-i))
		left -= p.full
		p.records = len(p.ranks) * maxRecords
		if r.tokens < r.records.Burst/2 {
			p.records = min(p.records, int(max(r.tokens, 0))/len(fair))
		}
	}
	return out
}

// grant is how many of the wanted records of a pod are read. What is missing counts as excess of the pod.
func (r *ration) grant(pod *hook.Pod, p *portion, wanted int) int {
	if wanted == 0 {
		return 0
	}
	if wanted > p.records {
		pod.Exceed(hook.Records, wanted-p.records)
	}
	got := pod.Spend(hook.Records, min(wanted, p.records))
	p.records -= got
	r.tokens -= float64(got)
	return got
}
