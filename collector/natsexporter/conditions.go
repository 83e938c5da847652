package natsexporter

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/bus"
)

const (
	maxConditions = 8192 // waiting; a condition is a last value, so a key waits once
	setDeadline   = 5 * time.Second
	retryAfter    = time.Second // while NATS answers with errors
)

// conditions sets conditions aside from events. Of a key only the newest state waits.
type conditions struct {
	b    *bus.Bus
	log  *zap.Logger
	wake chan struct{}

	mu      sync.Mutex
	order   []string
	latest  map[string]bus.Condition
	busy    bool
	dropped int64
}

func newConditions(b *bus.Bus, log *zap.Logger) *conditions {
	return &conditions{b: b, log: log, wake: make(chan struct{}, 1), latest: map[string]bus.Condition{}}
}

// of names a condition.
func of(v bus.Condition) string { return v.Gateway + "\x00" + v.Node + "\x00" + v.Key }

func (c *conditions) set(v bus.Condition) {
	id := of(v)
	c.mu.Lock()
	if _, waits := c.latest[id]; !waits {
		if len(c.order) >= maxConditions {
			delete(c.latest, c.order[0])
			c.order = c.order[1:]
			c.dropped++
		}
		c.order = append(c.order, id)
	}
	c.latest[id] = v
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *conditions) next() (v bus.Condition, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = len(c.order) > 0
	if !c.busy {
		return v, false
	}
	id := c.order[0]
	c.order = c.order[1:]
	v = c.latest[id]
	delete(c.latest, id)
	return v, true
}

// back puts a condition that was not set in front, unless a newer state of it waits.
func (c *conditions) back(v bus.Condition) {
	id := of(v)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, newer := c.latest[id]; newer {
		return
	}
	c.latest[id] = v
	c.order = append([]string{id}, c.order...)
}

func (c *conditions) run(ctx context.Context) {
	ready := false // the streams are there, as far as is known
	for {
		v, ok := c.next()
		if !ok {
			select {
			case <-ctx.Done():
				return
			case <-c.wake:
			}
			continue
		}
		var err error
		if !ready {
			err = c.b.Wait(ctx)
		}
		if err == nil {
			set, cancel := context.WithTimeout(ctx, setDeadline)
			err = c.b.SetCondition(set, v)
			cancel()
		}
		if ready = err == nil; ready {
			continue
		}
		c.back(v)
		if ctx.Err() != nil {
			return
		}
		c.log.Warn("condition not set; will retry", zap.String("key", v.Key), zap.Error(err))
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryAfter):
		}
	}
}

// flush waits until all are set, or ctx ends.
func (c *conditions) flush(ctx context.Context) {
	t := time.NewTicker(5 * time.Millisecond)
	defer t.Stop()
	for c.b.Connected() {
		c.mu.Lock()
		idle := !c.busy && len(c.order) == 0
		c.mu.Unlock()
		if idle {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (c *conditions) waiting() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(len(c.order))
}
