package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Options of a Dispatcher. The zero value of a bound means its default.
type Options struct {
	Receivers []Receiver
	Log       *slog.Logger
	// Count, Record and Probed, if not nil, hear what became of each notice, of each notice of an incident that was delivered, and of
	// each canary. They are called by several goroutines. Record must return when its context ends.
	Count  func(receiver string, r Result)
	Record func(ctx context.Context, d Delivery)
	Probed func(receiver string, canary Notice, err error)

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
	// Unproven is a notice that the receiver took, and that was not there when it was read back.
	Unproven Result = "unproven"
)

// Delivery is a notice that a receiver took.
type Delivery struct {
	Thread   string    `json:"-"` // the incident
	Receiver string    `json:"receiver"`
	Key      string    `json:"key"`
	Stage    Stage     `json:"stage"`
	At       time.Time `json:"at"`              // when it was delivered
	Proof    string    `json:"proof,omitempty"` // empty: none
}

const (
	defaultQueue   = 1024
	defaultFirst   = 250 * time.Millisecond
	defaultMost    = time.Minute
	defaultGiveUp  = time.Hour
	defaultTimeout = 10 * time.Second
	defaultFlush   = 2 * time.Second
	maxTold        = 8192             // keys remembered
	maxRetryAfter  = 10 * time.Minute // the longest wait that a receiver may ask for
	recordWithin   = 5 * time.Second
)

// ErrRefused is wrapped by the error of a notice that the receiver will never take.
var ErrRefused = errors.New("refused")

// ErrUnproven is wrapped by the error of a notice that the receiver took, and that was not there when it was read back. It is not
// tried again: a receiver behind a load balancer would get it without end.
var ErrUnproven = errors.New("taken, but not there when read back")

// busy is an error of a receiver that asked to wait.
type busy struct {
	error
	after time.Duration
}

func (b busy) Unwrap() error { return b.error }

// answered is an error that the receiver itself gave, and that may pass.
type answered struct{ error }

func (a answered) Unwrap() error { return a.error }

// Dispatcher hands each notice to every receiver.
type Dispatcher struct {
	o     Options
	lines []*line

	mu    sync.Mutex
	term  atomic.Int64 // counts the times that what waited was given up
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
	if o.Record == nil {
		o.Record = func(context.Context, Delivery) {}
	}
	if o.Probed == nil {
		o.Probed = func(string, Notice, error) {}
	}
	d := &Dispatcher{o: o, told: map[string]bool{}}
	named := map[string]int{}
	for _, r := range o.Receivers {
		name := r.Name()
		if named[name]++; named[name] > 1 { // two webhooks of one host are told apart by their order
			name = fmt.Sprintf("%s (%d)", name, named[name])
		}
		l := &line{o: &d.o, to: r, name: name, more: make(chan struct{}, 1), done: map[string]bool{}, term: &d.term}
		if f, can := r.(Follower); can {
			l.follows = f.Follows()
		}
		l.probe, _ = r.(Prober)
		d.lines = append(d.lines, l)
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
	if !d.Heard() || n.Stage == Canary || !d.isNew(n.Key) {
		return
	}
	n = n.tidy()
	for _, l := range d.lines {
		if n.Stage != Progress || l.follows {
			l.put(n)
		}
	}
}

// Probe sends a canary down every line whose receiver takes one, behind the notices that wait there. It does not block.
func (d *Dispatcher) Probe(canary Notice) {
	canary.Stage = Canary
	canary = canary.tidy()
	for _, l := range d.lines {
		if l.probe != nil {
			l.put(canary)
		}
	}
}

// Probes are the names of the receivers that take canaries.
func (d *Dispatcher) Probes() (names []string) {
	for _, l := range d.lines {
		if l.probe != nil {
			names = append(names, l.name)
		}
	}
	return names
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

// Delivered marks what an earlier process delivered: it is not sent to that receiver again.
func (d *Dispatcher) Delivered(all []Delivery) {
	for _, l := range d.lines {
		l.mu.Lock()
		for _, o := range all {
			if o.Receiver == l.name {
				l.done[o.Key] = true
			}
		}
		l.mu.Unlock()
	}
}

// Owes reports whether a receiver was told of an incident, and not that it closed.
func (d *Dispatcher) Owes(all []Delivery) bool {
	return slices.ContainsFunc(d.lines, func(l *line) bool {
		its := func(o Delivery) bool { return o.Receiver == l.name }
		closed := func(o Delivery) bool { return its(o) && o.Stage == Closed }
		return slices.ContainsFunc(all, its) && !slices.ContainsFunc(all, closed)
	})
}

// Forget gives up what waits, and what was told: another process leads now and tells how things stand. A notice that is late would say
// that an incident is open which that process has closed.
func (d *Dispatcher) Forget() {
	d.mu.Lock()
	d.told, d.order = map[string]bool{}, nil
	d.mu.Unlock()
	d.term.Add(1)
	for _, l := range d.lines {
		l.mu.Lock()
		l.queue = nil
		clear(l.done)
		l.mu.Unlock()
	}
}

// Run sends until ctx ends and what then still waits was tried once more.
func (d *Dispatcher) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, l := range d.lines {
		all.Go(func() { l.run(ctx) })
	}
	all.Wait()
}
