package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Replay calls handle with every event of the cluster that the stream has stored since a time, in stream order, and returns after the
// last one there was at the beginning. What cannot be decoded goes to bad. It leaves nothing behind on the server.
func (b *Bus) Replay(ctx context.Context, since time.Time, handle func(Delivery), bad func(subject string, err error)) error {
	if err := b.Wait(ctx); err != nil {
		return err
	}
	c, err := b.js.CreateConsumer(ctx, EventStream, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since, MemoryStorage: true, Replicas: 1,
		FilterSubject: eventPrefix + "." + Token(b.cluster) + ".>", InactiveThreshold: time.Minute,
	})
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = b.js.DeleteConsumer(end, EventStream, c.CachedInfo().Name)
	}()
	for left := c.CachedInfo().NumPending; left > 0; {
		got, err := c.Fetch(int(min(left, 500)), jetstream.FetchMaxWait(5*time.Second))
		if err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		n := uint64(0)
		for m := range got.Messages() {
			n++
			if d, err := b.delivery(m); err != nil {
				bad(m.Subject(), err)
			} else {
				handle(d)
			}
		}
		if err := got.Error(); err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if n == 0 {
			return fmt.Errorf("replay: %d events did not come within 5 s", left)
		}
		left -= min(n, left)
	}
	return nil
}
