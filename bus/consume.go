package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
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
		b.log.Warn("event consumer ended; starting again", "error", err)
		sleep(ctx, retryEvery)
	}
}

func (b *Bus) consume(ctx context.Context, durable string, handle func(context.Context, Delivery) error, bad func(string, error)) error {
	if err := b.Wait(ctx); err != nil {
		return err
	}
	cfg := jetstream.ConsumerConfig{
		Durable: durable, AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second, MaxAckPending: 1,
		FilterSubject: eventPrefix + "." + Token(b.cluster) + ".>", DeliverPolicy: jetstream.DeliverAllPolicy,
	}
	if durable == "" {
		cfg.DeliverPolicy = jetstream.DeliverNewPolicy
		cfg.InactiveThreshold = time.Minute
	}
	c, err := b.js.CreateOrUpdateConsumer(ctx, EventStream, cfg)
	if err != nil {
		return fmt.Errorf("consumer %s: %w", durable, err)
	}
	failed := make(chan error, 1)
	run, err := c.Consume(func(m jetstream.Msg) {
		d, err := b.delivery(m)
		if err != nil {
			bad(m.Subject(), err)
			_ = m.Term()
			return
		}
		if err := handle(ctx, d); err != nil {
			b.log.Warn("event not dealt with; it will come again", "id", d.Event.ID, "error", err)
			_ = m.NakWithDelay(retryEvery)
			return
		}
		if err := m.DoubleAck(ctx); err != nil && ctx.Err() == nil {
			b.log.Warn("ack", "id", d.Event.ID, "error", err)
		}
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
	case <-ctx.Done():
		return ctx.Err()
	case err := <-failed:
		return err
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

// Condition is the current state of one thing on a node.
type Condition struct {
	Node string `json:"node"`
	// Gateway is who says it of something on the node, or on none, in place of the node itself.
	Gateway string          `json:"gateway,omitempty"`
	Key     string          `json:"key"`             // the signal and what it is about, for example "xid/79 gpu/GPU-..."
	Active  bool            `json:"active"`          // false: cleared
	Since   time.Time       `json:"since"`           // of the present state
	BootID  string          `json:"boot_id"`         // a condition of another boot is history
	Event   *event.Event    `json:"-"`               // what opened it
	Raw     json.RawMessage `json:"event,omitempty"` // its structured form
}

// SetCondition publishes the state of c.Key on c.Node; the stream keeps the last. What a gateway found is kept apart from what holds on
// nodes, until it is cleared or has not been set again for ten minutes: nobody acts on it, and it does not outlive its gateway.
func (b *Bus) SetCondition(ctx context.Context, c Condition) error {
	if c.Event != nil {
		raw, err := event.Encode(*c.Event)
		if err != nil {
			return err
		}
		c.Raw = raw
	}
	if c.Gateway != "" {
		return b.setFound(ctx, c)
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	_, err = b.js.Publish(ctx, subject(conditionPrefix, b.cluster, c.Node, c.Key), raw)
	if err != nil {
		return fmt.Errorf("condition %s of node %s: %w", c.Key, c.Node, err)
	}
	return nil
}

// Conditions calls handle with the last value of each condition and then with each change, until ctx ends. current, if not
// nil, is closed when all last values of the moment have been delivered.
func (b *Bus) Conditions(ctx context.Context, current chan<- struct{}, handle func(Condition)) error {
	if err := b.Wait(ctx); err != nil {
		return err
	}
	c, err := b.js.OrderedConsumer(ctx, ConditionStream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{conditionPrefix + "." + Token(b.cluster) + ".>"}, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy,
	})
	if err != nil {
		return fmt.Errorf("conditions: %w", err)
	}
	info, err := c.Info(ctx)
	if err != nil {
		return fmt.Errorf("conditions: %w", err)
	}
	told := current == nil
	tell := func(pending uint64) {
		if pending == 0 && !told {
			told = true
			close(current)
		}
	}
	tell(info.NumPending)
	run, err := c.Consume(func(m jetstream.Msg) {
		if cond, err := b.condition(m); err != nil {
			b.log.Warn("condition refused", "subject", m.Subject(), "error", err)
		} else {
			handle(cond)
		}
		if md, err := m.Metadata(); err == nil {
			tell(md.NumPending)
		}
	})
	if err != nil {
		return fmt.Errorf("conditions: %w", err)
	}
	<-ctx.Done()
	run.Stop()
	<-run.Closed()
	return nil
}

func (b *Bus) condition(m jetstream.Msg) (Condition, error) {
	var c Condition
	if err := json.Unmarshal(m.Data(), &c); err != nil {
		return c, err
	}
	node, err := nodeOf(m.Subject(), conditionPrefix)
	if err != nil {
		return c, err
	}
	if strings.HasPrefix(node, gatewayMark) { // what holds on a node is for it alone to say
		return c, fmt.Errorf("condition from gateway %q", node)
	}
	if c.Node != node {
		return c, fmt.Errorf("condition of node %q on the subject of node %q", c.Node, node)
	}
	if len(c.Raw) > 0 {
		e, err := event.Decode(c.Raw)
		if err != nil {
			return c, err
		}
		c.Event = &e
	}
	return c, nil
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
