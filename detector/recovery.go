package detector

import (
	"fmt"
	"math"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

// metricRecovery is the recovery action that the driver asks for, by number: what Xid 154 prints when it changes, and what still stands when
// that line was missed.

// recoveryStands is for how long an action must stand before it is told: the kernel log, which is read from its beginning, comes first.
const recoveryStands = 10 * time.Second

// asked is what the driver asked for when this engine first heard of the GPU.
type asked struct {
	known, over bool
	v           float64
	since, at   time.Time
}

// recovery tells of an action that stood before this engine came and of which no line of the kernel log tells. What changes later is told by
// Xid 154, under the same key, as long as that log can be read.
func (e *Engine) recovery(g *gpu, v Value) {
	a := &g.asked
	if v.Time.Before(a.at) && a.at.Sub(v.Time) < lateWithin {
		return
	}
	a.at = v.Time
	if a.since.After(v.Time) { // the clock was set back
		a.since = v.Time
	}
	switch {
	case !a.known || e.blind && v.V != a.v: // a log that cannot be read tells of no change either
		*a = asked{known: true, v: v.V, since: v.Time, at: v.Time}
	case v.V != a.v:
		a.over = true
	}
	key := kernelKey("xid", recoveryXid, g.target)
	ev := event.Evidence{Signal: semconv.GPURecoveryAction, Baseline: "table", Value: num(v.V)}
	if v.V < 1 {
		a.over = !e.blind
		if have, ok := e.open.get(key); ok && have.Event.Source == event.Source(e.o.Cluster, e.o.Node, "detector") {
			e.end(key, ev)
		}
		return
	}
	if a.over || v.Time.Sub(a.since) < recoveryStands || v.V > math.MaxInt32 {
		return
	}
	a.over = true
	row := e.o.Rules.RecoveryOf(int(v.V))
	ev.Raw = fmt.Sprintf("the driver asks for %q (%d), and no line of the kernel log that was read tells of it", row.Action, int(v.V))
	e.begin(onset{
		key: key, target: g.target, cause: event.Cause{Kind: "xid", Code: recoveryXid, Name: row.Action}, severity: event.Severity(row.Severity), advice: string(row.Advice),
		at: v.Time, evidence: ev,
	})
}

// recoveryXid is the code by which the kernel log tells of a recovery action.
const recoveryXid = "154"
