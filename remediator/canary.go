package remediator

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/notify"
)

// canary proves that events reach the leader and notices reach their receivers: an event of its own goes over the bus, and from there to
// each receiver that takes canaries. It has a type that opens no incident, comes from no node, and is passed on only if it is the one that
// this process sent last: a forged, doubled or late one ends here.
type canary struct {
	mu   sync.Mutex
	sent string // id of the one that has not come yet
	at   time.Time
}

const (
	defaultCanary = time.Minute
	// canaryNode is whose place canaries take on the bus. No node has such a name, so no agent may publish under it.
	canaryNode = "_canary"
	canaryHop  = "bus" // the first hop; the others have the receivers' names
)

// next is the next canary. It reports whether the one before is still on its way.
func (c *canary) next(cluster string, now time.Time) (e event.Event, lost bool) {
	src := event.Source(cluster, canaryNode, "remediator")
	e = event.Event{
		ID: event.NewID(src, rand.Text()), Source: src, Type: event.Canary, Time: now,
		Data: event.Data{Target: event.Target{Cluster: cluster, Node: canaryNode}, Cause: event.Cause{Kind: "canary", Name: "notify"}, Severity: event.Info},
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	lost = c.sent != ""
	c.sent, c.at = e.ID, now
	return e, lost
}

// came reports whether a delivery is the canary that is awaited, and when that was sent. It is awaited once.
func (c *canary) came(d bus.Delivery) (at time.Time, yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent == "" || d.Event.ID != c.sent || d.Node != canaryNode || d.Event.Type != event.Canary {
		return time.Time{}, false
	}
	c.sent = ""
	return c.at, true
}

// errLost is the outcome of a canary that had not come when the next one was sent.
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
	at, yes := r.canary.came(d)
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
