package process

import (
	"errors"
	"sync"
	"time"
)

// ErrStuck is the error of a look that has not come back in time. It goes on in the background until the kernel lets it go.
var ErrStuck = errors.New("the kernel has not answered in time")

// ErrTooManyStuck is the error of a look that is not begun, because earlier ones of the same owner, or of all, are stuck.
var ErrTooManyStuck = errors.New("earlier looks have not come back")

// Within runs looks that may hang, such as those at the files and the memory of a process on a dead mount, where they block nobody. A
// look that is stuck holds a thread of this process, so their number is bounded: for each owner, so that one pod takes no room from
// another, and for all. It is safe for concurrent use.
type Within struct {
	Deadline      time.Duration
	PerOwner, All int

	mu    sync.Mutex
	owner map[string]int
	stuck int
}

// NewWithin has bounds that suit a node agent.
func NewWithin() *Within { return &Within{Deadline: time.Second, PerOwner: 2, All: 64} }

// Do runs look and waits for its end, at most for the deadline. look must touch nothing that the caller reads if Do fails.
func (w *Within) Do(owner string, look func()) error {
	w.mu.Lock()
	full := w.owner[owner] >= w.PerOwner || w.stuck >= w.All
	w.mu.Unlock()
	if full {
		return ErrTooManyStuck
	}
	done := make(chan struct{})
	var once sync.Mutex // guards late
	late := false
	go func() {
		look()
		once.Lock()
		defer once.Unlock()
		close(done)
		if late {
			w.count(owner, -1)
		}
	}()
	t := time.NewTimer(w.Deadline)
	defer t.Stop()
	select {
	case <-done:
		return nil
	case <-t.C:
	}
	once.Lock()
	defer once.Unlock()
	select {
	case <-done:
		return nil
	default:
	}
	late = true
	w.count(owner, 1)
	return ErrStuck
}

func (w *Within) count(owner string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.owner == nil {
		w.owner = map[string]int{}
	}
	w.stuck += n
	if w.owner[owner] += n; w.owner[owner] == 0 {
		delete(w.owner, owner)
	}
}

// Stuck is how many looks have not come back.
func (w *Within) Stuck() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stuck
}
