package notify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/bus"
)

// Record is what was told of an incident: the proof of each delivery, and the thread that the incident has in each channel.
type Record struct {
	Incident   string            `json:"incident"`
	Deliveries []Delivery        `json:"deliveries,omitempty"` // the newest last, at most maxDeliveries
	Threads    map[string]Thread `json:"threads,omitempty"`    // by receiver
}

// Key is the key under which the record is stored.
func (r Record) Key() string { return r.Incident }

// Thread is an incident's thread in a channel. It is claimed before it is opened, so that two leaders open one.
type Thread struct {
	Claim   string    `json:"claim"` // of whoever opens it
	Claimed time.Time `json:"claimed"`
	Tried   time.Time `json:"tried"` // when it was claimed first: its message is not older
	Channel string    `json:"channel,omitempty"`
	TS      string    `json:"ts,omitempty"`   // of its first message; empty: not opened yet
	Shows   time.Time `json:"shows,omitzero"` // when the notice was that its first message shows
	Said    []string  `json:"said,omitempty"` // keys of the notices in it, at most maxDeliveries
}

const (
	maxDeliveries = 64
	storeTries    = 8
)

// Store keeps records by incident; bus.Bucket[Record] is one.
type Store interface {
	Get(ctx context.Context, key string) (Record, uint64, error)
	Put(ctx context.Context, key string, v Record, rev uint64) (uint64, error)
}

// change applies f to the record of an incident by compare-and-swap, and returns it as it was stored. If f fails, nothing is stored.
func change(ctx context.Context, s Store, id string, f func(*Record) error) (Record, error) {
	for range storeTries {
		r, rev, err := s.Get(ctx, id)
		if err != nil && !errors.Is(err, bus.ErrNotFound) {
			return r, err
		}
		r.Incident = id
		if err := f(&r); err != nil {
			return r, err
		}
		_, err = s.Put(ctx, id, r, rev)
		if !errors.Is(err, bus.ErrConflict) {
			return r, err
		}
	}
	return Record{}, fmt.Errorf("record of the notices of %s: it changes too often", id)
}

// Keep records a delivery. Deliveries of one key to one receiver are one.
func Keep(ctx context.Context, s Store, d Delivery) error {
	_, err := change(ctx, s, d.Thread, func(r *Record) error {
		r.Deliveries = slices.DeleteFunc(r.Deliveries, func(o Delivery) bool { return o.Receiver == d.Receiver && o.Key == d.Key })
		r.Deliveries = newest(append(r.Deliveries, d))
		return nil
	})
	return err
}

func newest[T any](all []T) []T { return all[max(0, len(all)-maxDeliveries):] }

// set changes the thread of a receiver in a record.
func (r *Record) set(receiver string, t Thread) {
	threads := map[string]Thread{receiver: t}
	for name, other := range r.Threads {
		if name != receiver {
			threads[name] = other
		}
	}
	r.Threads = threads
}
