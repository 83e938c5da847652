package incident

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/pitcrew/pitcrew/bus"
)

// kv is a bucket in memory. It keeps what JSON keeps, as the real one does. Readers share one value, and whoever changes it in place is found
// at the next write and at the end (see unchanged).
type kv[T any] struct {
	w      *world
	values map[string]kept[T]
	shared map[string]lent[T] // what readers got since the last write
	rev    uint64
	stored func(key string)            // called at each write, under the lock
	put    func(key string, v T) error // called before each write
	after  func(key string, v T) error // called after it took effect; an error is a lost answer
}

type kept[T any] struct {
	v   T
	rev uint64
}

type lent[T any] struct {
	v   T
	rev uint64
	raw []byte
}

func newKV[T any](w *world) *kv[T] {
	k := &kv[T]{w: w, values: map[string]kept[T]{}, shared: map[string]lent[T]{}}
	w.t.Cleanup(func() {
		for key := range k.shared {
			k.unchanged(key)
		}
	})
	return k
}

func (k *kv[T]) Get(_ context.Context, key string) (v T, rev uint64, err error) {
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	have, ok := k.values[key]
	if !ok {
		return v, 0, bus.ErrNotFound
	}
	return k.share(key, have), have.rev, nil
}

// share decodes a value once for all its readers. The caller holds the lock.
func (k *kv[T]) share(key string, have kept[T]) T {
	if s, ok := k.shared[key]; ok && s.rev == have.rev {
		return s.v
	}
	k.unchanged(key)
	raw := encoded(have.v)
	s := lent[T]{rev: have.rev, raw: raw}
	if err := json.Unmarshal(raw, &s.v); err != nil {
		panic(err)
	}
	k.shared[key] = s
	return s.v
}

// unchanged checks that no reader changed the value it got: it belongs to the store.
func (k *kv[T]) unchanged(key string) {
	if s, ok := k.shared[key]; ok && !bytes.Equal(encoded(s.v), s.raw) {
		k.w.t.Errorf("a reader of %s changed the stored value in place\nfrom %s\nto   %s", key, s.raw, encoded(s.v))
	}
}

func (k *kv[T]) Put(_ context.Context, key string, v T, rev uint64) (uint64, error) {
	k.w.mu.Lock()
	put := k.put
	k.w.mu.Unlock()
	if put != nil {
		if err := put(key, v); err != nil {
			return 0, err
		}
	}
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	if k.values[key].rev != rev {
		return 0, bus.ErrConflict
	}
	k.rev++
	mine := k.rev
	k.values[key] = kept[T]{through(v), mine}
	if k.stored != nil {
		k.stored(key)
	}
	k.w.wrotes("put", false)
	if k.after != nil {
		if err := k.after(key, v); err != nil {
			return 0, err
		}
	}
	return mine, nil
}

func encoded(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

func through[T any](v T) (out T) {
	if err := json.Unmarshal(encoded(v), &out); err != nil {
		panic(err)
	}
	return out
}

func (k *kv[T]) Delete(_ context.Context, key string, rev uint64) error {
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	if k.values[key].rev != rev {
		return bus.ErrConflict
	}
	delete(k.values, key)
	return nil
}

func (k *kv[T]) List(context.Context) (out []bus.Change[T], err error) {
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	for key, have := range k.values {
		out = append(out, bus.Change[T]{Key: key, Value: through(have.v), Rev: have.rev})
	}
	return out, nil
}
