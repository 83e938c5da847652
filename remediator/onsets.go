package remediator

import (
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

// onsets remembers what people were told of lately, so that what an agent and a gateway find of one onset is told once. An event is compared
// only with those that the other side found of the same cause: an agent's flood is compared with nothing while no gateway joins it.
type onsets struct {
	mu     sync.Mutex
	recent []finding       // the oldest first
	ids    map[string]bool // of recent
	by     map[cause][]*event.Event
}

// finding is an event that people were told of.
type finding struct {
	cause
	id string
}

// cause is what was found, and on which side: by a gateway or by an agent.
type cause struct {
	gateway bool
	side    string
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
	of := cause{event.GatewayOf(e.Source) != "", sideOf(e)}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ids[e.ID] { // of another gang on the node, say
		return by, false
	}
	for _, x := range o.by[cause{!of.gateway, of.side}] {
		apart := began(e).Sub(began(*x)).Abs()
		if apart <= oneOnset && sameRank(x.Data.Target, e.Data.Target) && x.Data.Severity.AtLeast(e.Data.Severity) {
			return *x, true
		}
	}
	o.remember(of, e)
	return by, false
}

func (o *onsets) remember(of cause, e event.Event) {
	if o.by == nil {
		o.ids, o.by = map[string]bool{}, map[cause][]*event.Event{}
	}
	o.recent, o.ids[e.ID], o.by[of] = append(o.recent, finding{of, e.ID}), true, append(o.by[of], &e)
	if len(o.recent) <= maxOnsets {
		return
	}
	oldest := o.recent[0]
	o.recent = o.recent[1:]
	delete(o.ids, oldest.id)
	same := o.by[oldest.cause] // in the order of recent
	if same[0] = nil; len(same) > 1 {
		o.by[oldest.cause] = same[1:]
	} else {
		delete(o.by, oldest.cause)
	}
}

// sameRank reports whether two targets are one rank, or one GPU where a rank is not known.
func sameRank(a, b event.Target) bool {
	if a.PodUID != "" && b.PodUID != "" && a.Rank != nil && b.Rank != nil {
		return a.PodUID == b.PodUID && *a.Rank == *b.Rank && (a.Attempt == nil || b.Attempt == nil || *a.Attempt == *b.Attempt)
	}
	return a.GPU != "" && a.GPU == b.GPU
}
