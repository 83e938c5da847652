package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/guard"
)

// Store keeps the book; *bus.Bucket[Book] is one.
type Store interface {
	Get(ctx context.Context, key string) (Book, uint64, error)
	Put(ctx context.Context, key string, v Book, rev uint64) (uint64, error)
}

var (
	// ErrDeposed means that the book carries a later term: another remediator leads.
	ErrDeposed = errors.New("another remediator leads now")
	// ErrReserved means that another incident has reserved the node.
	ErrReserved = errors.New("another incident has reserved the node")
	// ErrNoGrant means that the incident holds no grant, so it must not change anything.
	ErrNoGrant = errors.New("the incident holds no grant")
)

// Options of a Ledger.
type Options struct {
	Store Store
	Term  int64 // of the lease, if there is one; Start raises it above the term in the book
	Now   func() time.Time
	Keep  func() time.Duration // how long guards look back; default 24 h
	Log   *slog.Logger
	// Granted, if not nil, is called after a waiting request was granted: the incident finds the grant when it asks again.
	Granted func(incident string)
}

// Ledger is the leader's access to the book. Its methods may be called at once from many goroutines; what arrives while the book is being
// stored is decided together and stored as one change.
type Ledger struct {
	o   Options
	ops chan op

	mu      sync.RWMutex
	book    Book // as stored
	waiting map[string]Request
	asked   map[string]bool // incidents that asked and have not ended
}

// Request asks for an incident's admission.
type Request struct {
	Incident string
	Severity event.Severity
	IdleGPUs int       // GPUs that stand idle because of the incident
	Since    time.Time // when the incident began to wait
	// Judge gives the guards' verdicts on the request with this book. It is called in the ledger's critical section, perhaps again later
	// while the request waits, so it must be pure and quick.
	Judge func(b *Book, now time.Time) []guard.Verdict
	// Grant is what is recorded if no guard refuses. Where the incident holds a grant already, Nodes, Restart and Charged are added to it.
	Grant guard.Grant
}

// before orders requests: first the graver, then the one that leaves more GPUs idle, then the one that has waited longer.
func (r Request) before(o Request) int {
	return cmp.Or(o.Severity.Compare(r.Severity), cmp.Compare(o.IdleGPUs, r.IdleGPUs), r.Since.Compare(o.Since), cmp.Compare(r.Incident, o.Incident))
}

type op struct {
	ask    *Request
	frees  bool // what it changes may let a waiting request in
	apply  func(*Book) (changed bool, err error)
	answer chan answer
}

type answer struct {
	verdicts []guard.Verdict
	err      error
}

// New prepares a ledger. Start must be called before anything else.
func New(o Options) *Ledger {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Keep == nil {
		o.Keep = func() time.Duration { return guard.JobWindow }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Ledger{o: o, ops: make(chan op), waiting: map[string]Request{}, asked: map[string]bool{}}
}

// Start takes the book over, under a later term than all before, and begins to serve until ctx ends. Where there is no book yet, first makes it. done is closed
// when the last request has been answered after the end of ctx.
func (l *Ledger) Start(ctx context.Context, first func() []guard.Grant, tidy func(*Book)) (done <-chan struct{}, err error) {
	book, rev, err := l.o.Store.Get(ctx, Key)
	switch {
	case errors.Is(err, bus.ErrNotFound):
		book, rev = Book{Grants: first()}, 0
	case err != nil:
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	book = book.clone()
	// Whoever starts has just been elected. The lease's own count can begin anew, where the Lease was deleted; the book's never falls.
	l.o.Term = max(l.o.Term, book.Term+1)
	book.Term = l.o.Term
	tidy(&book)
	if rev, err = l.o.Store.Put(ctx, Key, book, rev); err != nil {
		return nil, fmt.Errorf("take the ledger over: %w", err)
	}
	l.book = book
	ended := make(chan struct{})
	go func() { defer close(ended); l.serve(ctx, rev) }()
	return ended, nil
}

// Term is this leader's term, later than that of every leader before. It is known after Start.
func (l *Ledger) Term() int64 { return l.o.Term }

// Book is the book as it is stored. It must not be changed.
func (l *Ledger) Book() Book {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.book
}

// Admit asks for a grant. No verdict that blocks and a nil error mean that the grant is stored. A refused request keeps waiting: it is judged
// again, before those that rank behind it, whenever a place becomes free, until End.
func (l *Ledger) Admit(ctx context.Context, r Request) ([]guard.Verdict, error) {
	l.mu.Lock()
	l.asked[r.Incident] = true
	l.mu.Unlock()
	a := l.do(ctx, op{ask: &r})
	return a.verdicts, a.err
}

// Park gives the incident's place among the acting ones back while it waits. What it did stays counted.
func (l *Ledger) Park(ctx context.Context, incident string) error {
	if g := l.grant(incident); g == nil || !g.Active {
		return nil
	}
	return l.change(ctx, incident, true, func(g *guard.Grant) bool {
		was := g.Active
		g.Active = false
		return was
	})
}

// Did records actions before they are done: a crash may hide that they were.
func (l *Ledger) Did(ctx context.Context, incident string, verb guard.Done, nodes ...string) error {
	return l.change(ctx, incident, false, func(g *guard.Grant) bool {
		changed := false
		for _, n := range nodes {
			d := guard.Done{Verb: verb.Verb, Node: n, At: verb.At, Round: verb.Round}
			if !slices.ContainsFunc(g.Did, func(o guard.Done) bool { return o.Verb == d.Verb && o.Node == d.Node && o.Round == d.Round }) {
				g.Did, changed = append(g.Did, d), true
			}
		}
		return changed
	})
}

// Target reserves nodes for an incident's replacements in place of those it had reserved. ErrReserved: another open incident has one.
func (l *Ledger) Target(ctx context.Context, incident string, nodes []string) error {
	nodes = slices.Compact(slices.Sorted(slices.Values(nodes)))
	return l.do(ctx, op{apply: func(b *Book) (bool, error) {
		own := b.Grant(incident)
		if own == nil {
			return false, ErrNoGrant
		}
		for _, g := range b.Grants {
			if g.Incident == incident || !g.Ended.IsZero() {
				continue
			}
			for _, n := range nodes {
				if slices.Contains(g.Targets, n) {
					return false, fmt.Errorf("%w: %s is reserved for %s", ErrReserved, n, g.Incident)
				}
			}
		}
		return b.change(incident, func(g *guard.Grant) bool {
			same := slices.Equal(g.Targets, nodes)
			g.Targets = nodes
			return !same
		}), nil
	}}).err
}

// Undid records that what the incident did to a node was undone.
func (l *Ledger) Undid(ctx context.Context, incident, node string) error {
	if g := l.grant(incident); g == nil || !slices.Contains(g.Cordons(), node) {
		return nil
	}
	return l.change(ctx, incident, true, func(g *guard.Grant) bool { return g.Undo(node, l.o.Now()) })
}

// Vain records that the incident's move did not help. It may be repeated.
func (l *Ledger) Vain(ctx context.Context, incident string) error {
	return l.proved(ctx, incident, func(g *guard.Grant) *bool { return &g.Vain })
}

// Helped records that the incident's move helped. It may be repeated.
func (l *Ledger) Helped(ctx context.Context, incident string) error {
	return l.proved(ctx, incident, func(g *guard.Grant) *bool { return &g.Helped })
}

// proved records what a move proved to be. What was recorded first stays: one move did not both help and not help.
func (l *Ledger) proved(ctx context.Context, incident string, what func(*guard.Grant) *bool) error {
	return l.change(ctx, incident, false, func(g *guard.Grant) bool {
		if g.Vain || g.Helped {
			return false
		}
		*what(g) = true
		return true
	})
}

// End returns the incident's grant and withdraws its request. It may be called again, and for an incident that holds none.
func (l *Ledger) End(ctx context.Context, incident string) error {
	l.mu.Lock()
	asked := l.asked[incident]
	delete(l.waiting, incident)
	l.mu.Unlock()
	if g := l.grant(incident); !asked && (g == nil || !g.Ended.IsZero()) {
		return nil
	}
	err := l.do(ctx, op{frees: true, apply: func(b *Book) (bool, error) { // also where a request is being granted at this moment
		return b.change(incident, func(g *guard.Grant) bool { return g.End(l.o.Now()) }), nil
	}}).err
	if err == nil {
		l.mu.Lock()
		delete(l.asked, incident)
		delete(l.waiting, incident)
		l.mu.Unlock()
	}
	return err
}

// Clear records that a person declared a node healthy: what was reported of it until now is history.
func (l *Ledger) Clear(ctx context.Context, node string, at time.Time) error {
	return l.do(ctx, op{frees: true, apply: func(b *Book) (bool, error) {
		if !b.Cleared[node].Before(at) {
			return false, nil
		}
		b.Cleared[node] = at
		for k := range b.Grants {
			if slices.Contains(b.Grants[k].Cordons(), node) {
				b.change(b.Grants[k].Incident, func(g *guard.Grant) bool { return g.Undo(node, at) })
			}
		}
		return true, nil
	}}).err
}

// Cleared is when a person last declared the node healthy; zero: never.
func (l *Ledger) Cleared(node string) time.Time {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.book.Cleared[node]
}

// Waiting lists the requests that wait, in the order in which they will be judged.
func (l *Ledger) Waiting() []Request {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.queue()
}

func (l *Ledger) grant(incident string) *guard.Grant {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.book.Grant(incident)
}

func (l *Ledger) change(ctx context.Context, incident string, frees bool, f func(*guard.Grant) bool) error {
	return l.do(ctx, op{frees: frees, apply: func(b *Book) (bool, error) {
		if b.Grant(incident) == nil {
			return false, ErrNoGrant
		}
		return b.change(incident, f), nil
	}}).err
}

func (l *Ledger) do(ctx context.Context, o op) answer {
	o.answer = make(chan answer, 1)
	select {
	case l.ops <- o:
	case <-ctx.Done():
		return answer{err: ctx.Err()}
	}
	select {
	case a := <-o.answer:
		return a
	case <-ctx.Done():
		return answer{err: ctx.Err()}
	}
}

func (l *Ledger) queue() []Request {
	out := make([]Request, 0, len(l.waiting))
	for _, r := range l.waiting {
		out = append(out, r)
	}
	slices.SortFunc(out, Request.before)
	return out
}
