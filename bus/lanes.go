package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pitcrew/pitcrew/event"
)

// Lanes say how EventsInLanes deals with events.
type Lanes struct {
	// Handle deals with one event. It is called at once for events of different nodes, and one after the other for those of one node, in the
	// order of the stream. An error makes it be called again after a while; meanwhile only later events of the same node wait.
	Handle func(context.Context, Delivery) error
	// Hopeless reports whether an event that failed so often, for so long, is to be set aside. nil: never.
	Hopeless func(err error, tries int, lasts time.Duration) bool
	// Aside, if not nil, is called for an event that was set aside.
	Aside func(Delivery, error)
	// Depth, if not nil, is called every second with what waits.
	Depth func(Queue)
	// Bad is called for what cannot be decoded or was published by somebody who may not say it.
	Bad func(subject string, err error)
}

// Queue is what waits to be dealt with, as this process sees it. EventBacklog is the server's view.
type Queue struct {
	InFlight int           // events that were delivered and are not dealt with
	Pending  uint64        // events that the stream holds behind them
	Oldest   time.Duration // age of the oldest that was delivered; 0: none waits
}

// SetAside is an event that could not be dealt with, as it is kept in AsideBucket under its id.
type SetAside struct {
	Event  event.Event `json:"event"`
	Reason string      `json:"reason"`
	Tries  int         `json:"tries"`
	At     time.Time   `json:"at"`
}

// Bounds of what waits. An event of a lane that fails goes back to the server, beyond the first few, and holds up no other lane.
const (
	maxAhead     = 1024            // events held in memory of lanes that do not fail; then nothing more is taken from the stream
	maxInLane    = 4               // events held in memory of a lane that fails
	maxParked    = 4096            // events of one lane that the server holds; what comes beyond is set aside
	maxDelivered = 16 * maxParked  // events that the server has delivered and not heard of; then nothing more comes
	pullAhead    = 256             // events that were asked for and not looked at
	retryMost    = 5 * time.Second // between tries of a lane that fails
)

// EventsInLanes delivers each event of the cluster, from where the durable consumer stands, in parallel by node. It blocks until ctx ends and
// comes back by itself after a lost connection.
func (b *Bus) EventsInLanes(ctx context.Context, durable string, o Lanes) error {
	for {
		err := b.consumeInLanes(ctx, durable, o)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of the context is the ordinary end
		}
		if errors.Is(err, errBack) {
			continue
		}
		b.log.Warn("event consumer ended; starting again", "error", err)
		sleep(ctx, retryEvery)
	}
}

func (b *Bus) consumeInLanes(ctx context.Context, durable string, o Lanes) error {
	link, stop := b.untilBack(ctx)
	defer stop()
	c, err := b.consumer(link, durable, maxDelivered)
	if link.Err() != nil {
		return context.Cause(link)
	}
	if err != nil {
		return fmt.Errorf("consumer %s: %w", durable, err)
	}
	l := newLanes(b, o)
	work, end := context.WithCancel(link)
	failed := make(chan error, 1)
	run, err := c.Consume(func(m jetstream.Msg) { l.add(work, m) }, jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
		if errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) {
			select {
			case failed <- err:
			default:
			}
		}
	}), jetstream.PullMaxMessages(pullAhead))
	if err != nil {
		end()
		return fmt.Errorf("consume %s: %w", durable, err)
	}
	l.wg.Go(func() { l.still(work) })
	defer func() { run.Stop(); end(); <-run.Closed(); l.wg.Wait() }()
	select {
	case err := <-failed:
		return err
	case <-link.Done():
		return context.Cause(link)
	}
}

// lanes are the events that wait, by node.
type lanes struct {
	b  *Bus
	o  Lanes
	wg sync.WaitGroup

	mu    sync.Mutex
	lanes map[string]*lane
	held  int                  // events in memory, of lanes that do not fail
	have  map[uint64]time.Time // when the stream stored each event in memory, by its sequence
	room  chan struct{}        // closed and made anew when held falls below maxAhead, and when a lane begins to fail

	behind atomic.Uint64 // events in the stream that were not delivered when the last one was
}

// lane is the events of one node, in the order of the stream.
type lane struct {
	waiting []jetstream.Msg // in memory; the first is being dealt with
	runs    bool
	fails   bool // the first one failed, and is tried again
	parked  parking
}

func newLanes(b *Bus, o Lanes) *lanes {
	return &lanes{b: b, o: o, lanes: map[string]*lane{}, have: map[uint64]time.Time{}, room: make(chan struct{})}
}

// add takes in one event. It blocks while lanes that do not fail hold all that may be held, so that no more comes from the stream.
func (l *lanes) add(ctx context.Context, m jetstream.Msg) {
	key, err := nodeOf(m.Subject(), eventPrefix)
	md, bad := m.Metadata()
	if err = errors.Join(err, bad); err != nil {
		l.o.Bad(m.Subject(), err)
		_ = m.Term()
		return
	}
	l.behind.Store(md.NumPending)
	for {
		l.mu.Lock()
		full := l.offer(ctx, key, m, md)
		room := l.room
		l.mu.Unlock()
		if full == nil {
			return
		}
		if full.aside {
			l.overflow(ctx, m)
			return
		}
		select {
		case <-room:
		case <-ctx.Done(): // it comes again
			return
		}
	}
}

// noRoom is why an event was not taken in.
type noRoom struct{ aside bool }

// offer puts an event in its lane, in memory or parked. The caller holds mu.
func (l *lanes) offer(ctx context.Context, key string, m jetstream.Msg, md *jetstream.MsgMetadata) *noRoom {
	if _, known := l.have[md.Sequence.Stream]; known || ctx.Err() != nil { // delivered again although it is dealt with here
		return nil
	}
	at := l.lanes[key]
	if at == nil {
		at = &lane{}
		l.lanes[key] = at
	}
	now := time.Now()
	behind := at.parked.before(md.Sequence.Stream, now) // an earlier one is to come first
	switch {
	case behind, at.fails && len(at.waiting) >= maxInLane:
		if l.o.Hopeless != nil && at.parked.full(md.Sequence.Stream) {
			return &noRoom{aside: true}
		}
		at.parked.put(md.Sequence.Stream, now, l.b.park(m, md.NumDelivered))
		return nil
	case !at.fails && l.held >= maxAhead:
		return &noRoom{}
	}
	at.parked.take(md.Sequence.Stream)
	at.waiting = append(at.waiting, m)
	l.have[md.Sequence.Stream] = md.Timestamp
	if !at.fails {
		l.held++
	}
	if !at.runs {
		at.runs = true
		l.wg.Go(func() { l.run(ctx, key, at) })
	}
	return nil
}

// run deals with the events of one lane until none waits in memory.
func (l *lanes) run(ctx context.Context, key string, at *lane) {
	for {
		l.mu.Lock()
		if len(at.waiting) == 0 || ctx.Err() != nil {
			at.runs = false
			if len(at.waiting) == 0 && at.parked.empty() {
				delete(l.lanes, key)
			}
			l.mu.Unlock()
			return
		}
		m := at.waiting[0]
		l.mu.Unlock()
		l.deal(ctx, at, m)
		l.done(at, m)
	}
}

// done takes the first event of a lane out of memory. A lane that failed does so no more until the next one fails.
func (l *lanes) done(at *lane, m jetstream.Msg) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if md, err := m.Metadata(); err == nil {
		delete(l.have, md.Sequence.Stream)
	}
	at.waiting = at.waiting[1:]
	if at.fails {
		at.fails = false
		l.held += len(at.waiting)
	} else {
		l.held--
	}
	l.changed()
}

// failing notes that the first event of a lane failed, and gives back what waits behind it beyond the few that are held.
func (l *lanes) failing(at *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.fails {
		return
	}
	at.fails = true
	l.held -= len(at.waiting)
	now := time.Now()
	for len(at.waiting) > maxInLane {
		m := at.waiting[len(at.waiting)-1]
		at.waiting = at.waiting[:len(at.waiting)-1]
		if md, err := m.Metadata(); err == nil {
			delete(l.have, md.Sequence.Stream)
			at.parked.put(md.Sequence.Stream, now, l.b.park(m, md.NumDelivered))
		}
	}
	l.changed()
}

// changed lets add look again. The caller holds mu.
func (l *lanes) changed() {
	if l.held < maxAhead {
		close(l.room)
		l.room = make(chan struct{})
	}
}

// deal tries until the event is dealt with, set aside, or ctx ends: then it comes again.
func (l *lanes) deal(ctx context.Context, at *lane, m jetstream.Msg) {
	began, wait := time.Now(), retryEvery
	for tries := 1; ; tries++ {
		d, err := l.b.delivery(m)
		if err != nil {
			l.o.Bad(m.Subject(), err)
			_ = m.Term()
			return
		}
		err = l.o.Handle(ctx, d)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			if err := m.Ack(); err != nil {
				l.b.log.Debug("ack; the event comes again and is known by its id", "id", d.Event.ID, "error", err)
			}
			return
		case l.o.Hopeless != nil && l.o.Hopeless(err, tries, time.Since(began)) && l.aside(ctx, d, err, tries):
			_ = m.Term()
			return
		}
		if tries == 1 {
			l.failing(at)
			l.b.log.Warn("event not dealt with; will retry", "id", d.Event.ID, "error", err)
		}
		if !sleep(ctx, wait) {
			return
		}
		wait = min(2*wait, retryMost)
	}
}

// errLaneFull is the reason of an event that was set aside because too many of its node wait behind one that fails.
var errLaneFull = errors.New("too many events of its node wait behind one that fails")

// overflow sets an event aside whose lane is full. One that cannot be kept now comes again.
func (l *lanes) overflow(ctx context.Context, m jetstream.Msg) {
	d, err := l.b.delivery(m)
	if err != nil {
		l.o.Bad(m.Subject(), err)
		_ = m.Term()
		return
	}
	if !l.aside(ctx, d, errLaneFull, 0) {
		_ = m.NakWithDelay(parkMost)
		return
	}
	_ = m.Term()
}

// aside keeps an event that cannot be dealt with, so that a person finds it. It reports whether it is kept.
func (l *lanes) aside(ctx context.Context, d Delivery, err error, tries int) bool {
	kept := SetAside{Event: d.Event, Reason: err.Error(), Tries: tries, At: time.Now()}
	if err := NewBucket[SetAside](l.b, AsideBucket).Set(ctx, d.Event.ID, kept); err != nil {
		l.b.log.Warn("set an event aside; will retry", "id", d.Event.ID, "error", err)
		return false
	}
	l.b.log.Error("event set aside", "id", d.Event.ID, "signal", d.Event.Data.Cause.Signal(), "tries", tries, "reason", err)
	if l.o.Aside != nil {
		l.o.Aside(d, err)
	}
	return true
}

// still tells the server that the events that wait here are being dealt with, and the owner how many there are.
func (l *lanes) still(ctx context.Context) {
	for sleep(ctx, stillEvery) {
		all, now := l.waits()
		if l.o.Depth != nil {
			l.o.Depth(now)
		}
		for _, m := range all {
			if err := m.InProgress(); err != nil {
				l.b.log.Debug("still dealing with events", "error", err)
				break
			}
		}
	}
}

func (l *lanes) waits() (all []jetstream.Msg, now Queue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now.Pending = l.behind.Load()
	for key, at := range l.lanes {
		if at.parked.expire(time.Now()); !at.runs && len(at.waiting) == 0 && at.parked.empty() {
			delete(l.lanes, key)
			continue
		}
		all = append(all, at.waiting...)
		now.InFlight += len(at.waiting) + at.parked.len()
		now.Oldest = max(now.Oldest, at.parked.oldest(time.Now()))
	}
	for _, stored := range l.have {
		now.Oldest = max(now.Oldest, time.Since(stored))
	}
	return all, now
}
