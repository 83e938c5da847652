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
	Raw     json.RawMessage `json:"event,omitempty"` // its structured form; a sender that has it need not set Event
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
// nil, is closed when all last values of the moment have been delivered. After a lost connection it goes on as soon as the server is
// back; the ordered consumer of nats.go would take seconds more, since it doubles its waits from one second.
func (b *Bus) Conditions(ctx context.Context, current chan<- struct{}, handle func(Condition)) error {
	back := b.nc.StatusChanged(nats.CONNECTED)
	defer b.nc.RemoveStatusListener(back)
	f := &levels{Bus: b, current: current, handle: handle}
	for {
		err := f.follow(ctx, back)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of the context is the ordinary end
		}
		if f.made.IsZero() {
			return fmt.Errorf("conditions: %w", err)
		}
		if errors.Is(err, errBack) {
			continue
		}
		b.log.Debug("conditions; will retry", "error", err)
		sleep(ctx, againEvery)
	}
}

// levels follows conditions over all the consumers that it needs.
type levels struct {
	*Bus
	current chan<- struct{}
	handle  func(Condition)
	made    time.Time // the stream, which another server may have made anew
	seq     uint64    // the newest that was handed out
}

// follow asks for all last values and hands out those that are not known.
func (f *levels) follow(ctx context.Context, back <-chan nats.Status) error {
	if err := f.Wait(ctx); err != nil {
		return err
	}
	s, err := f.js.Stream(ctx, ConditionStream)
	if err != nil {
		return err
	}
	c, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, MemoryStorage: true, Replicas: 1,
		FilterSubject: conditionPrefix + "." + Token(f.cluster) + ".>", InactiveThreshold: time.Minute,
	})
	if err != nil {
		return err
	}
	info := c.CachedInfo()
	if made := s.CachedInfo().Created; !made.Equal(f.made) {
		f.made, f.seq = made, 0
	}
	f.tell(info.NumPending)
	failed := make(chan error, 1)
	fail := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	taken := uint64(0)
	run, err := c.Consume(func(m jetstream.Msg) {
		md, err := m.Metadata()
		if err != nil || md.Sequence.Consumer != taken+1 {
			fail(fmt.Errorf("a condition was lost on its way, before number %d: %w", taken+1, err))
			return
		}
		taken++
		if md.Sequence.Stream > f.seq {
			f.seq = md.Sequence.Stream
			f.hand(m)
		}
		f.tell(md.NumPending)
	}, jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) { fail(err) }))
	if err != nil {
		return err
	}
	defer func() {
		run.Stop()
		<-run.Closed()
		if f.Connected() { // else it goes by itself
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = s.DeleteConsumer(end, info.Name)
		}
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-failed:
		return err
	case <-back:
		return errBack
	}
}

func (f *levels) hand(m jetstream.Msg) {
	c, err := f.condition(m)
	if err != nil {
		f.log.Warn("condition refused", "subject", m.Subject(), "error", err)
		return
	}
	f.handle(c)
}

func (f *levels) tell(pending uint64) {
	if pending == 0 && f.current != nil {
		close(f.current)
		f.current = nil
	}
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
