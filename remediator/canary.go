package remediator

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/notify"
)

// canary proves that events reach the leader and notices reach their receivers: an event of its own goes over the bus, and from there to
// each receiver that takes canaries. It has a type that opens no incident, comes from no node, and is passed on only if it is one of the
// last that this process sent, once: a forged or doubled one ends here.
type canary struct {
	mu    sync.Mutex
	sent  []sentCanary // those that have not come yet, the oldest first
	heard time.Time    // when one came last
}

type sentCanary struct {
	id string
	at time.Time
}

const (
	defaultCanary = time.Minute
	// canaryNode is whose place canaries take on the bus. No node has such a name, so no agent may publish under it.
	canaryNode = "_canary"
	canaryHop  = "bus" // the first hop; the others have the receivers' names
	// canariesAwaited bounds the canaries on their way: events may lag by several intervals, and are handled nevertheless.
	canariesAwaited = 10
	// canaryWithin is how long none may come before one counts as lost. The alert on missing canaries has the same bound.
	canaryWithin = 5 * time.Minute
)

// begin forgets the canaries of an earlier term, which went to another leader.
func (c *canary) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent, c.heard = nil, time.Time{}
}

// next is the next canary. It reports whether one is lost: it was sent too long ago, and none has come since.
func (c *canary) next(cluster string, now time.Time) (e event.Event, lost bool) {
	src := event.Source(cluster, canaryNode, "remediator")
	e = event.Event{
		ID: event.NewID(src, rand.Text()), Source: src, Type: event.Canary, Time: now,
		Data: event.Data{Target: event.Target{Cluster: cluster, Node: canaryNode}, Cause: event.Cause{Kind: "canary", Name: "notify"}, Severity: event.Info},
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	late := now.Add(-canaryWithin)
	lost = len(c.sent) > 0 && !c.sent[0].at.After(late) && !c.heard.After(late)
	c.sent = append(c.sent, sentCanary{e.ID, now})
	c.sent = c.sent[max(0, len(c.sent)-canariesAwaited):]
	return e, lost
}

// came reports whether a delivery is a canary that is awaited, and when that was sent. Each is awaited once.
func (c *canary) came(d bus.Delivery, now time.Time) (at time.Time, yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := slices.IndexFunc(c.sent, func(s sentCanary) bool { return s.id == d.Event.ID })
	if k < 0 || d.Node != canaryNode || d.Event.Type != event.Canary {
		return time.Time{}, false
	}
	at = c.sent[k].at
	c.sent, c.heard = slices.Delete(c.sent, k, k+1), now
	return at, true
}

// errLost is the outcome of a canary that is lost.
var errLost = errors.New("it did not come in time")

// sendCanaries sends one now and then until ctx ends. Off: nothing is sent.
func (r *remediator) sendCanaries(ctx context.Context, publish func(event.Event) error) error {
	every := r.o.Canary
	if every < 0 {
		return nil
	}
	if every == 0 {
		every = defaultCanary
	}
	r.metrics.watchHops(append(r.notices.Probes(), canaryHop))
	r.canary.begin()
	for {
		e, lost := r.canary.next(r.o.Cluster, time.Now())
		if lost {
			r.hop(canaryHop, time.Time{}, errLost)
		}
		if err := publish(e); err != nil {
			r.hop(canaryHop, time.Time{}, err)
		}
		if !pause(ctx, every) {
			return nil
		}
	}
}

// canaryCame passes the awaited canary on to the receivers.
func (r *remediator) canaryCame(d bus.Delivery) {
	at, yes := r.canary.came(d, time.Now())
	if !yes {
		r.metrics.canaries.WithLabelValues(canaryHop, "unknown").Inc()
		r.o.Log.Debug("a canary that is not awaited", "id", d.Event.ID, "node", d.Node)
		return
	}
	r.hop(canaryHop, at, nil)
	r.notices.Probe(notify.Notice{
		Key: d.Event.ID, Cluster: r.o.Cluster, Signal: d.Event.Data.Cause.Signal(), Severity: string(event.Info), At: at,
		Broken: "Nothing is broken", Doing: "This is the canary that shows that notices arrive",
	})
}

// hop records that a canary passed a hop, or why it did not.
func (r *remediator) hop(name string, sent time.Time, err error) {
	if r.metrics.hop(name, sent, time.Now(), err) { // the first failure in a row
		r.o.Log.Warn("the canary does not pass; notices may not arrive either", "hop", name, "error", err)
	}
}
