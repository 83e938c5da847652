package incident

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/ledger"
)

// stage runs engines on one world, one after the other.
type stage struct {
	*world
	e    *Engine
	stop func()
}

// on runs a test in a bubble of its own time.
func on(t *testing.T, f func(*stage)) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{world: newWorld(t)}
		s.start()
		defer func() { s.stop() }()
		f(s)
	})
}

func (s *stage) engine() *Engine {
	e := &Engine{Name: "test", Cluster: s.world, Checkpoint: ranks{s.world}, Judge: s.world, Store: s.incidents, Attempts: s.attempts, Seen: s.world, Conditions: s.world,
		Now: time.Now, Log: slog.New(slog.DiscardHandler)}
	e.Ledger = ledger.New(ledger.Options{Store: s.books, Now: time.Now, Granted: e.Granted})
	return e
}

// start lets a new leader begin.
func (s *stage) start() { s.startAs(func(*Engine) {}) }

func (s *stage) startAs(set func(*Engine)) {
	ctx, cancel := context.WithCancel(context.Background())
	e := s.engine()
	set(e)
	if err := e.Start(ctx); err != nil {
		s.t.Fatal(err)
	}
	s.e, s.stop = e, func() { cancel(); e.Wait() }
}

func at(signal, node string, more ...func(*event.Event)) event.Event {
	kind, name, _ := strings.Cut(signal, "/")
	e := event.Event{ID: event.NewID(signal, node, fmt.Sprint(time.Now().UnixNano())), Type: event.Fault, Time: time.Now(),
		Data: event.Data{Target: event.Target{Node: node}, Cause: event.Cause{Kind: kind, Name: name}, Severity: event.Critical}}
	for _, f := range more {
		f(&e)
	}
	return e
}

// rankDies ends a rank of the present attempt, with its event.
func (s *stage) rankDies(job string, rank int) event.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gangs["job-"+job]
	g.dead[rank] = true
	m, attempt := g.Member(rank/nproc), g.attempt
	return at("rank/dead", m.Node, func(e *event.Event) {
		e.Data.Target.PodUID, e.Data.Target.Rank, e.Data.Target.Attempt, e.Data.Severity = m.PodUID, &rank, &attempt, event.Fatal
	})
}

func (s *stage) says(e event.Event) {
	s.t.Helper()
	if err := s.e.Handle(context.Background(), e, Origin{}); err != nil {
		s.t.Fatal(err)
	}
}

// only is the one incident there is.
func (s *stage) only() Incident {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.incidents.values) != 1 {
		s.t.Fatalf("%d incidents, want 1", len(s.incidents.values))
	}
	for _, i := range s.incidents.values {
		return i.v
	}
	panic("unreachable")
}

// until lets time pass until the only incident is as wanted, at most so long.
func (s *stage) until(limit time.Duration, what string, want func(Incident) bool) Incident {
	s.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		synctest.Wait()
		i := s.only()
		if want(i) {
			return i
		}
		if time.Now().After(end) {
			s.t.Fatalf("not %s after %s; did %q\n%s", what, limit, s.did, i.story())
		}
	}
}

func (s *stage) closes(limit time.Duration, o Outcome) Incident {
	s.t.Helper()
	i := s.until(limit, "closed", func(i Incident) bool { return !i.Open() })
	if i.Outcome != o {
		s.t.Fatalf("closed as %s (%s), want %s; did %q\n%s", i.Outcome, i.Reason, o, s.did, i.story())
	}
	s.wantTidy()
	return i
}

func (s *stage) reaches(limit time.Duration, state State) Incident {
	s.t.Helper()
	return s.until(limit, string(state), func(i Incident) bool { return i.State == state })
}

// wantTidy: what ended leaves no reservation behind, and no rank that holds.
func (s *stage) wantTidy() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.reserved) > 0 {
		s.t.Errorf("reservations are left: %v", s.reserved)
	}
	if len(s.holding) > 0 {
		s.t.Errorf("ranks still hold for %v", s.holding)
	}
}

// wantOnce: nothing was done twice to one object. Words for people may be said twice.
func (s *stage) wantOnce() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	n := map[string]int{}
	for _, d := range s.did {
		if !strings.HasPrefix(d, "event") && !strings.HasPrefix(d, "condition") {
			n[d]++
		}
	}
	for _, d := range slices.Sorted(maps.Keys(n)) {
		if n[d] > 1 {
			s.t.Errorf("%q was done %d times: %q", d, n[d], s.did)
		}
	}
}

func (s *stage) wantDid(want ...string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var got []string
	for _, d := range s.did {
		if !strings.HasPrefix(d, "event") && !strings.HasPrefix(d, "condition") {
			got = append(got, d)
		}
	}
	if !slices.Equal(got, want) {
		s.t.Errorf("did %q\nwant %q", got, want)
	}
}

// story is what a person reads of the incident.
func (i Incident) story() string {
	var b strings.Builder
	i.Write(&b)
	return b.String()
}
