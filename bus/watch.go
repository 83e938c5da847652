package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Watch calls handle with each present value and then with each change, until ctx ends. current, if not nil, is called once
// after the present values. After a lost connection it goes on as soon as the server is back, with what was written meanwhile: nats.go
// alone would notice only by two heartbeats missed, 10 s, that a server which was restarted does not know its consumer any more.
func (k Bucket[T]) Watch(ctx context.Context, current func(), handle func(Change[T])) error {
	back := k.b.nc.StatusChanged(nats.CONNECTED)
	defer k.b.nc.RemoveStatusListener(back)
	f := &following[T]{Bucket: k, current: current, handle: handle}
	w, err := f.begin(ctx)
	if err != nil {
		return err
	}
	for {
		lost, err := f.follow(ctx, w, back)
		_ = w.Stop()
		if !lost {
			return err
		}
		if w = f.again(ctx); w == nil {
			return nil
		}
	}
}

const (
	againWithin = 2 * time.Second // an answer that is lost with the connection never comes
	againEvery  = 100 * time.Millisecond
)

// following is a watch over all the consumers that it needs.
type following[T any] struct {
	Bucket[T]
	current func()
	handle  func(Change[T])
	made    time.Time // the bucket, which another server may not have or may have made anew
	rev     uint64    // the newest that was handed out
}

// again begins anew until it succeeds: a server takes connections before it knows its streams. It is nil when ctx has ended.
func (f *following[T]) again(ctx context.Context) jetstream.KeyWatcher {
	for {
		ready, cancel := context.WithTimeout(ctx, againWithin)
		_, err := f.kv(ready)
		cancel()
		if err == nil {
			var w jetstream.KeyWatcher
			if w, err = f.begin(ctx); err == nil {
				return w
			}
		}
		f.b.log.Debug("watch again; will retry", "bucket", f.name, "error", err)
		if !sleep(ctx, againEvery) {
			return nil
		}
	}
}

// begin asks for all present values; follow leaves out those that are known.
func (f *following[T]) begin(ctx context.Context) (jetstream.KeyWatcher, error) {
	kv, err := f.kv(ctx)
	if err != nil {
		return nil, err
	}
	s, err := f.b.js.Stream(ctx, bucketStream+f.name)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", f.name, err)
	}
	if made := s.CachedInfo().Created; !made.Equal(f.made) {
		f.made, f.rev = made, 0
	}
	w, err := kv.WatchAll(ctx)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", f.name, err)
	}
	return w, nil
}

// follow hands out changes until ctx ends, or, with lost true, the connection was lost and is back.
func (f *following[T]) follow(ctx context.Context, w jetstream.KeyWatcher, back <-chan nats.Status) (lost bool, err error) {
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case <-back:
			return true, nil
		case e, ok := <-w.Updates():
			if !ok && ctx.Err() != nil { // both are ready then, and select takes either
				return false, nil
			}
			if !ok {
				return false, fmt.Errorf("watch %s ended", f.name)
			}
			if e == nil {
				if f.current != nil {
					f.current()
					f.current = nil
				}
				continue
			}
			if e.Revision() > f.rev {
				f.rev = e.Revision()
				f.deliver(e, f.handle)
			}
		}
	}
}

func (k Bucket[T]) deliver(e jetstream.KeyValueEntry, handle func(Change[T])) {
	key, err := unpath(e.Key())
	c := Change[T]{Key: key, Rev: e.Revision(), Stored: e.Created(), Deleted: e.Operation() != jetstream.KeyValuePut}
	if err == nil && !c.Deleted {
		c.Value, err = read[T](key, e.Value())
	}
	if err != nil {
		if k.refused != nil {
			k.refused(e.Key(), err)
			return
		}
		k.b.log.Warn("value refused", "bucket", k.name, "key", e.Key(), "error", err)
		return
	}
	handle(c)
}
