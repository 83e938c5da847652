package bus

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pitcrew/pitcrew/event"
)

func straggler(gateway, node string) event.Event {
	src := event.GatewaySource("demo.eu", gateway, "detector")
	return event.Event{ID: event.NewID(src, node), Source: src, Type: event.Anomaly, Time: time.Unix(1_800_000_000, 0),
		Data: event.Data{Target: event.Target{Node: node, PodUID: "p"}, Cause: event.Cause{Kind: "rank", Name: "straggler"}, Severity: event.Warning}}
}

func TestAGatewaySpeaksOfRanksOnAnyNodeUnderItsOwnName(t *testing.T) {
	b := testBus(t)
	p, err := b.NewPublisher("", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close(t.Context()) }()
	if err := p.Publish(straggler("gw.0", "node.1")); err != nil {
		t.Fatal(err)
	}
	d := collect(t, b, "r", 1)[0]
	if d.Gateway != "gw.0" || d.Node != "" || d.Event.Data.Target.Node != "node.1" {
		t.Errorf("delivery %+v", d)
	}
}

func TestAGatewayCannotSayWhatIsANodesToSayNorANodeSpeakAsAGateway(t *testing.T) {
	forged := func(change func(*event.Event)) event.Event {
		e := straggler("gw-0", "node.1")
		change(&e)
		return e
	}
	none := func(*event.Event) {}
	for name, c := range map[string]struct {
		token string
		e     event.Event
		says  string
	}{
		"a fault on its own subject":       {"@gw-0", forged(func(e *event.Event) { e.Type, e.Data.Cause.Name = event.Fault, "dead" }), "not a gateway's to say"},
		"a lost GPU as an anomaly":         {"@gw-0", forged(func(e *event.Event) { e.Data.Cause = event.Cause{Kind: "gpu", Name: "lost"} }), "only the node itself"},
		"a node's source":                  {"@gw-0", fault(1), "came on the subject of gateway"},
		"another gateway's source":         {"@gw-1", forged(none), "came on the subject of gateway"},
		"a gateway's source from a node":   {"node.1", forged(none), "came on the subject of node"},
		"a gateway's source from a node 2": {"other", forged(none), "came on the subject of node"},
		"something fatal":                  {"@gw-0", forged(func(e *event.Event) { e.Data.Severity = event.Fatal }), "fatal"},
	} {
		t.Run(name, func(t *testing.T) {
			b := testBus(t)
			raw, err := event.Encode(c.e)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if _, err := b.js.Publish(ctx, subject(eventPrefix, "demo.eu", c.token, c.e.Type.Kind()), raw); err != nil {
				t.Fatal(err)
			}
			var why error
			_ = b.Events(ctx, "r", func(_ context.Context, d Delivery) error {
				t.Errorf("delivered %+v", d)
				cancel()
				return nil
			}, func(_ string, err error) { why = err; cancel() })
			if why == nil || !strings.Contains(why.Error(), c.says) {
				t.Errorf("refused with %v, want %q", why, c.says)
			}
		})
	}
}

// found is what a gateway lists of a straggler.
func found(gateway, node string) Condition {
	e := straggler(gateway, node)
	return Condition{Node: node, Gateway: gateway, Key: "rank/straggler job/j/rank/5/attempt/0", Active: true, Event: &e}
}

func TestWhatAGatewayFoundIsListedUntilItIsOverAndIsNoConditionOfANode(t *testing.T) {
	b := testBus(t)
	for _, gw := range []string{"gw.0", "gw-1"} {
		if err := b.SetCondition(t.Context(), found(gw, "node.1")); err != nil {
			t.Fatal(err)
		}
	}
	all, refused, err := b.Found(t.Context())
	if err != nil || len(refused) != 0 || len(all) != 2 || all[0].Gateway != "gw.0" || all[0].Event.Data.Target.Node != "node.1" || time.Since(all[0].Since) > time.Minute {
		t.Errorf("found %+v, %v, %v", all, refused, err)
	}
	current := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-current; cancel() }()
	if err := b.Conditions(ctx, current, func(c Condition) { t.Errorf("a condition: %+v", c) }); err != nil {
		t.Fatal(err)
	}
	over := found("gw.0", "node.1")
	over.Active = false
	for range 2 {
		if err := b.SetCondition(t.Context(), over); err != nil {
			t.Fatal(err)
		}
	}
	other, err := Connect(Options{URL: b.opts.URL, Cluster: "another"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if all, _, err = b.Found(t.Context()); err != nil || len(all) != 1 || all[0].Gateway != "gw-1" {
		t.Errorf("found %+v, %v", all, err)
	}
	if all, _, err = other.Found(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("another cluster found %+v, %v", all, err)
	}
}

func TestAForgedFindingIsNotListed(t *testing.T) {
	for name, c := range map[string]struct {
		key    string
		change func(*Condition)
		says   string
	}{
		"under another gateway's key": {"demo.eu\n@gw-1\nrank/straggler job/j/rank/5/attempt/0", func(*Condition) {}, "calls itself"},
		"under another finding's key": {"demo.eu\n@gw-0\nrank/straggler job/j/rank/6/attempt/0", func(*Condition) {}, "calls itself"},
		"of another gateway's source": {"", func(c *Condition) { c.Event.Source = event.GatewaySource("demo.eu", "gw-1", "detector") }, "its source"},
		"of a node's source":          {"", func(c *Condition) { c.Event.Source = event.Source("demo.eu", "node.1", "detector") }, "its source"},
		"of another node":             {"", func(c *Condition) { c.Node = "node.2" }, "speaks of"},
		"a lost GPU":                  {"", func(c *Condition) { c.Event.Data.Cause = event.Cause{Kind: "gpu", Name: "lost"} }, "it says gpu/lost"},
		"something fatal":             {"", func(c *Condition) { c.Event.Data.Severity = event.Fatal }, "fatal"},
		"without its event":           {"", func(c *Condition) { c.Event = nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b, v := testBus(t), found("gw-0", "node.1")
			c.change(&v)
			if v.Event != nil {
				raw, err := event.Encode(*v.Event)
				if err != nil {
					t.Fatal(err)
				}
				v.Raw = raw
			}
			key := c.key
			if key == "" {
				key = b.foundID(v)
			}
			if err := b.findings().Set(t.Context(), key, v); err != nil {
				t.Fatal(err)
			}
			all, refused, err := b.Found(t.Context())
			if err != nil || len(all) != 0 || len(refused) != 1 || !strings.Contains(refused[0].Error(), c.says) {
				t.Errorf("found %+v, refused %v, %v", all, refused, err)
			}
		})
	}
}

// guarded knows as another user the gateway gw-0 of cluster demo.eu.
func guarded(t *testing.T) (url func(user string) string) {
	t.Helper()
	return users(t, RightsOf(RoleGateway, "demo.eu", "gw-0", "_INBOX"))
}

func TestTheRightsOfAGatewayAreEnoughForItAndForNothingElse(t *testing.T) {
	url := guarded(t)
	root, gw := connect(t, url("pitcrew")), connect(t, url("other"))
	if err := root.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := gw.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	p, err := gw.NewPublisher("", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(straggler("gw-0", "node.1")); err != nil {
		t.Fatal(err)
	}
	closePublisher(t, p)
	if err := gw.SetCondition(ctx, found("gw-0", "node.1")); err != nil {
		t.Error(err)
	}
	if all, _, err := root.Found(ctx); err != nil || len(all) != 1 {
		t.Errorf("found %v, %v", all, err)
	}
	said := Statement{Verb: StateMute, Key: "*", By: "ada", At: time.Now(), Until: time.Now().Add(time.Hour)}
	heard := make(chan Statement, 1)
	go func() {
		_ = gw.WatchStatements(ctx, nil, func(c Change[Statement]) { heard <- c.Value }, func(key string, err error) { t.Errorf("%s: %v", key, err) })
	}()
	if _, err := root.Statements().Put(ctx, said.ID(), said, 0); err != nil {
		t.Fatal(err)
	}
	select {
	case s := <-heard:
		if s.By != "ada" {
			t.Errorf("heard %+v", s)
		}
	case <-ctx.Done():
		t.Fatal("what people say does not reach it")
	}
	for what, do := range map[string]func(context.Context, *Bus) error{
		"state something": func(ctx context.Context, b *Bus) error {
			_, err := b.Statements().Put(ctx, "ack\n\n*", Statement{Verb: StateAck, Key: "*", By: "ada", At: time.Now()}, 0)
			return err
		},
		"list as another gateway": func(ctx context.Context, b *Bus) error { return b.SetCondition(ctx, found("gw-1", "node.1")) },
		"set a node's condition": func(ctx context.Context, b *Bus) error {
			return b.SetCondition(ctx, Condition{Node: "node.1", Key: "gpu/lost"})
		},
		"write an attempt":         func(ctx context.Context, b *Bus) error { return b.Attempts().Set(ctx, "j", Attempt{}) },
		"turn the kill switch":     func(ctx context.Context, b *Bus) error { return b.Control().Set(ctx, KillKey, KillSwitch{On: true}) },
		"read what others found":   func(ctx context.Context, b *Bus) error { _, _, err := b.Found(ctx); return err },
		"speak as another gateway": func(ctx context.Context, b *Bus) error { return b.say(ctx, straggler("gw-1", "node.1")) },
		"speak as a node":          func(ctx context.Context, b *Bus) error { return b.say(ctx, fault(1)) },
		"make a stream": func(ctx context.Context, b *Bus) error {
			_, err := b.js.CreateStream(ctx, jetstream.StreamConfig{Name: "X", Subjects: []string{"x"}})
			return err
		},
	} {
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		if err := do(short, gw); err == nil {
			t.Errorf("it may %s", what)
		}
		cancel()
		if err := do(ctx, root); err != nil { // what is refused is refused for want of the right
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestWhatGatewaysFindIsFollowedAsItIsSetAndTakenAway(t *testing.T) {
	b := testBus(t)
	set := func(node string, active bool) {
		t.Helper()
		e := straggler("gw-0", node)
		if err := b.SetCondition(t.Context(), Condition{Gateway: "gw-0", Node: node, Key: "rank/straggler " + node, Active: active, Event: &e}); err != nil {
			t.Fatal(err)
		}
	}
	set("n1", true)
	current, heard, refused := make(chan struct{}), make(chan Condition, 8), make(chan error, 8)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_ = b.WatchFound(ctx, func() { close(current) }, func(c Condition) { heard <- c }, func(_ string, err error) { refused <- err })
	}()
	<-current
	if c := <-heard; c.Event == nil || c.Node != "n1" || c.Gateway != "gw-0" || c.Since.IsZero() || !c.Active {
		t.Errorf("%+v", c)
	}
	set("n2", true)
	if c := <-heard; c.Node != "n2" {
		t.Errorf("%+v", c)
	}
	set("n1", false)
	if c := <-heard; c.Active || c.Event != nil || c.Key != "rank/straggler n1" || c.Gateway != "gw-0" {
		t.Errorf("%+v", c)
	}
	forged := fault(1) // what only a node may say
	raw, err := event.Encode(forged)
	if err != nil {
		t.Fatal(err)
	}
	c := Condition{Gateway: "gw-0", Node: forged.Data.Target.Node, Key: forged.Data.Cause.Signal() + " x", Active: true, Raw: raw}
	if err := b.findings().Set(t.Context(), b.foundID(c), c); err != nil {
		t.Fatal(err)
	}
	select {
	case <-refused:
	case c := <-heard:
		t.Errorf("taken for a gateway's: %+v", c)
	}
}

// say publishes an event and waits for its acknowledgement.
func (b *Bus) say(ctx context.Context, e event.Event) error {
	_, err := b.js.Publish(ctx, subject(eventPrefix, b.cluster, speaker(e.Source, e.Data.Target.Node), e.Type.Kind()), []byte("{}"))
	return err
}
