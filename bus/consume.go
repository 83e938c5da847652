package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pitcrew/pitcrew/event"
)

// Delivery is one event as it came from the stream.
type Delivery struct {
	Event    event.Event
	Age      time.Duration // by JetStream's clock: since the stream stored it
	Sequence uint64
	Node     string // from the subject: who was allowed to publish it, not who it says it is; empty for a gateway
	Gateway  string // the same, of a gateway
	Again    bool   // delivered before
}

// Events delivers each event of the cluster to handle, in stream order, from where the durable consumer stands. handle
// returns nil when the event is dealt with; an error makes it come again. What cannot be decoded is reported to bad and not
// delivered again. It blocks until ctx ends and comes back by itself after a lost connection.
func (b *Bus) Events(ctx context.Context, durable string, handle func(context.Context, Delivery) error, bad func(subject string, err error)) error {
	for {
		err := b.consume(ctx, durable, handle, bad)
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

// errBack says that the connection was lost and is back: what was asked of the server that was is asked again, since a pull that came
// before a restarted server knew its consumers is missed only after two heartbeats, 10 s.
var errBack = errors.New("connected again")

// A message comes again againAfter whoever had it was last heard of: a remediator that died over an event holds up the next one no
// longer. While an event is dealt with, that is said every stillEvery.
const (
	againAfter = 4 * time.Second
	stillEvery = time.Second
)

func (b *Bus) consume(ctx context.Context, durable string, handle func(context.Context, Delivery) error, bad func(string, error)) error {
	link, stop := b.untilBack(ctx)
	defer stop()
	c, err := b.consumer(link, durable, 1)
	if link.Err() != nil {
		return context.Cause(link)
	}
	if err != nil {
		return fmt.Errorf("consumer %s: %w", durable, err)
	}
	failed := make(chan error, 1)
	run, err := c.Consume(func(m jetstream.Msg) {
		b.deal(ctx, m, handle, bad)
	}, jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
		if errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) {
			select {
			case failed <- err:
			default:
			}
		}
	}))
	if err != nil {
		return fmt.Errorf("consume %s: %w", durable, err)
	}
	defer func() { run.Stop(); <-run.Closed() }()
	select {
	case err := <-failed:
		return err
	case <-link.Done():
		return context.Cause(link)
	}
}

// consumer makes the durable consumer, or one that begins now if it has no name.
func (b *Bus) consumer(ctx context.Context, durable string, pending int) (jetstream.Consumer, error) {
	if err := b.Wait(ctx); err != nil {
		return nil, err
	}
	cfg := jetstream.ConsumerConfig{
		Durable: durable, AckPolicy: jetstream.AckExplicitPolicy, AckWait: againAfter, MaxAckPending: pending,
		FilterSubject: eventPrefix + "." + Token(b.cluster) + ".>", DeliverPolicy: jetstream.DeliverAllPolicy,
	}
	if durable == "" {
		cfg.DeliverPolicy = jetstream.DeliverNewPolicy
		cfg.InactiveThreshold = time.Minute
	}
	return b.js.CreateOrUpdateConsumer(ctx, EventStream, cfg)
}

// untilBack is ctx until the connection was lost and is back, which ends it with the cause errBack: a question that went to the server
// that was would be waited for in vain.
func (b *Bus) untilBack(ctx context.Context) (link context.Context, stop func()) {
	link, end := context.WithCancelCause(ctx)
	back := b.nc.StatusChanged(nats.CONNECTED)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-back:
			end(errBack)
		case <-link.Done():
		}
	}()
	return link, func() { end(nil); <-ended; b.nc.RemoveStatusListener(back) }
}

// deal hands one message over. What the server is not told while it is away would come again only after againAfter, and hold up all
// others until then: so it is told when it is back, and what could not be dealt with is tried again here.
func (b *Bus) deal(ctx context.Context, m jetstream.Msg, handle func(context.Context, Delivery) error, bad func(string, error)) {
	for {
		d, err := b.delivery(m) // with its age as it is now
		if err != nil {
			bad(m.Subject(), err)
			_ = m.Term()
			return
		}
		still := b.still(ctx, m)
		err = handle(ctx, d)
		still()
		if err == nil {
			b.ack(ctx, m, d.Event.ID)
			return
		}
		b.log.Warn("event not dealt with; it will come again", "id", d.Event.ID, "error", err)
		if m.NakWithDelay(retryEvery) == nil || !sleep(ctx, retryEvery) {
			return
		}
	}
}

// still tells the server, until done is called, that a message is being dealt with.
func (b *Bus) still(ctx context.Context, m jetstream.Msg) (done func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for sleep(ctx, stillEvery) {
			if err := m.InProgress(); err != nil { // without a connection: it comes again, and is known by its id
				b.log.Debug("still dealing with an event", "error", err)
			}
		}
	}()
	return func() { cancel(); <-ended }
}

// ack tells the server that a message is dealt with, for as long as it would wait for that.
func (b *Bus) ack(ctx context.Context, m jetstream.Msg, id string) {
	for end := time.Now().Add(againAfter); ; {
		try, cancel := context.WithTimeout(ctx, againWithin)
		err := m.DoubleAck(try)
		cancel()
		if err == nil || errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
			return
		}
		if time.Now().After(end) || !sleep(ctx, againEvery) {
			if ctx.Err() == nil {
				b.log.Warn("ack", "id", id, "error", err)
			}
			return
		}
	}
}

func (b *Bus) delivery(m jetstream.Msg) (Delivery, error) {
	e, err := event.Decode(m.Data())
	if err != nil {
		return Delivery{}, err
	}
	md, err := m.Metadata()
	if err != nil {
		return Delivery{}, err
	}
	d := Delivery{Event: e, Age: max(0, time.Since(md.Timestamp)), Sequence: md.Sequence.Stream, Again: md.NumDelivered > 1}
	spoke, err := nodeOf(m.Subject(), eventPrefix)
	if err == nil {
		err = d.admit(spoke)
	}
	if err != nil {
		return Delivery{}, err
	}
	return d, nil
}

// Beat publishes that node's agent lives, now and then every period, until ctx ends. Beats are not stored.
func (b *Bus) Beat(ctx context.Context, node string, every time.Duration) error {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		if b.nc.IsConnected() {
			if err := b.nc.Publish(subject(beatPrefix, b.cluster, node), nil); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
				b.log.Debug("beat", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// Beats calls heard with the node of each beat, until ctx ends.
func (b *Bus) Beats(ctx context.Context, heard func(node string)) error {
	sub, err := b.nc.Subscribe(beatPrefix+"."+Token(b.cluster)+".*", func(m *nats.Msg) {
		if len(m.Data)+len(m.Header)+len(m.Reply) > 0 { // no agent's, but a server's answer that somebody had sent here
			return
		}
		if node, err := nodeOf(m.Subject, beatPrefix); err == nil {
			heard(node)
		}
	})
	if err != nil {
		return fmt.Errorf("beats: %w", err)
	}
	<-ctx.Done()
	return sub.Unsubscribe()
}
