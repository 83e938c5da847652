package witness

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

// stage is a cluster whose witnesses the test sets.
type stage struct {
	now            time.Time
	connected      bool
	kubelet        bool // silent
	stalled, known bool
	said           []event.Event
	w              *Watch
}

func newStage() *stage {
	s := &stage{now: time.Unix(1_800_000_000, 0), connected: true, kubelet: true, stalled: true, known: true}
	s.w = New(Options{
		Cluster: "demo", Now: func() time.Time { return s.now }, Connected: func() bool { return s.connected }, Log: slog.New(slog.DiscardHandler),
		Silent:  func(context.Context, string) bool { return s.kubelet },
		Peers:   func(context.Context, string) (bool, bool) { return s.stalled, s.known },
		Publish: func(e event.Event) error { s.said = append(s.said, e); return nil },
	})
	return s
}

// quiet lets n1 be heard last d ago, and the others now.
func (s *stage) quiet(d time.Duration, others ...string) {
	s.w.Heard("n1")
	s.now = s.now.Add(d)
	for _, o := range others {
		s.w.Heard(o)
	}
	s.w.Look(context.Background())
}

func TestANodeIsLostOnlyByTwoWitnesses(t *testing.T) {
	cases := map[string]struct {
		set  func(*stage)
		wait time.Duration
		want int
	}{
		"agent silent, kubelet dead, peers stalled":                      {func(*stage) {}, 2 * time.Second, 1},
		"agent silent for less than three beats":                         {func(*stage) {}, time.Second, 0},
		"agent silent but the kubelet answers: an upgrade":               {func(s *stage) { s.kubelet = false }, time.Minute, 0},
		"agent and kubelet silent but the peers step":                    {func(s *stage) { s.stalled = false }, time.Minute, 0},
		"no job there that could tell, silent for less than the lease":   {func(s *stage) { s.known = false }, 20 * time.Second, 0},
		"no job there that could tell, silent for longer than the lease": {func(s *stage) { s.known = false }, 41 * time.Second, 1},
		"the observer itself was cut off from the bus":                   {func(s *stage) { s.connected = false }, time.Minute, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStage()
			c.set(s)
			s.quiet(c.wait, "n2", "n3")
			if len(s.said) != c.want {
				t.Errorf("%d events, want %d: %+v", len(s.said), c.want, s.said)
			}
		})
	}
}

func TestMostNodesSilentAtOnceIsTheObserversFault(t *testing.T) {
	s := newStage()
	s.w.Heard("n2")
	s.w.Heard("n3")
	s.quiet(time.Minute, "n3")
	if len(s.said) != 0 {
		t.Errorf("concluded %+v from two of three silent", s.said)
	}
}

func TestALostNodeIsSaidOnceAndAgainOnlyAfterItWasHeard(t *testing.T) {
	s := newStage()
	s.quiet(2*time.Second, "n2", "n3")
	s.w.Look(context.Background())
	if len(s.said) != 1 {
		t.Fatalf("%d events, want 1", len(s.said))
	}
	s.quiet(2*time.Second, "n2", "n3")
	if len(s.said) != 2 || s.said[0].ID == s.said[1].ID {
		t.Errorf("a second loss is a new event: %+v", s.said)
	}
	if _, err := event.Encode(s.said[0]); err != nil {
		t.Error(err)
	}
}

func TestAKubeletBehindACutCableLeavesTimeForTheOtherWitness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.w.o.Silent = func(ctx context.Context, _ string) bool { <-ctx.Done(); return true }
		s.w.o.Peers = func(ctx context.Context, _ string) (bool, bool) {
			select {
			case <-ctx.Done():
				return false, true
			case <-time.After(500 * time.Millisecond):
				return true, true
			}
		}
		s.quiet(2*time.Second, "n2", "n3")
		if len(s.said) != 1 {
			t.Errorf("%d events, want 1", len(s.said))
		}
	})
}

func TestManyNodesAreJudgedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		var mu sync.Mutex
		s.w.o.Publish = func(e event.Event) error { mu.Lock(); defer mu.Unlock(); s.said = append(s.said, e); return nil }
		s.w.o.Silent = func(ctx context.Context, _ string) bool { <-ctx.Done(); return true }
		var well []string
		for k := range 200 {
			if s.w.Heard(fmt.Sprintf("lost%d", k)); k > 0 {
				well = append(well, fmt.Sprintf("well%d", k), fmt.Sprintf("also%d", k))
			}
		}
		began := time.Now()
		s.quiet(2*time.Second, well...)
		if took := time.Since(began); len(s.said) != 201 || took > 10*time.Second {
			t.Errorf("%d events after %s", len(s.said), took)
		}
	})
}

func TestNodesThatWereTakenAwayDoNotCountAsSilent(t *testing.T) {
	s := newStage()
	s.w.o.Known = func(name string) bool { return name == "n1" || name == "n2" || name == "n3" }
	for _, gone := range []string{"g1", "g2", "g3", "g4"} {
		s.w.Heard(gone)
	}
	s.quiet(2*time.Second, "n2", "n3")
	if len(s.said) != 1 || s.said[0].Data.Target.Node != "n1" {
		t.Errorf("said %+v", s.said)
	}
}
