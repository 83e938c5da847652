package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Options of a Dispatcher. The zero value of a bound means its default.
type Options struct {
	Receivers []Receiver
	Log       *slog.Logger
	// Count, if not nil, hears what became of each notice. It is called by several goroutines.
	Count func(receiver string, r Result)

	Queue   int           // notices that wait for one receiver, default 1,024
	First   time.Duration // wait before the second try, default 250 ms; each further wait is twice as long
	Most    time.Duration // the longest wait, default 1 min
	GiveUp  time.Duration // after the first try, default 1 h
	Timeout time.Duration // of one try, default 10 s
	Flush   time.Duration // for what still waits when the work ends, default 2 s
}

// Result is what became of a notice, or of one try.
type Result string

// The results.
const (
	Sent    Result = "sent"
	Retried Result = "retried" // a try that failed and is made again
	Failed  Result = "failed"  // refused, or tried for too long
	Dropped Result = "dropped" // the queue was full
)

const (
	defaultQueue   = 1024
	defaultFirst   = 250 * time.Millisecond
	defaultMost    = time.Minute
	defaultGiveUp  = time.Hour
	defaultTimeout = 10 * time.Second
	defaultFlush   = 2 * time.Second
	maxTold        = 8192 // keys remembered
)

// ErrRefused is wrapped by the error of a notice that the receiver will never take.
var ErrRefused = errors.New("refused")

// Dispatcher hands each notice to every receiver.
type Dispatcher struct {
	o     Options
	lines []*line

	mu    sync.Mutex
	told  map[string]bool
	order []string // of told, the oldest first
}

// New makes a Dispatcher. Notices wait until Run is called.
func New(o Options) *Dispatcher {
	def(&o.Queue, defaultQueue)
	def(&o.First, defaultFirst)
	def(&o.Most, defaultMost)
	def(&o.GiveUp, defaultGiveUp)
	def(&o.Timeout, defaultTimeout)
	def(&o.Flush, defaultFlush)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Count == nil {
		o.Count = func(string, Result) {}
	}
	d := &Dispatcher{o: o, told: map[string]bool{}}
	named := map[string]int{}
	for _, r := range o.Receivers {
		name := r.Name()
		if named[name]++; named[name] > 1 { // two webhooks of one host are told apart by their order
			name = fmt.Sprintf("%s (%d)", name, named[name])
		}
		d.lines = append(d.lines, &line{o: &d.o, to: r, name: name, more: make(chan struct{}, 1)})
	}
	return d
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Heard reports whether there is a receiver: without one, nobody is told of anything.
func (d *Dispatcher) Heard() bool { return len(d.lines) > 0 }

// Tell takes a notice unless its key was told before. It does not block.
func (d *Dispatcher) Tell(n Notice) {
	if !d.Heard() || !d.isNew(n.Key) {
		return
	}
	for _, l := range d.lines {
		l.put(n)
	}
}

func (d *Dispatcher) isNew(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.told[key] {
		return false
	}
	d.told[key] = true
	if d.order = append(d.order, key); len(d.order) > maxTold {
		delete(d.told, d.order[0])
		d.order = d.order[1:]
	}
	return true
}

// Run sends until ctx ends and what then still waits was tried once more.
func (d *Dispatcher) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, l := range d.lines {
		all.Go(func() { l.run(ctx) })
	}
	all.Wait()
}

// line is the way to one receiver: notices leave in the order in which they came.
type line struct {
	o    *Options
	to   Receiver
	name string // for metrics and logs
	more chan struct{}

	mu    sync.Mutex
	queue []Notice
}

func (l *line) put(n Notice) {
	l.mu.Lock()
	full := len(l.queue) >= l.o.Queue
	if full {
		l.queue = l.queue[1:] // what an incident came to says more than how it began
	}
	l.queue = append(l.queue, n)
	l.mu.Unlock()
	if full {
		l.o.Count(l.name, Dropped)
	}
	select {
	case l.more <- struct{}{}:
	default:
	}
}

func (l *line) take() (Notice, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		return Notice{}, false
	}
	n := l.queue[0]
	l.queue = l.queue[1:]
	return n, true
}

func (l *line) run(ctx context.Context) {
	for ctx.Err() == nil {
		n, ok := l.take()
		if !ok {
			select {
			case <-ctx.Done():
			case <-l.more:
			}
			continue
		}
		if !l.deliver(ctx, n) {
			l.putBack(n)
		}
	}
	l.last(ctx)
}

func (l *line) putBack(n Notice) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append([]Notice{n}, l.queue...)
}

// deliver tries until the notice is sent or given up; false when ctx ended first.
func (l *line) deliver(ctx context.Context, n Notice) bool {
	until := time.Now().Add(l.o.GiveUp)
	for wait := l.o.First; ; wait = min(2*wait, l.o.Most) {
		err := l.try(ctx, n)
		switch {
		case err == nil:
			l.o.Count(l.name, Sent)
			return true
		case ctx.Err() != nil:
			return false
		case errors.Is(err, ErrRefused) || time.Now().After(until):
			l.o.Count(l.name, Failed)
			l.o.Log.Error("notice not sent", "to", l.name, "key", n.Key, "error", err)
			return true
		}
		l.o.Count(l.name, Retried)
		if wait == l.o.First {
			l.o.Log.Warn("notice not sent; trying again", "to", l.name, "key", n.Key, "error", err)
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return false
		case <-t.C:
		}
	}
}

// try sends once. The end of ctx does not tear a try that is under way, or the notice would come twice.
func (l *line) try(ctx context.Context, n Notice) error {
	sending, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.o.Timeout)
	defer cancel()
	hurry := context.AfterFunc(ctx, func() {
		select {
		case <-sending.Done():
		case <-time.After(l.o.Flush):
			cancel()
		}
	})
	defer hurry()
	return l.to.Send(sending, n)
}

// last gives what is left one more chance when the work ends.
func (l *line) last(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.o.Flush)
	defer cancel()
	for n, ok := l.take(); ok; n, ok = l.take() {
		if err := l.to.Send(ctx, n); err != nil {
			l.o.Count(l.name, Failed)
			l.o.Log.Error("notice not sent before the end", "to", l.name, "key", n.Key, "error", err)
			continue
		}
		l.o.Count(l.name, Sent)
	}
}
