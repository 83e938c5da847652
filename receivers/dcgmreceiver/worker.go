package dcgmreceiver

import (
	"fmt"
	"sync"
	"time"
)

// worker makes all calls of a Source, on one goroutine of its own. So at most one call is outstanding, whatever the driver does;
// and who waits for an answer waits on a channel, beside a clock, and never on the driver.
type worker struct {
	jobs chan func()
	now  func() time.Time

	mu   sync.Mutex
	call string // under way, empty when idle
	at   time.Time
}

func newWorker(now func() time.Time) *worker {
	w := &worker{jobs: make(chan func(), 1), now: now}
	go func() {
		for job := range w.jobs {
			job()
		}
	}()
	return w
}

// stop ends the goroutine after the job under way. One that hangs for ever is left behind: there is no way to end a C call.
func (w *worker) stop() { close(w.jobs) }

// enter notes that a call begins; leave, that the last one ended.
func (w *worker) enter(call string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.call, w.at = call, w.now()
}

func (w *worker) leave() { w.enter("") }

// overdue returns the call that has been under way for longer than limit.
func (w *worker) overdue(limit time.Duration) (call string, yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.call, w.call != "" && w.now().Sub(w.at) >= limit
}

// call makes one call of the source under its name, so that a hang can be named.
func call[T any](w *worker, name string, f func() (T, error)) (T, error) {
	w.enter(name)
	defer w.leave()
	v, err := f()
	if err != nil {
		return v, fmt.Errorf("dcgm %s: %w", name, err)
	}
	return v, nil
}
