package podlabels

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/pitcrew/pitcrew/collector/podresources"
	"github.com/pitcrew/pitcrew/semconv"
)

// labels are what is added to one point.
type labels struct {
	podresources.Holder
	job  string
	rank int64 // -1: none
}

// labelsOf says what is added to a GPU's points: one entry for each series.
func (l *labeller) labelsOf(of gpuPart, in spelling, now time.Time) []labels {
	number := int64(-1)
	if r, ok := l.ranks[l.pods.UUID(of.uuid, of.instance)]; ok && in.ranks && now.Sub(r.seen) < rankFor {
		number = r.number
	}
	holders := l.pods.HoldersOf(of.uuid, of.instance)
	if len(holders) == 0 && number >= 0 { // a rank outside of Kubernetes
		return []labels{{rank: number}}
	}
	out := make([]labels, len(holders))
	for i, h := range holders {
		out[i] = labels{Holder: h, rank: -1}
		if in.job {
			out[i].job = l.jobOf(h)
		}
		if len(holders) == 1 {
			out[i].rank = number
		}
	}
	return out
}

// jobOf names the job whose pod holds a GPU; empty where it is of none, or nobody knows.
func (l *labeller) jobOf(h podresources.Holder) string {
	if p, ok := l.pods.Pod(h.Namespace, h.Pod); ok && p.Job != nil {
		return p.Job.Name
	}
	return ""
}

func (h labels) put(a pcommon.Map, in spelling) {
	if h.Pod != "" {
		a.PutStr(in.namespace, h.Namespace)
		a.PutStr(in.pod, h.Pod)
		a.PutStr(in.container, h.Container)
	}
	if h.job != "" {
		a.PutStr(jobAttribute, h.job)
	}
	if h.rank >= 0 {
		a.PutInt(semconv.Rank, h.rank)
	}
}

// named gives the labels of a point that says itself whose it is, as those of other makers' accelerators do.
func (l *labeller) named(a pcommon.Map, in spelling) ([]labels, bool) {
	if _, ok := a.Get(in.pod); !ok {
		return nil, false
	}
	text := func(name string) string {
		if v, ok := a.Get(name); ok {
			return v.AsString()
		}
		return ""
	}
	own := labels{Holder: podresources.Holder{Namespace: text(in.namespace), Pod: text(in.pod), Container: text(in.container)}, rank: -1}
	if in.job {
		own.job = l.jobOf(own.Holder)
	}
	return []labels{own}, true
}
