package incident

import (
	"context"
	"encoding/json"

	"github.com/pitcrew/pitcrew/bus"
)

// kv is a bucket in memory that keeps JSON, as the real one does.
type kv[T any] struct {
	w      *world
	values map[string]kept[T]
	rev    uint64
	stored func(key string)            // called at each write, under the lock
	put    func(key string, v T) error // called before each write
	after  func(key string, v T) error // called after it took effect; an error is a lost answer
}

type kept[T any] struct {
	v   T
	rev uint64
}

func newKV[T any](w *world) *kv[T] { return &kv[T]{w: w, values: map[string]kept[T]{}} }

func (k *kv[T]) Get(_ context.Context, key string) (v T, rev uint64, err error) {
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	have, ok := k.values[key]
	if !ok {
		return v, 0, bus.ErrNotFound
	}
	return through(have.v), have.rev, nil
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

func through[T any](v T) (out T) {
	raw, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
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

func (k *kv[T]) Watch(ctx context.Context, _ func(), _ func(bus.Change[T])) error {
	<-ctx.Done()
	return nil
}
