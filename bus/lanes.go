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

// maxAhead is how many events of the stream are looked at ahead of those that are dealt with. A lane that fails holds its own only, until
// so many of one node wait; then the others wait as well.
const maxAhead = 1024

// retryMost bounds the time between tries of a lane that fails.
const retryMost = 5 * time.Second

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
	c, err := b.consumer(link, durable, maxAhead)
	if link.Err() != nil {
		return context.Cause(link)
	}
	if err != nil {
		return fmt.Errorf("consumer %s: %w", durable, err)
	}
	l := &lanes{b: b, o: o, waiting: map[string][]jetstream.Msg{}, pending: map[jetstream.Msg]time.Time{}}
	work, end := context.WithCancel(link)
	failed := make(chan error, 1)
	run, err := c.Consume(func(m jetstream.Msg) { l.add(work, m) }, jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
		if errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) {
			select {
			case failed <- err:
			default:
			}
		}
	}), jetstream.PullMaxMessages(maxAhead))
	if err != nil {
		end()
		return fmt.Errorf("consume %s: %w", durable, err)
	}
	l.wg.Go(func() { l.still(work) })
	defer func() { run.Stop(); <-run.Closed(); end(); l.wg.Wait() }()
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

	mu      sync.Mutex
	waiting map[string][]jetstream.Msg  // a lane that is here has a goroutine
	pending map[jetstream.Msg]time.Time // when the stream stored it

	behind atomic.Uint64 // events in the stream that were not delivered when the last one was
}

func (l *lanes) add(ctx context.Context, m jetstream.Msg) {
	lane, err := nodeOf(m.Subject(), eventPrefix)
	if err != nil {
		l.o.Bad(m.Subject(), err)
		_ = m.Term()
		return
	}
	stored := time.Now()
	if md, err := m.Metadata(); err == nil {
		stored = md.Timestamp
		l.behind.Store(md.NumPending)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending[m] = stored
	queue, runs := l.waiting[lane]
	l.waiting[lane] = append(queue, m)
	if !runs {
		l.wg.Go(func() { l.run(ctx, lane) })
	}
}

// run deals with the events of one lane until none waits.
func (l *lanes) run(ctx context.Context, key string) {
	for {
		l.mu.Lock()
		queue := l.waiting[key]
		if len(queue) == 0 || ctx.Err() != nil {
			delete(l.waiting, key)
			l.mu.Unlock()
			return
		}
		m := queue[0]
		l.waiting[key] = queue[1:]
		l.mu.Unlock()
		l.deal(ctx, m)
		l.mu.Lock()
		delete(l.pending, m)
		l.mu.Unlock()
	}
}

// deal tries until the event is dealt with, set aside, or ctx ends: then it comes again.
func (l *lanes) deal(ctx context.Context, m jetstream.Msg) {
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
			l.b.log.Warn("event not dealt with; will retry", "id", d.Event.ID, "error", err)
		}
		if !sleep(ctx, wait) {
			return
		}
		wait = min(2*wait, retryMost)
	}
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
		l.mu.Lock()
		all := make([]jetstream.Msg, 0, len(l.pending))
		now := Queue{InFlight: len(l.pending), Pending: l.behind.Load()}
		for m, stored := range l.pending {
			all = append(all, m)
			now.Oldest = max(now.Oldest, time.Since(stored))
		}
		l.mu.Unlock()
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
