package ledger

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/guard"
)

// shelf keeps one book.
type shelf struct {
	mu   sync.Mutex
	book Book
	rev  uint64
}

func (s *shelf) Get(context.Context, string) (Book, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rev == 0 {
		return Book{}, 0, bus.ErrNotFound
	}
	return s.book.clone(), s.rev, nil
}

func (s *shelf) Put(_ context.Context, _ string, b Book, rev uint64) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rev != s.rev {
		return 0, bus.ErrConflict
	}
	s.rev++
	s.book = b.clone()
	return s.rev, nil
}

// queue is a ledger with two places, and a count of the judgements.
type queue struct {
	*Ledger
	t       *testing.T
	judged  int // in the ledger's critical section
	granted []string
}

func newQueue(t *testing.T) *queue {
	q := &queue{t: t}
	q.Ledger = New(Options{Store: &shelf{}, Granted: func(id string) { q.granted = append(q.granted, id) }})
	if _, err := q.Start(t.Context(), func() []guard.Grant { return nil }, func(*Book) {}); err != nil {
		t.Fatal(err)
	}
	return q
}

func (q *queue) ask(incident string, s event.Severity) bool {
	q.t.Helper()
	v, err := q.Admit(q.t.Context(), Request{Incident: incident, Severity: s, Grant: guard.Grant{Incident: incident, Policy: "p"},
		Judge: func(b *Book, _ time.Time) []guard.Verdict {
			q.judged++
			acting := 0
			for _, g := range b.Grants {
				if g.Open() && g.Active && g.Incident != incident {
					acting++
				}
			}
			return []guard.Verdict{{Guard: guard.Concurrent, Asked: true, Allowed: acting < 2}}
		}})
	if err != nil {
		q.t.Fatal(err)
	}
	return len(guard.Blocking(v)) == 0
}

func TestWhoHoldsAllThatItAsksForDoesNotHaveTheQueueJudged(t *testing.T) {
	q := newQueue(t)
	q.ask("a", event.Critical)
	q.ask("b", event.Critical)
	for k := range 100 {
		if q.ask(fmt.Sprint("waits", k), event.Critical) {
			t.Fatal("three act")
		}
	}
	q.judged = 0
	for range 10 { // its steps
		if !q.ask("a", event.Critical) {
			t.Fatal("it lost its place")
		}
	}
	if q.judged > 10 {
		t.Errorf("%d judgements for 10 steps of an incident that was let in", q.judged)
	}
}

func TestAFreePlaceIsGivenToTheGravestWithoutJudgingThoseForWhomNoneIsLeft(t *testing.T) {
	q := newQueue(t)
	q.ask("a", event.Critical)
	q.ask("b", event.Critical)
	for k := range 100 {
		q.ask(fmt.Sprint("waits", k), event.Critical)
	}
	q.ask("grave", event.Fatal)
	q.judged = 0
	if err := q.End(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if q.ask("b", event.Critical); len(q.granted) != 1 || q.granted[0] != "grave" { // asked after the end was answered
		t.Errorf("granted %v", q.granted)
	}
	if q.judged > 4 {
		t.Errorf("%d judgements for one place", q.judged)
	}
}
