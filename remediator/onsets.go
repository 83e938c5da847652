package remediator

import (
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

// onsets remembers what people were told of lately, so that what an agent and a gateway find of one onset is told once.
type onsets struct {
	mu     sync.Mutex
	recent []event.Event
}

const (
	oneOnset  = time.Minute // within which two onsets are one: an agent and a gateway see them by other values
	maxOnsets = 1024        // remembered; beyond, the oldest is told again
)

// slowRank is a cause as people see it: a rank behind its peers, by the gateway's word, and what its own node shows of that.
const slowRank = "a slow rank"

var sides = map[string]string{
	"rank/straggler": slowRank, "rank/imbalance": slowRank,
	"anomaly/thermal-throttle": slowRank, "anomaly/launch-latency": slowRank, "anomaly/degraded": slowRank,
}

func sideOf(e event.Event) string {
	signal := e.Data.Cause.Signal()
	if s, ok := sides[signal]; ok {
		return s
	}
	return signal
}

// told reports whether people know of an event by what was found on the other side, and by which event; if not, it is remembered as told.
// What is worse than they know is news.
func (o *onsets) told(e event.Event) (by event.Event, yes bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, x := range o.recent {
		if x.ID == e.ID { // of another gang on the node, say
			return by, false
		}
	}
	for _, x := range o.recent {
		apart := began(e).Sub(began(x)).Abs()
		if (event.GatewayOf(x.Source) == "") != (event.GatewayOf(e.Source) == "") && sideOf(x) == sideOf(e) && apart <= oneOnset &&
			sameRank(x.Data.Target, e.Data.Target) && x.Data.Severity.AtLeast(e.Data.Severity) {
			return x, true
		}
	}
	if o.recent = append(o.recent, e); len(o.recent) > maxOnsets {
		o.recent = o.recent[len(o.recent)-maxOnsets:]
	}
	return by, false
}

// sameRank reports whether two targets are one rank, or one GPU where a rank is not known.
func sameRank(a, b event.Target) bool {
	if a.PodUID != "" && b.PodUID != "" && a.Rank != nil && b.Rank != nil {
		return a.PodUID == b.PodUID && *a.Rank == *b.Rank && (a.Attempt == nil || b.Attempt == nil || *a.Attempt == *b.Attempt)
	}
	return a.GPU != "" && a.GPU == b.GPU
}
