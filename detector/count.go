package detector

import (
	"fmt"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

// Bounds of what is kept of counts.
const (
	maxMakers = 16
	maxMaker  = 64 // bytes of a name
)

// gpuCount is how many GPUs of one maker answer and how many should. A maker whose exporter is silent has no new count, and so nothing is
// missed of it.
type gpuCount struct {
	have, want float64
	at         time.Time
	settled    time.Time // the time of the count that was judged last
	short      int       // counts in a row that were short
	last       int64     // the batch in which the count before was judged
}

func (e *Engine) countOf(maker string) *gpuCount {
	n, ok := e.makers.get(maker)
	if !ok {
		n = &gpuCount{}
		e.makers.put(maker, n)
	}
	return n
}

const (
	gpuLost = "gpu/lost "
	// nodeShort is a count's finding when the GPU that is missing was never seen and so has no name. Another maker's has its name behind it.
	nodeShort = gpuLost + "node"
)

func shortKey(maker string) string {
	if maker == "" {
		return nodeShort
	}
	return nodeShort + "/" + maker
}

// Settle ends a batch of samples: it judges what needs all of them, and forgets what has not been heard of for long.
func (e *Engine) Settle() []finding.Finding {
	e.makers.each(e.settleCount)
	e.settleLinks()
	e.sweep()
	e.batch++
	return e.take()
}

// settleCount compares how many of a maker's GPUs answer with how many should. A count is judged once, and a shortage without a status that
// says which only when two counts in a row agree: a host engine that starts counts up.
func (e *Engine) settleCount(maker string, n *gpuCount) {
	if n.want <= 0 || !n.at.After(n.settled) {
		return
	}
	before := n.last
	n.settled, n.last = n.at, e.batch
	ev := event.Evidence{Signal: semconv.GPUCount, Unit: "{gpu}", Value: num(n.have), Expected: num(n.want), Lower: num(n.want), Baseline: "table"}
	silent := e.silentSince(maker, before)
	if n.have >= n.want {
		n.short = 0
		e.end(shortKey(maker), ev)
		for _, g := range silent { // all are there without it: it was exchanged
			g.heard = 0
		}
		return
	}
	if n.short++; n.short < 2 {
		return
	}
	missing := int(n.want-n.have) - e.lostOf(maker)
	if len(silent) <= missing { // else nobody can tell which of them it is
		for _, g := range silent {
			o := lostOnset(g.target, n.at)
			o.evidence, o.maker = ev, maker
			o.evidence.Raw = fmt.Sprintf("%s is no longer counted", g.target.GPU)
			if e.begin(o) {
				missing--
			}
		}
	}
	if missing <= 0 {
		e.forget(shortKey(maker)) // they have names now
		return
	}
	o := lostOnset(event.Target{}, n.at)
	o.key, o.evidence, o.maker = shortKey(maker), ev, maker
	o.evidence.Raw = fmt.Sprintf("%d of %d GPUs answer; %d missing without a name", int(n.have), int(n.want), missing)
	e.begin(o)
}

// silentSince lists the maker's GPUs, but those known to be lost, of which no status has come since before the batch. Batches are compared
// and not times: an exporter may give a status the time at which it looked, and the count none.
func (e *Engine) silentSince(maker string, batch int64) (silent []*gpu) {
	e.gpus.each(func(id string, g *gpu) {
		if g.maker != maker || g.heard == 0 || g.heard >= batch {
			return
		}
		if _, open := e.open.get(gpuLost + about(g.target)); !open {
			silent = append(silent, g)
		}
	})
	return silent
}

// lostOf counts the maker's GPUs that are known to be lost and have names, also those that an earlier engine knew.
func (e *Engine) lostOf(maker string) (n int) {
	e.open.each(func(key string, o *finding.Open) {
		if strings.HasPrefix(key, gpuLost) && o.Maker == maker && key != shortKey(maker) {
			n++
		}
	})
	return n
}
