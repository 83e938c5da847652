package bus

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/pitcrew/pitcrew/event"
)

// users is a NATS server that knows two: pitcrew may all, and other what r says.
func users(t *testing.T, r Rights) (url func(user string) string) {
	t.Helper()
	p := &server.Permissions{Publish: &server.SubjectPermission{Allow: r.Publish}, Subscribe: &server.SubjectPermission{Allow: r.Subscribe}}
	if r.Answer {
		p.Response = &server.ResponsePermission{MaxMsgs: 1, Expires: time.Minute}
	}
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
		Users: []*server.User{{Username: "pitcrew", Password: "x"}, {Username: "other", Password: "x", Permissions: p}},
	})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("no server")
	}
	return func(user string) string { return strings.Replace(s.ClientURL(), "://", "://"+user+":x@", 1) }
}

// TestAServersAnswerThatANodeHasSentElsewhereIsNobodysWord has a node name, as where the answer to its own event goes, subjects that it
// may not publish to. The server sends it there: it checks where a client publishes and not where it wants its answers.
func TestAServersAnswerThatANodeHasSentElsewhereIsNobodysWord(t *testing.T) {
	url := users(t, RightsOf(RoleAgent, "demo.eu", "node.1", "_INBOX.node"))
	root := connect(t, url("pitcrew"))
	if err := root.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	rogue, err := nats.Connect(url("other"))
	if err != nil {
		t.Fatal(err)
	}
	defer rogue.Close()
	have := func(subject string) {
		t.Helper()
		sub, err := root.nc.SubscribeSync(subject)
		if err != nil || root.nc.Flush() != nil {
			t.Fatal(err)
		}
		if err := rogue.PublishRequest(eventPrefix+".demo=2Eeu.node=2E1.fault", subject, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if m, err := sub.NextMsg(5 * time.Second); err != nil || !strings.Contains(string(m.Data), EventStream) {
			t.Fatalf("the server does not do this any more, and the promises below can be simpler: %v, %v", m, err)
		}
	}
	job := event.Job{UID: "job-1"}
	if _, err := root.Attempts().Put(t.Context(), job.UID, Attempt{Job: job, Attempt: 3}, 0); err != nil {
		t.Fatal(err)
	}
	if err := root.Control().Set(t.Context(), KillKey, KillSwitch{On: true, By: "ada", Since: time.Now()}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var heard atomic.Int64
	ended := make(chan error, 3)
	go func() { ended <- root.Beats(ctx, func(string) { heard.Add(1) }) }()
	switched, attempts := make(chan KillSwitch, 8), make(chan Change[Attempt], 8)
	go func() { ended <- root.WatchKillSwitch(ctx, nil, func(k KillSwitch) { switched <- k }) }()
	go func() { ended <- root.Attempts().Watch(ctx, nil, func(c Change[Attempt]) { attempts <- c }) }()
	if k := <-switched; !k.On || k.By != "ada" {
		t.Fatalf("%+v", k)
	}
	if a := <-attempts; a.Value.Attempt != 3 {
		t.Fatalf("%+v", a)
	}
	have(beatPrefix + ".demo=2Eeu.node=2E2")
	have("$KV." + AttemptBucket + ".job-1")
	have("$KV." + ControlBucket + "." + KillKey)
	if k := <-switched; !k.On || k.By != "nobody" {
		t.Errorf("the kill switch became %+v", k)
	}
	if _, _, err := root.Attempts().Get(t.Context(), job.UID); err == nil || !strings.Contains(err.Error(), "of \"\"") {
		t.Errorf("read as an attempt: %v", err)
	}
	if err := root.Control().Set(t.Context(), KillKey, KillSwitch{By: "ada", Since: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if k := <-switched; k.On || k.By != "ada" {
		t.Errorf("a person's word became %+v", k)
	}
	if len(attempts) != 0 || heard.Load() != 0 {
		t.Errorf("%d attempts and %d beats that are none", len(attempts), heard.Load())
	}
	cancel()
	for range 3 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
