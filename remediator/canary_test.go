package remediator

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/notify"
)

// bird is a receiver that takes canaries.
type bird struct {
	ear
	came chan notify.Notice
	err  error
}

func (*bird) Name() string { return "bird" }

func (b *bird) Probe(_ context.Context, n notify.Notice) error {
	b.came <- n
	return b.err
}

// withCanary is a remediator on a real bus whose notices go to a bird.
func withCanary(t *testing.T) (*remediator, *bird) {
	t.Helper()
	b := &bird{came: make(chan notify.Notice, 100)}
	r := &remediator{o: Options{Cluster: bustest.Cluster, Log: slog.New(slog.DiscardHandler), Canary: 20 * time.Millisecond}, metrics: newMetrics()}
	r.notices = notify.New(notify.Options{Receivers: []notify.Receiver{b}, Count: r.metrics.notice,
		Probed: func(name string, n notify.Notice, err error) { r.hop(name, n.At, err) }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { r.notices.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return r, b
}

func TestACanaryGoesOverTheBusToEachReceiver(t *testing.T) {
	r, b := withCanary(t)
	at := bustest.Connect(t, bustest.Server(t).URL())
	pub, err := at.NewPublisher("", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	e := &incident.Engine{} // one that is asked to handle anything fails
	go func() { ended <- at.EventsInLanes(ctx, bus.ActingConsumer, r.lanes(e, newOccurrences())) }()
	go func() { ended <- r.sendCanaries(ctx, pub.Publish) }()
	for range 3 {
		select {
		case n := <-b.came:
			if n.Stage != notify.Canary || n.NeedsPerson || n.Incident != "" {
				t.Errorf("canary %+v", n)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("no canary came")
		}
	}
	cancel()
	<-ended
	<-ended
	_ = pub.Close(t.Context())
	for _, hop := range []string{canaryHop, "bird"} {
		if v := testutil.ToFloat64(r.metrics.lastSeen.WithLabelValues(hop)); time.Since(time.UnixMilli(int64(v*1000))) > time.Minute {
			t.Errorf("hop %s: last success at %v", hop, v)
		}
	}
	if n := testutil.CollectAndCount(r.metrics.notices); n != 0 || len(b.heard) != 0 {
		t.Errorf("a canary is counted as a notice: %d, %+v", n, b.heard)
	}
}

func TestOnlyTheAwaitedCanaryPasses(t *testing.T) {
	r, b := withCanary(t)
	now := time.Now()
	e, lost := r.canary.next("c", now)
	if lost {
		t.Error("the first one is lost")
	}
	good := bus.Delivery{Event: e, Node: canaryNode}
	cases := map[string]func(*bus.Delivery){
		"from a node":         func(d *bus.Delivery) { d.Node = "a1" },
		"of another id":       func(d *bus.Delivery) { d.Event.ID = "forged" },
		"without an id":       func(d *bus.Delivery) { d.Event.ID = "" },
		"of another type":     func(d *bus.Delivery) { d.Event.Type = event.Fault },
		"of a gateway's rank": func(d *bus.Delivery) { d.Node, d.Gateway = "", "g1" },
	}
	for name, change := range cases {
		d := good
		change(&d)
		if _, yes := r.canary.came(d, now); yes {
			t.Errorf("%s: it passes", name)
		}
	}
	r.canaryCame(good)
	r.canaryCame(good) // delivered twice
	<-b.came
	select {
	case <-b.came:
		t.Error("it passes twice")
	case <-time.After(50 * time.Millisecond):
	}
	old, _ := r.canary.next("c", now)
	for range canariesAwaited {
		r.canary.next("c", now)
	}
	if _, yes := r.canary.came(bus.Delivery{Event: old, Node: canaryNode}, now); yes {
		t.Error("one that is not among the last passes")
	}
	r.canary.begin()
	if len(r.canary.sent) != 0 {
		t.Error("those of an earlier term are awaited")
	}
}

func TestEventsThatLagLoseNoCanary(t *testing.T) {
	start := time.Now()
	for _, lag := range []int{0, 1, 4, 9} { // minutes
		var c canary
		var sent []event.Event
		passed := 0
		for k := range 60 {
			now := start.Add(time.Duration(k) * time.Minute)
			e, lost := c.next("c", now)
			if lost && lag < 5 {
				t.Errorf("lag of %d min: lost in minute %d", lag, k)
			}
			sent = append(sent, e)
			if k < lag {
				continue
			}
			d := bus.Delivery{Event: sent[k-lag], Node: canaryNode}
			if at, yes := c.came(d, now.Add(time.Second)); yes && at.Equal(now.Add(-time.Duration(lag)*time.Minute)) {
				passed++
			}
			if _, twice := c.came(d, now); twice {
				t.Error("it passes twice")
			}
		}
		if passed != 60-lag {
			t.Errorf("lag of %d min: %d of %d pass", lag, passed, 60-lag)
		}
	}
}

func TestACanaryIsLostIfNoneCameWithinFiveMinutes(t *testing.T) {
	start := time.Now()
	for every, want := range map[time.Duration]int{time.Minute: 5, 10 * time.Minute: 1} {
		var c canary
		first := -1
		for k := 0; k < 10 && first < 0; k++ {
			if _, lost := c.next("c", start.Add(time.Duration(k)*every)); lost {
				first = k
			}
		}
		if first != want {
			t.Errorf("every %v: the loss is noted with canary %d, want %d", every, first, want)
		}
		e, _ := c.next("c", start.Add(time.Hour*2))
		c.came(bus.Delivery{Event: e, Node: canaryNode}, start.Add(time.Hour*2))
		if _, lost := c.next("c", start.Add(2*time.Hour+time.Minute)); lost {
			t.Errorf("every %v: lost, though one came a minute ago", every)
		}
	}
}

// A canary that carries a fault of a real node reaches neither the engine, nor placement, nor the counts of faults.
func TestAForgedCanaryActsOnNothing(t *testing.T) {
	r, _ := withCanary(t)
	seen := newOccurrences()
	forged := event.Event{ID: "x", Type: event.Canary, Time: time.Now(), Data: event.Data{
		Target: event.Target{Node: "a1", GPU: "GPU-1"}, Cause: event.Cause{Kind: "xid", Code: "79"}, Severity: event.Fatal}}
	l := r.lanes(&incident.Engine{}, seen) // an engine that would panic
	if err := l.Handle(t.Context(), bus.Delivery{Event: forged, Node: "a1"}); err != nil {
		t.Error(err)
	}
	if len(seen.at) != 0 {
		t.Error("it is counted as a fault")
	}
	if err := (&incident.Engine{}).Handle(t.Context(), forged, incident.Origin{}); err != nil { // nor would the engine take it
		t.Error(err)
	}
}

func TestAReceiverThatFailsItsCanaryShowsIt(t *testing.T) {
	r, b := withCanary(t)
	b.err = errors.New("away")
	r.metrics.watchHops(append(r.notices.Probes(), canaryHop))
	e, _ := r.canary.next("c", time.Now())
	r.canaryCame(bus.Delivery{Event: e, Node: canaryNode})
	<-b.came
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && testutil.ToFloat64(r.metrics.canaries.WithLabelValues("bird", "failed")) == 0; {
		time.Sleep(5 * time.Millisecond)
	}
	if testutil.ToFloat64(r.metrics.lastSeen.WithLabelValues("bird")) != 0 || testutil.ToFloat64(r.metrics.canaries.WithLabelValues("bird", "failed")) != 1 {
		t.Error("the hop that fails looks well")
	}
	if r.metrics.hop("bird", time.Now(), time.Now(), errLost) {
		t.Error("each failure is reported, not the first one")
	}
}
