package remediator

import (
	"fmt"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/notify"
)

// onset is a finding of a rank with its GPU, by its agent or by a gateway.
func onset(source, kind, name string, rank int, after time.Duration, change ...func(*event.Event)) event.Event {
	attempt := 0
	e := event.Event{
		ID: fmt.Sprint(source, kind, name, rank, after), Source: source, Type: event.Anomaly, Time: t0.Add(after + 5*time.Second), Data: event.Data{
			Target: event.Target{Node: "a1", PodUID: "pod-1", Rank: &rank, Attempt: &attempt, GPU: fmt.Sprint("GPU-", rank)},
			Cause:  event.Cause{Kind: kind, Name: name}, Severity: event.Warning, Onset: t0.Add(after),
		},
	}
	for _, f := range change {
		f(&e)
	}
	return e
}

func TestWhatAgentAndGatewayFindOfOneOnsetIsToldOnce(t *testing.T) {
	agent, gateway := event.Source("c", "a1", "detector"), event.GatewaySource("c", "gw-0", "detector")
	slow := onset(gateway, "rank", "straggler", 3, 0)
	worse := func(e *event.Event) { e.Data.Severity = event.Critical }
	unknown := func(e *event.Event) { e.Data.Target.PodUID, e.Data.Target.Rank, e.Data.Target.Attempt = "", nil, nil }
	cases := map[string]struct {
		a, b  event.Event
		tells int
	}{
		"a straggler that throttles":                 {slow, onset(agent, "anomaly", "thermal-throttle", 3, 20*time.Second), 1},
		"a straggler that launches late":             {slow, onset(agent, "anomaly", "launch-latency", 3, -time.Second), 1},
		"a GPU whose rank its agent does not know":   {slow, onset(agent, "anomaly", "thermal-throttle", 3, 0, unknown), 1},
		"a rank that did not enter a collective":     {onset(gateway, "torch", "desync", 3, 0), onset(agent, "torch", "desync", 3, 9*time.Second), 1},
		"another rank":                               {slow, onset(agent, "anomaly", "thermal-throttle", 2, 0), 2},
		"another cause":                              {slow, onset(agent, "torch", "desync", 3, 0), 2},
		"a later onset":                              {slow, onset(agent, "anomaly", "thermal-throttle", 3, 2*time.Minute), 2},
		"another attempt":                            {slow, onset(agent, "anomaly", "thermal-throttle", 3, 0, func(e *event.Event) { e.Data.Target.Attempt = new(int); *e.Data.Target.Attempt = 1 }), 2},
		"two causes on one node":                     {onset(agent, "anomaly", "launch-latency", 3, 0), onset(agent, "anomaly", "thermal-throttle", 3, 0), 2},
		"two that a gateway tells apart":             {slow, onset(gateway, "rank", "imbalance", 3, 0), 2},
		"a GPU of which nobody knows the rank twice": {onset(agent, "anomaly", "degraded", 3, 0, unknown), onset(gateway, "rank", "straggler", 3, 0, func(e *event.Event) { e.Data.Target.GPU = "" }), 2},
	}
	for name, c := range cases {
		for order, pair := range map[string][2]event.Event{"": {c.a, c.b}, ", the other way round": {c.b, c.a}} {
			t.Run(name+order, func(t *testing.T) {
				heard := telling(t, tellPolicy, func(r *remediator) {
					for range 2 { // delivered again, or of two gangs
						for _, e := range pair {
							ignore(r, e)
						}
					}
				})
				if len(heard) != c.tells {
					t.Errorf("told %d times: %+v", len(heard), heard)
				}
			})
		}
	}
	t.Run("what is worse than people know is news, and what is less is not", func(t *testing.T) {
		throttles := onset(agent, "anomaly", "thermal-throttle", 3, 0, worse)
		for _, pair := range [][2]event.Event{{slow, throttles}, {throttles, slow}} {
			heard := telling(t, tellPolicy, func(r *remediator) {
				ignore(r, pair[0])
				ignore(r, pair[1])
			})
			if want := map[event.Severity]int{event.Warning: 2, event.Critical: 1}[pair[0].Data.Severity]; len(heard) != want {
				t.Errorf("after %s told %d times", pair[0].Data.Severity, len(heard))
			}
		}
	})
}

func TestOnsetsThatAreRememberedAreBounded(t *testing.T) {
	var o onsets
	for i := range 3 * maxOnsets {
		if _, yes := o.told(onset("s", "anomaly", "degraded", i, 0)); yes {
			t.Fatal("told before")
		}
	}
	if len(o.recent) != maxOnsets {
		t.Errorf("%d remembered", len(o.recent))
	}
}

func TestNothingIsCollectedForEventsThatNobodyIsToldOf(t *testing.T) {
	deaf := &remediator{notices: notify.New(notify.Options{})}
	if deaf.listener() != nil {
		t.Error("events that no rule acts on are listened to without a receiver")
	}
	hears := &remediator{notices: notify.New(notify.Options{Receivers: []notify.Receiver{&ear{}}})}
	if hears.listener() == nil {
		t.Error("a receiver hears nothing of events that no rule acts on")
	}
}

// A flood of one side is compared with nothing: its cost does not grow with what is remembered.
func TestAFloodOfOneSideIsComparedWithNothing(t *testing.T) {
	var o onsets
	agent, gateway := event.Source("c", "a1", "detector"), event.GatewaySource("c", "gw-0", "detector")
	for i := range 2 * maxOnsets {
		o.told(onset(agent, "anomaly", "degraded", i, 0))
	}
	if n := len(o.by[cause{true, slowRank}]); n != 0 {
		t.Errorf("an agent's finding is compared with %d", n)
	}
	if n := len(o.by[cause{false, slowRank}]); n != maxOnsets || len(o.ids) != maxOnsets {
		t.Errorf("%d of %d ids are compared with a gateway's, want %d", n, len(o.ids), maxOnsets)
	}
	if _, known := o.told(onset(gateway, "rank", "straggler", 2*maxOnsets-1, 0)); !known {
		t.Error("the gateway's word of the last one is news")
	}
	if _, known := o.told(onset(gateway, "rank", "straggler", 0, 0)); known {
		t.Error("one that was forgotten is known")
	}
}

func BenchmarkToldOfAFlood(b *testing.B) {
	var o onsets
	agent, k := event.Source("c", "a1", "detector"), 0
	for b.Loop() {
		o.told(onset(agent, "anomaly", "degraded", k, 0))
		k++
	}
}
