package callout_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/callout"
	"github.com/pitcrew/pitcrew/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const cluster = "demo.eu"

// reviewer is an API server that takes every token at its word, unless told otherwise.
type reviewer struct {
	mu    sync.Mutex
	err   error
	asked int
}

func (r *reviewer) ReviewToken(_ context.Context, token string) (bus.Bearer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if r.err != nil {
		return bus.Bearer{}, r.err
	}
	return bus.ReadBearer(token)
}

func (r *reviewer) says(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// token is unsigned: who may sign is the API server's business, and tested on a real one in remediator/cluster.
func token(account, node, pod string, change ...func(map[string]any)) string {
	k := map[string]any{"namespace": "pitcrew-system", "serviceaccount": map[string]any{"name": account}}
	if node != "" {
		k["node"] = map[string]any{"name": node}
	}
	if pod != "" {
		k["pod"] = map[string]any{"name": pod, "uid": "uid-of-" + pod}
	}
	c := map[string]any{"aud": []string{bus.Audience}, "exp": time.Now().Add(time.Hour).Unix(), "kubernetes.io": k}
	for _, f := range change {
		f(c)
	}
	raw, _ := json.Marshal(c)
	return "e30." + base64.RawURLEncoding.EncodeToString(raw) + ".c2ln"
}

// rig is a real nats-server as `pitcrew bus --auth-keys` starts it, and a callout beside it.
type rig struct {
	*testing.T
	url    string
	keys   callout.Keys
	api    *reviewer
	log    *lines
	server *bus.Server
	mu     sync.Mutex
	counts map[string]int
}

type lines struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

func newRig(t *testing.T) *rig {
	t.Helper()
	file := filepath.Join(t.TempDir(), "keys")
	if err := callout.MakeKeys(file); err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, api: &reviewer{}, log: &lines{}, counts: map[string]int{}}
	var err error
	if r.keys, err = callout.ReadKeys(file); err != nil {
		t.Fatal(err)
	}
	auth, err := r.keys.Configure(conf(t))
	if err != nil {
		t.Fatal(err)
	}
	r.server, err = bus.StartServer(bus.ServerOptions{Dir: t.TempDir(), Port: -1, Auth: auth, Logger: slog.New(slog.NewTextHandler(r.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.server.Stop)
	r.url = r.server.URL()
	return r
}

// conf is the configuration that is shipped.
func conf(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("../../deploy/nats-auth.conf")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func (r *rig) callout() *callout.Callout {
	r.Helper()
	c, err := callout.Start(callout.Options{
		URL: r.url, Cluster: cluster, Namespace: "pitcrew-system", Keys: r.keys, Reviewer: r.api, Logger: slog.New(slog.NewTextHandler(r.log, nil)),
		Count: func(o string) { r.mu.Lock(); r.counts[o]++; r.mu.Unlock() },
	})
	if err != nil {
		r.Fatal(err)
	}
	return c
}

func (r *rig) count(outcome string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[outcome]
}

func (r *rig) file(token string) string {
	r.Helper()
	f := filepath.Join(r.TempDir(), "token")
	if err := os.WriteFile(f, []byte(token+"\n"), 0o600); err != nil {
		r.Fatal(err)
	}
	return f
}

func (r *rig) connect(file string) *bus.Bus {
	r.Helper()
	b, err := bus.Connect(bus.Options{URL: r.url, Cluster: cluster, Name: r.Name(), TokenFile: file, Logger: slog.New(slog.NewTextHandler(r.log, nil))})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(b.Close)
	return b
}

// in is connected, with streams.
func (r *rig) in(token string) *bus.Bus {
	r.Helper()
	b := r.connect(r.file(token))
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
	defer cancel()
	if err := b.Wait(ctx); err != nil {
		r.Fatalf("%v\n%s", err, r.log)
	}
	return b
}

func fault(node string) event.Event {
	src := event.Source(cluster, node, "xid")
	return event.Event{ID: event.NewID(src, fmt.Sprint(time.Now().UnixNano())), Source: src, Type: event.Fault, Time: time.Now(),
		Data: event.Data{Target: event.Target{Node: node}, Cause: event.Cause{Kind: "xid", Code: "79"}, Severity: event.Fatal}}
}

// publishes reports whether an event of a node is acknowledged.
func publishes(t *testing.T, b *bus.Bus, e event.Event) bool {
	t.Helper()
	p, err := b.NewPublisher("", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(e); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return p.Close(ctx) == nil
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never came: " + what)
		}
	}
}

func TestANodeSpeaksUnderItsOwnNameAndUnderNoOther(t *testing.T) {
	r := newRig(t)
	defer r.callout().Close()
	r.in(token("pitcrew-remediator", "", "r-0")) // makes the streams
	agent := r.in(token("pitcrew-agent", "node.1", "a-1"))
	if !publishes(t, agent, fault("node.1")) {
		t.Errorf("its own word is refused\n%s", r.log)
	}
	if publishes(t, agent, fault("node.2")) {
		t.Error("it speaks for another node")
	}
	if !strings.Contains(r.log.String(), `Publish Violation`) || !strings.Contains(r.log.String(), `agent node.1`) {
		t.Errorf("the server does not say who tried:\n%s", r.log)
	}
	if n := r.count(callout.Allowed); n != 2 {
		t.Errorf("%d let in", n)
	}
}

func TestANodeAnswersItsOwnCommandsAndHearsNoOthers(t *testing.T) {
	r := newRig(t)
	defer r.callout().Close()
	remediator := r.in(token("pitcrew-remediator", "", "r-0"))
	agent := r.in(token("pitcrew-agent", "node.1", "a-1"))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for _, node := range []string{"node.1", "node.2"} {
		go func() {
			ended <- agent.HandleCommands(ctx, node, map[string]func(context.Context, bus.Command) (bus.Reply, error){
				bus.VerbStatus: func(context.Context, bus.Command) (bus.Reply, error) { return bus.Reply{}, nil },
			})
		}()
	}
	eventually(t, "the node's own answer", func() bool {
		_, err := remediator.Request(ctx, "node.1", bus.VerbStatus, bus.Command{})
		return err == nil
	})
	if _, err := remediator.Request(ctx, "node.2", bus.VerbStatus, bus.Command{}); !errors.Is(err, bus.ErrNoAgent) {
		t.Errorf("another node's command: %v", err)
	}
	cancel()
	for range 2 {
		<-ended
	}
	if !strings.Contains(r.log.String(), "Subscription Violation") {
		t.Errorf("the server does not say who tried:\n%s", r.log)
	}
}

func TestWhoIsNotLetInIsCountedAndTold(t *testing.T) {
	r := newRig(t)
	defer r.callout().Close()
	elsewhere := func(c map[string]any) { c["kubernetes.io"].(map[string]any)["namespace"] = "default" }
	for name, c := range map[string]struct {
		token   string
		api     error
		outcome string
	}{
		"no token":                                 {"", nil, callout.NoToken},
		"an agent without a node":                  {token("pitcrew-agent", "", "a-1"), nil, callout.Unbound},
		"a gateway without a pod":                  {token("pitcrew-gateway", "node.1", ""), nil, callout.Unbound},
		"another account":                          {token("default", "node.1", "p"), nil, callout.NoRole},
		"an account of that name elsewhere":        {token("pitcrew-agent", "node.1", "p", elsewhere), nil, callout.NoRole},
		"a token that the API server refuses":      {token("pitcrew-agent", "node.1", "p"), fmt.Errorf("x: %w", callout.ErrRefused), callout.BadToken},
		"a token while the API server is away":     {token("pitcrew-agent", "node.1", "p"), errors.New("connection refused"), callout.Unasked},
		"a token that ends before it is looked at": {token("pitcrew-agent", "node.1", "p", func(c map[string]any) { c["exp"] = time.Now().Add(-time.Second).Unix() }), nil, callout.BadToken},
	} {
		t.Run(name, func(t *testing.T) {
			r.api.says(c.api)
			was := r.count(c.outcome)
			file := ""
			if c.token != "" {
				file = r.file(c.token)
			}
			b := r.connect(file)
			defer b.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			err := b.Wait(ctx)
			if err == nil || !strings.Contains(err.Error(), "refuses") || !strings.Contains(err.Error(), "PITCREW_NATS_TOKEN_FILE") && !strings.Contains(err.Error(), file) {
				t.Errorf("the client says %v", err)
			}
			if r.count(c.outcome) == was {
				t.Errorf("not counted: %v", r.counts)
			}
		})
	}
}

func TestATokenForAnotherAudienceIsNotEvenShown(t *testing.T) {
	r := newRig(t)
	file := r.file(token("pitcrew-agent", "node.1", "a", func(c map[string]any) { c["aud"] = []string{"https://kubernetes.default.svc"} }))
	_, err := bus.Connect(bus.Options{URL: r.url, TokenFile: file})
	if err == nil || !strings.Contains(err.Error(), "pitcrew-nats") || !strings.Contains(err.Error(), file) {
		t.Errorf("%v", err)
	}
}

func TestWithoutACalloutWhoIsConnectedGoesOnAndWhoIsNotWaits(t *testing.T) {
	r := newRig(t)
	c := r.callout()
	r.in(token("pitcrew-remediator", "", "r-0"))
	agent := r.in(token("pitcrew-agent", "node.1", "a-1"))
	c.Close()
	if !publishes(t, agent, fault("node.1")) {
		t.Error("who is connected may not go on")
	}
	late := r.connect(r.file(token("pitcrew-agent", "node.2", "a-2")))
	spool := t.TempDir()
	p, err := late.NewPublisher(spool, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(fault("node.2")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	if held, _ := os.ReadDir(spool); len(held) != 1 || late.Connected() {
		t.Fatalf("connected %t, %d in the spool", late.Connected(), len(held))
	}
	defer r.callout().Close()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	if err := p.Close(ctx); err != nil {
		t.Errorf("it did not come back: %v", err)
	}
}

func TestAClientThatWasRefusedAgainAndAgainIsLetInOnceItMay(t *testing.T) {
	r := newRig(t)
	defer r.callout().Close()
	r.in(token("pitcrew-remediator", "", "r-0"))
	r.api.says(errors.New("the API server is away"))
	agent := r.connect(r.file(token("pitcrew-agent", "node.1", "a-1")))
	eventually(t, "three refusals", func() bool { return r.count(callout.Unasked) >= 3 })
	r.api.says(nil)
	eventually(t, "the connection", agent.Connected)
}

func TestTwoCalloutsShareTheQuestions(t *testing.T) {
	r := newRig(t)
	a, b := r.callout(), r.callout()
	defer b.Close()
	r.in(token("pitcrew-remediator", "", "r-0"))
	a.Close()
	r.in(token("pitcrew-agent", "node.1", "a-1"))
	if r.api.asked != 2 {
		t.Errorf("%d reviews of two tokens", r.api.asked)
	}
}

func TestAClientComesBackWithTheTokenThatStandsInItsFileWhenItsTimeIsUp(t *testing.T) {
	r := newRig(t)
	defer r.callout().Close()
	r.in(token("pitcrew-remediator", "", "r-0"))
	ends := func(d time.Duration) func(map[string]any) {
		return func(c map[string]any) { c["exp"] = time.Now().Add(d).Unix() }
	}
	file := r.file(token("pitcrew-agent", "node.1", "a-1", ends(2*time.Second)))
	agent := r.connect(file)
	eventually(t, "the connection", agent.Connected)
	if err := os.WriteFile(file, []byte(token("pitcrew-agent", "node.1", "a-1", ends(time.Hour))), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the first token", func() bool { return strings.Contains(r.log.String(), "time is up") })
	eventually(t, "the connection by the second", agent.Connected)
	if !publishes(t, agent, fault("node.1")) {
		t.Error("it may not speak any more")
	}
	if n := r.count(callout.Allowed); n != 3 {
		t.Errorf("%d let in", n)
	}
}
