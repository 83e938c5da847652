package remediator_test

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

func TestARealRemediatorTakesUpWhatItObservedOnceItsPolicyEnforces(t *testing.T) {
	s := sandboxtest.Cluster(t)
	nodes := []string{"observed-1", "observed-2"}
	bare(t, s, nodes)
	observes := strings.Replace(latencyPolicy, "mode: enforce", "mode: observe", 1)
	var file, url string
	leading(t, s, &times{at: map[string]time.Time{}}, observes, func(o *remediator.Options) { file, url = o.Policies[0], o.NATS })
	b, err := bus.Connect(bus.Options{URL: url, Cluster: "bench"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var beats sync.WaitGroup
	defer beats.Wait()
	defer cancel()
	stands := func(node string, active bool) {
		t.Helper()
		src := event.Source("bench", node, "xid")
		e := event.Event{ID: event.NewID(src, node), Source: src, Type: event.Fault, Time: time.Now(), Data: event.Data{
			Target: event.Target{Cluster: "bench", Node: node, GPU: "GPU-" + node}, Cause: event.Cause{Kind: "xid", Code: "79"}, Severity: event.Fatal}}
		if err := b.SetCondition(t.Context(), bus.Condition{Node: node, Key: "xid/79 gpu/GPU-" + node, Active: active, Since: time.Now(), Event: &e}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		beats.Go(func() { _ = b.Beat(ctx, n, 200*time.Millisecond) })
		stands(n, true)
	}
	incidents := bus.NewBucket[incident.Incident](b, bus.IncidentBucket)
	with := func(o incident.Outcome) (n int) {
		all, err := incidents.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			if c.Value.Outcome == o {
				n++
			}
		}
		return n
	}
	for end := time.Now().Add(20 * time.Second); with(incident.Observed) < 2; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d were observed", with(incident.Observed))
		}
	}
	stands(nodes[1], false) // it ended before anybody acted
	if err := os.WriteFile(file, []byte(latencyPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	if !quarantined(t, s, nodes[0], 20*time.Second) {
		t.Error("what still holds was not taken up when the policy enforced")
	}
	if quarantined(t, s, nodes[1], 200*time.Millisecond) {
		t.Error("what had ended was taken up")
	}
	if n := with(incident.Quarantined); n != 1 {
		t.Errorf("%d incidents acted, not one", n)
	}
}
