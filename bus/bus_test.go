package bus

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/quick"
	"time"

	"go.uber.org/goleak"

	"github.com/pitcrew/pitcrew/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func startServer(t *testing.T, dir string, port int) *Server {
	t.Helper()
	s, err := StartServer(ServerOptions{Dir: dir, Port: port})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func connect(t *testing.T, url string) *Bus {
	t.Helper()
	b, err := Connect(Options{URL: url, Cluster: "demo.eu", Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func testBus(t *testing.T) *Bus {
	s := startServer(t, t.TempDir(), -1)
	t.Cleanup(s.Stop)
	b := connect(t, s.URL())
	if err := b.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

func fault(n int) event.Event {
	src := event.Source("demo.eu", "node.1", "xid")
	return event.Event{ID: event.NewID(src, strconv.Itoa(n)), Source: src, Type: event.Fault, Time: time.Unix(1_800_000_000, int64(n)),
		Data: event.Data{Target: event.Target{Node: "node.1"}, Cause: event.Cause{Kind: "xid", Code: "79"}, Severity: event.Fatal}}
}

// collect consumes n events and returns them in order.
func collect(t *testing.T, b *Bus, durable string, n int) []Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var got []Delivery
	err := b.Events(ctx, durable, func(_ context.Context, d Delivery) error {
		got = append(got, d)
		if len(got) == n {
			cancel()
		}
		return nil
	}, func(s string, err error) { t.Logf("refused on %s: %v", s, err) })
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != n {
		t.Fatalf("%d events, want %d", len(got), n)
	}
	return got
}

func closePublisher(t *testing.T, p *Publisher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestAResentEventIsOneMessage(t *testing.T) {
	b := testBus(t)
	p, err := b.NewPublisher("", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 1, 2} {
		if err := p.Publish(fault(n)); err != nil {
			t.Fatal(err)
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	closePublisher(t, p)
	got := collect(t, b, "r", 2)
	if got[0].Event.ID != fault(1).ID || got[1].Event.ID != fault(2).ID || got[0].Node != "node.1" {
		t.Errorf("got %+v", got)
	}
}

func TestAFindingSurvivesAgentAndServerRestart(t *testing.T) {
	dir, spool := t.TempDir(), filepath.Join(t.TempDir(), "spool")
	// No server yet: the finding is accepted, and the agent ends before any server comes.
	b1, err := Connect(Options{URL: "nats://127.0.0.1:1", Cluster: "demo.eu"})
	if err != nil {
		t.Fatal(err)
	}
	p1, err := b1.NewPublisher(spool, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p1.Publish(fault(7)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if p1.Close(ctx) == nil {
		t.Fatal("closing with an unsent finding must say so")
	}
	b1.Close()
	if err := os.WriteFile(filepath.Join(spool, "0-x"+spoolSuffix), []byte("{torn"), 0o600); err != nil {
		t.Fatal(err)
	}

	s := startServer(t, dir, -1)
	b2 := connect(t, s.URL())
	p2, err := b2.NewPublisher(spool, nil)
	if err != nil {
		t.Fatal(err)
	}
	closePublisher(t, p2)
	s.Stop()

	s = startServer(t, dir, -1) // the stream survives the server as well
	defer s.Stop()
	b3 := connect(t, s.URL())
	if got := collect(t, b3, "r", 1); got[0].Event.ID != fault(7).ID {
		t.Errorf("got %+v", got[0].Event)
	}
	left, _ := os.ReadDir(spool)
	if len(left) != 1 || filepath.Ext(left[0].Name()) != ".bad" {
		t.Errorf("spool holds %v, want only the unreadable file set aside", left)
	}
}

func TestANodeCannotSpeakForAnother(t *testing.T) {
	b := testBus(t)
	raw, err := event.Encode(fault(1))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := b.js.Publish(ctx, subject(eventPrefix, "demo.eu", "other", "fault"), raw); err != nil {
		t.Fatal(err)
	}
	refused := false
	_ = b.Events(ctx, "r", func(_ context.Context, d Delivery) error {
		t.Errorf("delivered %+v", d)
		return nil
	}, func(string, error) { refused = true; cancel() })
	if !refused {
		t.Error("a forged node was not refused")
	}
}

func TestConditionsKeepTheLastValue(t *testing.T) {
	b := testBus(t)
	e := fault(1)
	for _, active := range []bool{true, false, true} {
		if err := b.SetCondition(t.Context(), Condition{Node: "node.1", Key: "xid/79", Active: active, Event: &e}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.SetCondition(t.Context(), Condition{Node: "n2", Key: "gpu/lost"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	current := make(chan struct{})
	var got []Condition
	done := make(chan error)
	go func() { done <- b.Conditions(ctx, current, func(c Condition) { got = append(got, c) }) }()
	<-current
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || !got[0].Active || got[0].Event == nil || got[0].Event.ID != e.ID || got[1].Node != "n2" {
		t.Errorf("got %+v", got)
	}
}

func TestCommandsAreAnsweredAndAMissingAgentIsNamed(t *testing.T) {
	b := testBus(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- b.HandleCommands(ctx, "node.1", map[string]func(context.Context, Command) (Reply, error){
			VerbStatus: func(_ context.Context, c Command) (Reply, error) {
				return Reply{Pods: []PodStatus{{PodUID: c.PodUIDs[0]}}}, nil
			},
			VerbArm: func(context.Context, Command) (Reply, error) { return Reply{}, errors.New("no such pod") },
		})
	}()
	eventually(t, func() bool {
		r, err := b.Request(ctx, "node.1", VerbStatus, Command{PodUIDs: []string{"u"}})
		return err == nil && r.Node == "node.1" && r.Pods[0].PodUID == "u"
	})
	if _, err := b.Request(ctx, "node.1", VerbArm, Command{}); err == nil || err.Error() != "arm on node node.1: no such pod" {
		t.Errorf("handler error: %v", err)
	}
	if _, err := b.Request(ctx, "node.1", "format-disk", Command{}); err == nil {
		t.Error("an unknown verb must be an error")
	}
	if _, err := b.Request(ctx, "nobody", VerbStatus, Command{}); !errors.Is(err, ErrNoAgent) {
		t.Errorf("missing agent: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestBucketsRefuseAStaleRevision(t *testing.T) {
	b := testBus(t)
	k := b.Attempts()
	rev, err := k.Put(t.Context(), "job/1", Attempt{Job: event.Job{UID: "job/1"}, Attempt: 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Put(t.Context(), "job/1", Attempt{Job: event.Job{UID: "job/1"}, Attempt: 9}, 0); !errors.Is(err, ErrConflict) {
		t.Errorf("create over a value: %v", err)
	}
	if _, err := k.Put(t.Context(), "job/1", Attempt{Job: event.Job{UID: "job/1"}, Attempt: 2}, rev); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Put(t.Context(), "job/1", Attempt{Job: event.Job{UID: "job/1"}, Attempt: 9}, rev); !errors.Is(err, ErrConflict) {
		t.Errorf("stale revision: %v", err)
	}
	if a, _, err := k.Get(t.Context(), "job/1"); err != nil || a.Attempt != 2 {
		t.Errorf("got %+v %v", a, err)
	}
	if _, _, err := k.Get(t.Context(), "job/2"); !errors.Is(err, ErrNotFound) {
		t.Errorf("missing key: %v", err)
	}
	all, err := k.List(t.Context())
	if err != nil || len(all) != 1 || all[0].Key != "job/1" {
		t.Errorf("list %+v %v", all, err)
	}
}

func TestAStatementIsReplacedByTheNextOfItsKindAndFollowed(t *testing.T) {
	b := testBus(t)
	s := Statement{Verb: StateMute, Node: "node.1", Key: "anomaly/sm-clock gpu/GPU-1", By: "ada", At: time.Now(), Until: time.Now().Add(time.Hour)}
	rev, err := b.Statements().Put(t.Context(), s.ID(), s, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.Until = s.Until.Add(time.Hour)
	if _, err := b.Statements().Put(t.Context(), s.ID(), s, rev); err != nil {
		t.Fatal(err)
	}
	all, err := b.Statements().List(t.Context())
	if err != nil || len(all) != 1 || !all[0].Value.Until.Equal(s.Until) || all[0].Key != s.ID() {
		t.Errorf("list %+v %v", all, err)
	}
}

func TestAStatementIsCheckedAndNamesItsNodes(t *testing.T) {
	at := time.Now()
	for name, s := range map[string]Statement{
		"verb":      {Verb: "hide", Key: "*", At: at},
		"key":       {Verb: StateAck, At: at},
		"end":       {Verb: StateMute, Key: "*", At: at},
		"at most":   {Verb: StateMute, Key: "*", At: at, Until: at.Add(MaxMute + time.Hour)},
		"more than": {Verb: StateAck, Key: strings.Repeat("x", 2000), At: at},
		"at is":     {Verb: StateAck, Key: "*"},
	} {
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for node, want := range map[string]bool{"": true, "a1": true, "a*": true, "*": true, "a2": false, "b*": false} {
		if (Statement{Node: node}).Of("a1") != want {
			t.Errorf("node %q", node)
		}
	}
}

func TestAnEventIsFreshOnce(t *testing.T) {
	b := testBus(t)
	for i, want := range []bool{true, false, false} {
		if got, err := b.Seen(t.Context(), "id"); err != nil || got != want {
			t.Errorf("time %d: %v %v", i, got, err)
		}
	}
}

func TestBeatsNameTheirNode(t *testing.T) {
	b := testBus(t)
	ctx, cancel := context.WithCancel(t.Context())
	var heard atomic.Int64
	done := make(chan error, 2)
	go func() {
		done <- b.Beats(ctx, func(n string) {
			if n == "node.1" {
				heard.Add(1)
			}
		})
	}()
	go func() { done <- b.Beat(ctx, "node.1", time.Millisecond) }()
	eventually(t, func() bool { return heard.Load() > 2 })
	cancel()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestTokensAreReversibleAndSafe(t *testing.T) {
	check := func(s string) bool {
		tok := Token(s)
		for _, c := range []byte(tok) {
			if c == '.' || c == '*' || c == '>' || c <= ' ' || c >= 0x7f {
				return false
			}
		}
		back, err := Untoken(tok)
		return err == nil && back == s && tok != ""
	}
	if err := quick.Check(check, nil); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"a=", "=Z1", "=4"} {
		if s, err := Untoken(bad); err == nil {
			t.Errorf("%q was read as %q", bad, s)
		}
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal("did not happen in 20 s")
}
