package cluster

import (
	"context"
	"sync"
	"time"
)

// signals wakes those who wait for something about a key. A wake-up says "look again", no more.
type signals struct {
	mu   sync.Mutex
	subs map[string]map[chan struct{}]bool
}

func (s *signals) subscribe(key string) (woken <-chan struct{}, cancel func()) {
	ch := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subs == nil {
		s.subs = map[string]map[chan struct{}]bool{}
	}
	if s.subs[key] == nil {
		s.subs[key] = map[chan struct{}]bool{}
	}
	s.subs[key][ch] = true
	return ch, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if delete(s.subs[key], ch); len(s.subs[key]) == 0 {
			delete(s.subs, key)
		}
	}
}

func (s *signals) notify(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ch := range s.subs[key] {
		select {
		case ch <- struct{}{}:
		default: // one wake-up is pending already
		}
	}
}

// notifyOne wakes one of those who wait for a key.
func (s *signals) notifyOne(key string, which <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ch := range s.subs[key] {
		if ch == which {
			select {
			case ch <- struct{}{}:
			default:
			}
		}
	}
}

// await looks, and looks again at each change of key, until look is satisfied or fails, or ctx ends.
func (s *signals) await(ctx context.Context, key string, look func() (done bool, err error)) error {
	woken, cancel := s.subscribe(key)
	defer cancel()
	for {
		if done, err := look(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-woken:
		}
	}
}

// Keys that are not UIDs.
const anyNode = "nodes"

func nodeKey(name string) string { return "node/" + name }

// renewals remembers when a lease was seen to move, by this machine's clock: a node's own clock may be wrong.
type renewals struct {
	mu   sync.Mutex
	seen map[string]renewal
}

type renewal struct{ stamp, at time.Time }

func (r *renewals) saw(node string, stamp, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = map[string]renewal{}
	}
	if last, ok := r.seen[node]; !ok || !last.stamp.Equal(stamp) {
		r.seen[node] = renewal{stamp, now}
	}
}

func (r *renewals) age(node string, now time.Time) (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.seen[node]
	return now.Sub(last.at), ok
}
