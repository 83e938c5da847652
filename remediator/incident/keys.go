package incident

import "sync"

// keys are locks by name. A name costs nothing while nobody holds it.
type keys struct {
	mu   sync.Mutex
	held map[string]*key
}

type key struct {
	mu    sync.Mutex
	users int
}

// lock waits for a name and returns what gives it back. Whoever takes several takes them in one order.
func (k *keys) lock(name string) (unlock func()) {
	k.mu.Lock()
	if k.held == nil {
		k.held = map[string]*key{}
	}
	own := k.held[name]
	if own == nil {
		own = &key{}
		k.held[name] = own
	}
	own.users++
	k.mu.Unlock()
	own.mu.Lock()
	return func() {
		own.mu.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(k.held, name)
		}
	}
}
