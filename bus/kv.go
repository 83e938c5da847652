package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pitcrew/pitcrew/event"
)

// ErrConflict is wrapped when a compare-and-swap finds another revision; read again and decide again.
var ErrConflict = errors.New("revision conflict")

// ErrTooLarge is wrapped when a value does not fit into one message. Nothing was written.
var ErrTooLarge = errors.New("the value is larger than a message may be")

// ErrNotFound is wrapped when a key has no value.
var ErrNotFound = errors.New("not found")

// Bucket is a typed, revision-checked key-value bucket of T, kept as JSON. A line of a key is a token of the subject under which its
// value lies, so that rights can be given by it; what is found under another subject than its key's is no value of the bucket.
type Bucket[T any] struct {
	b       *Bus
	name    string
	refused func(key string, err error)
}

// NewBucket gives access to a bucket by name.
func NewBucket[T any](b *Bus, name string) Bucket[T] { return Bucket[T]{b: b, name: name} }

// refusing is the bucket of which values that cannot be read are handed to refused.
func (k Bucket[T]) refusing(refused func(key string, err error)) Bucket[T] {
	k.refused = refused
	return k
}

// kv gives the bucket's handle. It is looked up once for each connection: a lookup asks the server, and another server may not have the bucket.
func (k Bucket[T]) kv(ctx context.Context) (jetstream.KeyValue, error) {
	link := k.b.nc.Stats().Reconnects
	if h, ok := k.b.handles.Load(k.name); ok && h.(handle).link == link {
		return h.(handle).kv, nil
	}
	kv, err := k.b.js.KeyValue(ctx, k.name)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		if err = k.b.Wait(ctx); err == nil {
			kv, err = k.b.js.KeyValue(ctx, k.name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", k.name, err)
	}
	k.b.handles.Store(k.name, handle{kv, link})
	return kv, nil
}

// handle is a bucket as it was found over one connection.
type handle struct {
	kv   jetstream.KeyValue
	link uint64 // reconnections before it was looked up
}

// Get reads the value and its revision.
func (k Bucket[T]) Get(ctx context.Context, key string) (v T, rev uint64, err error) {
	kv, err := k.kv(ctx)
	if err != nil {
		return v, 0, err
	}
	e, err := kv.Get(ctx, path(key))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return v, 0, fmt.Errorf("%s/%s: %w", k.name, key, ErrNotFound)
	}
	if err != nil {
		return v, 0, fmt.Errorf("%s/%s: %w", k.name, key, err)
	}
	if v, err = read[T](key, e.Value()); err != nil {
		return v, 0, fmt.Errorf("%s/%s: %w", k.name, key, err)
	}
	return v, e.Revision(), nil
}

// read takes a value for what it is. A server's answer to somebody's request can come to lie under any key, since NATS asks nobody whether
// he may name the subject of an answer: a value that knows its key is none under another.
func read[T any](key string, raw []byte) (v T, err error) {
	if err = json.Unmarshal(raw, &v); err != nil {
		return v, err
	}
	if k, knows := any(v).(interface{ Key() string }); knows && k.Key() != key {
		return v, fmt.Errorf("what lies there is of %q", k.Key())
	}
	return v, nil
}

// Put writes v if the key stands at rev (0: has no value) and returns the new revision.
func (k Bucket[T]) Put(ctx context.Context, key string, v T, rev uint64) (uint64, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return 0, err
	}
	kv, err := k.kv(ctx)
	if err != nil {
		return 0, err
	}
	var next uint64
	if rev == 0 {
		next, err = kv.Create(ctx, path(key), raw)
	} else {
		next, err = kv.Update(ctx, path(key), raw, rev)
	}
	var api *jetstream.APIError
	if errors.Is(err, jetstream.ErrKeyExists) || errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
		return 0, fmt.Errorf("%s/%s at revision %d: %w", k.name, key, rev, ErrConflict)
	}
	if errors.Is(err, nats.ErrMaxPayload) || errors.As(err, &api) && api.ErrorCode == jsMessageTooLarge {
		return 0, fmt.Errorf("%s/%s: %w: %d bytes", k.name, key, ErrTooLarge, len(raw))
	}
	if err != nil {
		return 0, fmt.Errorf("%s/%s: %w", k.name, key, err)
	}
	return next, nil
}

// jsMessageTooLarge is JetStream's error code for a message beyond the stream's limit.
const jsMessageTooLarge jetstream.ErrorCode = 10054

// Delete removes the key's value if it stands at rev.
func (k Bucket[T]) Delete(ctx context.Context, key string, rev uint64) error {
	kv, err := k.kv(ctx)
	if err != nil {
		return err
	}
	if err := kv.Delete(ctx, path(key), jetstream.LastRevision(rev)); err != nil {
		return fmt.Errorf("%s/%s: %w", k.name, key, err)
	}
	return nil
}

// Set writes v whatever the key's value is now.
func (k Bucket[T]) Set(ctx context.Context, key string, v T) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	kv, err := k.kv(ctx)
	if err == nil {
		_, err = kv.Put(ctx, path(key), raw)
	}
	if err != nil {
		return fmt.Errorf("%s/%s: %w", k.name, key, err)
	}
	return nil
}

// Remove takes away what is under the key, if anything is.
func (k Bucket[T]) Remove(ctx context.Context, key string) error {
	kv, err := k.kv(ctx)
	if err == nil {
		err = kv.Delete(ctx, path(key))
	}
	if err != nil {
		return fmt.Errorf("%s/%s: %w", k.name, key, err)
	}
	return nil
}

// Change is one state of a key. Deleted values have no Value.
type Change[T any] struct {
	Key     string
	Value   T
	Rev     uint64
	Stored  time.Time // by the server's clock
	Deleted bool
}

// List reads every present value, each key once: what is written meanwhile is given as it was or as it is then.
func (k Bucket[T]) List(ctx context.Context) ([]Change[T], error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var out []Change[T]
	at := map[string]int{} // a key that is written during the listing comes again
	err := k.Watch(ctx, cancel, func(c Change[T]) {
		if n, again := at[c.Key]; again {
			out[n] = c
			return
		}
		at[c.Key] = len(out)
		out = append(out, c)
	})
	return slices.DeleteFunc(out, func(c Change[T]) bool { return c.Deleted }), err
}

// Seen remembers an event id past JetStream's window. It reports whether the id was new.
func (b *Bus) Seen(ctx context.Context, id string) (fresh bool, err error) {
	_, err = NewBucket[struct{}](b, SeenBucket).Put(ctx, id, struct{}{}, 0)
	if errors.Is(err, ErrConflict) {
		return false, nil
	}
	return err == nil, err
}

// Attempt is the one truth about who runs what in a job; see docs/contracts.md. The key is the job's UID.
type Attempt struct {
	Term       int64     `json:"term,omitempty"` // of the leader that wrote it: an earlier one must not write over it
	Job        event.Job `json:"job"`
	Attempt    int       `json:"attempt"`
	Incident   string    `json:"incident"`
	NProc      int       `json:"nproc"` // processes per member
	WorldSize  int       `json:"world_size"`
	MasterAddr string    `json:"master_addr,omitempty"` // empty: members stop and stay warm
	MasterPort int       `json:"master_port,omitempty"`
	Members    []Member  `json:"members"`
}

// Member is one pod's place in an attempt.
type Member struct {
	NodeRank int    `json:"node_rank"`
	Node     string `json:"node"`
	PodUID   string `json:"pod_uid,omitempty"` // empty: its pod is not there yet
}

// Key is the job's UID, under which an attempt lies in its bucket.
func (a Attempt) Key() string { return a.Job.UID }

// Attempts is the bucket of attempts.
func (b *Bus) Attempts() Bucket[Attempt] { return NewBucket[Attempt](b, AttemptBucket) }
