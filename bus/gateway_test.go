package bus

import (
	"context"
	"strings"
	"testing"
	"time"

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

func TestAGatewaysSubjectsAreNoNodes(t *testing.T) {
	if got := GatewaySubjects("demo.eu", "gw-0"); got != "pitcrew.v1.event.demo=2Eeu.=40gw-0.>" {
		t.Errorf("subjects %s", got)
	}
}
