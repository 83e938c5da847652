package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pitcrew/pitcrew/event"
)

const (
	maxPending = 1024            // publishes without an acknowledgement
	maxSpooled = 10_000          // findings on disk; beyond it the oldest is dropped and counted
	ackWait    = 5 * time.Second // then it is sent again under the same id
	retryEvery = time.Second     // while the server answers with errors
)

// Publisher sends events and keeps each until it is acknowledged.
//
// With a spool folder an event is on disk before Publish returns and leaves it when JetStream has acknowledged it, so a crash
// of the process loses nothing (a crash of the machine may lose what the kernel had not written). A file that cannot be read stays
// where it is, and costs no other file. Without a spool folder, events wait in memory. Safe for use by several goroutines.
type Publisher struct {
	b     *Bus
	spool string
	files files
	log   *slog.Logger
	queue chan *item // pointers: the room for maxSpooled of them is made at once
	done  chan struct{}
	stop  context.CancelFunc

	mu     sync.Mutex
	held   map[string]bool // ids accepted and not yet acknowledged
	onAck  func(event.Message, time.Duration)
	counts struct{ sent, acked, failed, dropped atomic.Int64 }
}

type item struct {
	m       event.Message
	arrived time.Time
}

// Counts of a publisher since it was made.
type Counts struct{ Sent, Acked, Failed, Dropped, Waiting int64 }

// NewPublisher makes a publisher and takes up what an earlier one left in the spool. spool may be empty. onAck, if not nil, is
// called with each acknowledged event and the time since Publish; it must not block.
func (b *Bus) NewPublisher(spool string, onAck func(event.Message, time.Duration)) (*Publisher, error) {
	return b.newPublisher(spool, onAck, disk{})
}

func (b *Bus) newPublisher(spool string, onAck func(event.Message, time.Duration), on files) (*Publisher, error) {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Publisher{
		b: b, spool: spool, files: on, log: b.log, queue: make(chan *item, maxSpooled), done: make(chan struct{}), stop: cancel,
		held: map[string]bool{}, onAck: onAck,
	}
	if spool != "" {
		if err := on.MkdirAll(spool); err != nil {
			cancel()
			return nil, fmt.Errorf("spool of findings: %w", err)
		}
		if err := p.reload(); err != nil {
			b.log.Warn("spool of findings: not everything could be taken up; the rest is", "folder", spool, "error", err)
		}
	}
	go p.run(ctx)
	return p, nil
}

// Publish encodes an event and accepts it for delivery.
func (p *Publisher) Publish(e event.Event) error {
	m, err := event.NewMessage(e)
	if err != nil {
		return err
	}
	return p.PublishMessage(m)
}

// PublishMessage accepts an encoded event for delivery. It returns an error only if the event could not be spooled; a missing server is no
// error. An id that is already waiting is accepted once.
func (p *Publisher) PublishMessage(m event.Message) error {
	p.mu.Lock()
	dup := p.held[m.ID]
	p.mu.Unlock()
	if dup {
		return nil
	}
	if p.spool != "" {
		if err := p.write(p.path(m), m.Raw); err != nil {
			return fmt.Errorf("spool event %s: %w", m.ID, err)
		}
	}
	p.accept(&item{m, time.Now()})
	return nil
}

func (p *Publisher) accept(it *item) {
	p.mu.Lock()
	p.held[it.m.ID] = true
	p.mu.Unlock()
	for {
		select {
		case p.queue <- it:
			return
		default:
		}
		select {
		case old := <-p.queue: // full: the oldest goes, counted, so that news is never refused
			p.counts.dropped.Add(1)
			p.forget(old.m)
			p.log.Error("finding dropped: queue is full", "id", old.m.ID, "queued", maxSpooled)
		default:
		}
	}
}

func (p *Publisher) path(m event.Message) string {
	return filepath.Join(p.spool, fmt.Sprintf("%020d-%s%s", m.Time.UnixNano(), strings.ReplaceAll(Token(m.ID), "/", ""), spoolSuffix))
}

func (p *Publisher) forget(m event.Message) {
	p.mu.Lock()
	delete(p.held, m.ID)
	p.mu.Unlock()
	if p.spool != "" {
		if err := p.files.Remove(p.path(m)); err != nil && !errors.Is(err, os.ErrNotExist) {
			p.log.Warn("spool", "error", err)
		}
	}
}

// run sends in order of arrival and waits for acknowledgements aside, so that one slow answer does not hold up the next event.
func (p *Publisher) run(ctx context.Context) {
	defer close(p.done)
	var acks sync.WaitGroup
	defer acks.Wait()
	for {
		var it *item
		select {
		case <-ctx.Done():
			return
		case it = <-p.queue:
		}
		for {
			if p.b.Wait(ctx) != nil {
				if ctx.Err() != nil {
					return
				}
				sleep(ctx, retryEvery)
				continue
			}
			f, err := p.send(it)
			if err == nil {
				acks.Go(func() { p.await(ctx, it, f) })
				break
			}
			p.counts.failed.Add(1)
			p.log.Warn("publish failed; will retry", "id", it.m.ID, "error", err)
			if !sleep(ctx, retryEvery) {
				return
			}
		}
	}
}

func (p *Publisher) send(it *item) (jetstream.PubAckFuture, error) {
	p.counts.sent.Add(1)
	m := nats.NewMsg(subject(eventPrefix, p.b.cluster, speaker(it.m.Source, it.m.Node), it.m.Type.Kind()))
	m.Data = it.m.Raw
	return p.b.js.PublishMsgAsync(m, jetstream.WithMsgID(it.m.ID), jetstream.WithExpectStream(EventStream))
}

func (p *Publisher) await(ctx context.Context, it *item, f jetstream.PubAckFuture) {
	t := time.NewTimer(ackWait)
	defer t.Stop()
	back := p.b.nc.StatusChanged(nats.CONNECTED)
	defer p.b.nc.RemoveStatusListener(back)
	select {
	case <-f.Ok():
		p.counts.acked.Add(1)
		p.forget(it.m)
		if p.onAck != nil {
			p.onAck(it.m, time.Since(it.arrived))
		}
		return
	case err := <-f.Err():
		p.log.Warn("publish not acknowledged; will retry", "id", it.m.ID, "error", err)
	case <-t.C:
		p.log.Warn("no acknowledgement in time; will retry", "id", it.m.ID, "after", ackWait)
	case <-back: // what was sent before is not answered any more
		p.log.Debug("connected again before it was acknowledged; will retry", "id", it.m.ID)
	case <-ctx.Done():
		return
	}
	p.counts.failed.Add(1)
	if sleep(ctx, retryEvery) {
		p.accept(it)
	}
}

// Counts reports what happened so far; Waiting is what has no acknowledgement yet.
func (p *Publisher) Counts() Counts {
	p.mu.Lock()
	waiting := len(p.held)
	p.mu.Unlock()
	c := &p.counts
	return Counts{c.sent.Load(), c.acked.Load(), c.failed.Load(), c.dropped.Load(), int64(waiting)}
}

// Flush waits until everything accepted is acknowledged, or ctx ends.
func (p *Publisher) Flush(ctx context.Context) error {
	for {
		n := p.Counts().Waiting
		if n == 0 {
			return nil
		}
		if !sleep(ctx, 5*time.Millisecond) {
			return fmt.Errorf("flush: %d findings have no acknowledgement: %w", n, ctx.Err())
		}
	}
}

// Close flushes for as long as ctx allows and ends the publisher. What is left stays in the spool.
func (p *Publisher) Close(ctx context.Context) error {
	err := p.Flush(ctx)
	p.stop()
	<-p.done
	return err
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
