package callout_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/callout"
	"github.com/pitcrew/pitcrew/event"
)

// deeds are what Pitcrew's programs do on the bus, and who may.
var deeds = []struct {
	what string
	by   string // whom of parties it is for, in letters: agent, gateway, remediator, operator, reader
	do   func(context.Context, *testing.T, *bus.Bus) error
}{
	{"report of its node", "aR", func(ctx context.Context, t *testing.T, b *bus.Bus) error { return says(t, b, fault("node.1")) }},
	{"report of another node", "R", func(ctx context.Context, t *testing.T, b *bus.Bus) error { return says(t, b, fault("node.2")) }},
	{"compare ranks as the gateway it is", "gR", func(ctx context.Context, t *testing.T, b *bus.Bus) error { return says(t, b, straggler("gw-0")) }},
	{"compare ranks as another gateway", "R", func(ctx context.Context, t *testing.T, b *bus.Bus) error { return says(t, b, straggler("gw-1")) }},
	{"set a condition of its node", "aR", func(ctx context.Context, _ *testing.T, b *bus.Bus) error {
		return b.SetCondition(ctx, bus.Condition{Node: "node.1", Key: "gpu/lost gpu/1", Active: true})
	}},
	{"set a condition of another node", "R", func(ctx context.Context, _ *testing.T, b *bus.Bus) error {
		return b.SetCondition(ctx, bus.Condition{Node: "node.2", Key: "gpu/lost gpu/1", Active: true})
	}},
	{"list a finding as the gateway it is", "g", func(ctx context.Context, _ *testing.T, b *bus.Bus) error { return b.SetCondition(ctx, found("gw-0")) }},
	{"list a finding as another gateway", "", func(ctx context.Context, _ *testing.T, b *bus.Bus) error { return b.SetCondition(ctx, found("gw-1")) }},
	{"read findings", "Ror", func(ctx context.Context, _ *testing.T, b *bus.Bus) error { _, _, err := b.Found(ctx); return err }},
	{"follow attempts", "aR", func(ctx context.Context, _ *testing.T, b *bus.Bus) error {
		_, err := b.Attempts().List(ctx)
		return err
	}},
	{"write an attempt", "R", func(ctx context.Context, _ *testing.T, b *bus.Bus) error {
		return b.Attempts().Set(ctx, "j", bus.Attempt{Job: event.Job{UID: "j"}})
	}},
	{"follow statements", "agor", func(ctx context.Context, _ *testing.T, b *bus.Bus) error {
		_, err := b.Statements().List(ctx)
		return err
	}},
	{"state", "o", func(ctx context.Context, _ *testing.T, b *bus.Bus) error {
		s := bus.Statement{Verb: bus.StateAck, Key: "*", By: "ada", At: time.Now()}
		return b.Statements().Set(ctx, s.ID(), s)
	}},
	{"read a statement", "or", func(ctx context.Context, _ *testing.T, b *bus.Bus) error {
		return absent(b.Statements().Get(ctx, "ack\n\nx"))
	}},
	{"turn the kill switch", "Ro", func(ctx context.Context, _ *testing.T, b *bus.Bus) error {
		return b.Control().Set(ctx, bus.KillKey, bus.KillSwitch{By: "ada", Since: time.Now()})
	}},
	{"read the kill switch", "Ror", func(ctx context.Context, _ *testing.T, b *bus.Bus) error {
		return absent(b.Control().Get(ctx, bus.KillKey))
	}},
	{"list incidents", "Ror", func(ctx context.Context, _ *testing.T, b *bus.Bus) error {
		_, err := bus.NewBucket[struct{}](b, bus.IncidentBucket).List(ctx)
		return err
	}},
	{"write into an incident", "Ro", func(ctx context.Context, _ *testing.T, b *bus.Bus) error {
		return bus.NewBucket[struct{}](b, bus.IncidentBucket).Set(ctx, "inc-1", struct{}{})
	}},
	{"remember an event", "R", func(ctx context.Context, _ *testing.T, b *bus.Bus) error { _, err := b.Seen(ctx, "id"); return err }},
	{"replay events", "Ror", func(ctx context.Context, _ *testing.T, b *bus.Bus) error {
		return b.Replay(ctx, time.Now().Add(-time.Hour), func(bus.Delivery) {}, func(string, error) {})
	}},
	{"read the backlog of events", "or", func(ctx context.Context, _ *testing.T, b *bus.Bus) error {
		_, err := b.EventBacklog(ctx)
		return err
	}},
	{"take events", "R", func(ctx context.Context, _ *testing.T, b *bus.Bus) error { return taken(ctx, b, bus.ActingConsumer) }},
	{"watch events", "Ror", func(ctx context.Context, _ *testing.T, b *bus.Bus) error { return taken(ctx, b, "") }},
	{"read conditions", "Ror", func(ctx context.Context, _ *testing.T, b *bus.Bus) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		current, ended := make(chan struct{}), make(chan error, 1)
		go func() { ended <- b.Conditions(ctx, current, func(bus.Condition) {}) }()
		select {
		case <-current:
			cancel()
			return <-ended
		case err := <-ended:
			return errors.Join(err, ctx.Err())
		}
	}},
	{"command an agent", "R", func(ctx context.Context, _ *testing.T, b *bus.Bus) error {
		_, err := b.Request(ctx, "node.1", bus.VerbStatus, bus.Command{})
		return err
	}},
}

func absent[T any](_ T, _ uint64, err error) error {
	if errors.Is(err, bus.ErrNotFound) {
		return nil
	}
	return err
}

// taken takes one event, which somebody keeps saying, and acknowledges it.
func taken(ctx context.Context, b *bus.Bus, durable string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	got := errors.New("no event came")
	_ = b.Events(ctx, durable, func(context.Context, bus.Delivery) error { got = nil; cancel(); return nil }, func(string, error) {})
	return got
}

func says(t *testing.T, b *bus.Bus, e event.Event) error {
	if !publishes(t, b, e) {
		return errors.New("not acknowledged")
	}
	return nil
}

func straggler(gateway string) event.Event {
	e := fault("node.1")
	e.Source = event.GatewaySource(cluster, gateway, "detector")
	e.Type, e.Data.Cause, e.Data.Severity = event.Anomaly, event.Cause{Kind: "rank", Name: "straggler"}, event.Warning
	return e
}

func found(gateway string) bus.Condition {
	e := straggler(gateway)
	return bus.Condition{Node: "node.1", Gateway: gateway, Key: "rank/straggler job/j/rank/5/attempt/0", Active: true, Event: &e}
}

func TestEachRoleMayDoItsWorkAndNothingElse(t *testing.T) {
	r := newRig(t)
	defer r.callout().Close()
	remediator := r.in(token("pitcrew-remediator", "", "r-0")) // first, since it makes the streams
	agent := r.in(token("pitcrew-agent", "node.1", "a-1"))
	parties := []struct {
		letter string
		bus    *bus.Bus
	}{
		{"a", agent}, {"g", r.in(token("pitcrew-gateway", "node.2", "gw-0"))}, {"R", remediator},
		{"o", r.in(token("pitcrew-operator", "", ""))}, {"r", r.in(token("pitcrew-reader", "", ""))},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 4)
	heard := make(chan string, 1)
	go func() {
		ended <- agent.HandleCommands(ctx, "node.1", map[string]func(context.Context, bus.Command) (bus.Reply, error){
			bus.VerbStatus: func(context.Context, bus.Command) (bus.Reply, error) { return bus.Reply{}, nil },
		})
	}()
	go func() {
		ended <- remediator.Beats(ctx, func(n string) {
			select {
			case heard <- n:
			default:
			}
		})
	}()
	go func() { ended <- agent.Beat(ctx, "node.1", 10*time.Millisecond) }()
	go func() { // events to take
		for ctx.Err() == nil {
			if p, err := remediator.NewPublisher("", nil); err == nil {
				_ = p.Publish(fault("node.3"))
				_ = p.Close(ctx)
			}
			time.Sleep(50 * time.Millisecond)
		}
		ended <- nil
	}()
	select {
	case n := <-heard:
		if n != "node.1" {
			t.Errorf("a beat of %q", n)
		}
	case <-time.After(10 * time.Second):
		t.Error("no beat is heard")
	}
	if log := r.log.String(); strings.Contains(log, "Violation") {
		t.Errorf("somebody does at once what he may not:\n%s", log)
	}
	var under sync.WaitGroup
	for _, d := range deeds {
		for _, p := range parties {
			under.Go(func() {
				may, within := strings.Contains(d.by, p.letter), time.Second
				if may {
					within = 10 * time.Second
				}
				ctx, cancel := context.WithTimeout(ctx, within)
				defer cancel()
				if err := d.do(ctx, t, p.bus); (err == nil) != may {
					t.Errorf("%s: %s: may %t, and: %v", p.letter, d.what, may, err)
				}
			})
		}
	}
	under.Wait()
	cancel()
	for range 4 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if n := r.count(callout.Allowed); n != len(parties) {
		t.Errorf("%d let in", n)
	}
}
