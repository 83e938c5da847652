package statementsextension

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
)

// shelf keeps records of one gateway, as a store does.
type shelf struct {
	mu     sync.Mutex
	name   string
	own    map[string]string
	given  map[string]string
	others map[string]string // by gateway and id
}

func newShelf(name string, own int) *shelf {
	s := &shelf{name: name, own: map[string]string{}, given: map[string]string{}, others: map[string]string{}}
	for i := range own {
		s.own[fmt.Sprint("r", i)] = "1"
	}
	return s
}

func (s *shelf) Offers() (out []bus.ClassOffer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, raw := range s.own {
		if s.given[id] != raw && len(out) < bus.OffersMost {
			out = append(out, bus.ClassOffer{ClassRecord: bus.ClassRecord{Gateway: s.name, ID: id, Raw: []byte(raw)}})
		}
	}
	for id := range s.given {
		if _, here := s.own[id]; !here {
			out = append(out, bus.ClassOffer{ClassRecord: bus.ClassRecord{Gateway: s.name, ID: id}, Gone: true})
		}
	}
	return out
}

func (s *shelf) Given(o bus.ClassOffer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.given[o.ID] = string(o.Raw); o.Gone {
		delete(s.given, o.ID)
	}
}

func (s *shelf) Take(r bus.ClassRecord) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case string(r.Raw) == "nonsense":
		return errors.New("nonsense")
	case r.Gateway == s.name:
		s.given[r.ID] = string(r.Raw)
	default:
		s.others[r.Gateway+"/"+r.ID] = string(r.Raw)
	}
	return nil
}

func (s *shelf) set(id, raw string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own[id] = raw; raw == "" {
		delete(s.own, id)
	}
}

func (s *shelf) has(of, id, raw string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.others[of+"/"+id] == raw
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func TestGatewaysExchangeWhatTheyKeepAndOnlyWhatChanged(t *testing.T) {
	srv := bustest.Server(t)
	tel := componenttest.NewTelemetry()
	t.Cleanup(func() { _ = tel.Shutdown(context.Background()) })
	open := func(name string) *gateway {
		cfg := NewFactory().CreateDefaultConfig().(*Config)
		cfg.URL, cfg.Cluster, cfg.Node = srv.URL(), "c", name
		set := extensiontest.NewNopSettings(Type)
		if name == "gw-0" {
			set.TelemetrySettings = tel.NewTelemetrySettings()
		}
		x, err := NewFactory().Create(t.Context(), set, cfg)
		if err != nil {
			t.Fatal(err)
		}
		g := x.(*gateway)
		g.every = 50 * time.Millisecond
		if err := g.Start(t.Context(), componenttest.NewNopHost()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := g.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return g
	}
	count := func(name string) int64 {
		m, err := tel.GetMetric(name)
		if err != nil {
			t.Fatal(err)
		}
		return m.Data.(metricdata.Sum[int64]).DataPoints[0].Value
	}
	const many = bus.OffersMost + 44 // more than are given at a time
	a, b := newShelf("gw-0", many), newShelf("gw-1", 2)
	first := open("gw-0")
	first.every = time.Hour // the first time gives all
	stop := first.ExchangeClasses(a)
	defer open("gw-1").ExchangeClasses(b)()
	eventually(t, "all records", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.others) == many
	})
	stop()
	first.every = 50 * time.Millisecond
	stop = first.ExchangeClasses(a)
	eventually(t, "those of the other", func() bool { return a.has("gw-1", "r1", "1") })
	a.set("r7", "2")
	eventually(t, "what changed", func() bool { return b.has("gw-0", "r7", "2") })
	a.set("r8", "")
	eventually(t, "that nothing is left to give", func() bool { return len(a.Offers()) == 0 })
	if n := count("pitcrew.classes.given"); n != many+2 {
		t.Errorf("%d were given", n)
	}
	if err := first.bus.SetClass(t.Context(), bus.ClassRecord{Gateway: "gw-3", ID: "x", Raw: []byte("nonsense")}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the refusal", func() bool { return count("pitcrew.classes.refused") == 1 })
	stop()

	again := newShelf("gw-0", many) // the gateway anew: it sees what it gave before, and gives what differs
	again.set("r7", "3")
	again.set("r8", "")
	defer first.ExchangeClasses(again)()
	eventually(t, "what differs", func() bool { return b.has("gw-0", "r7", "3") })
	if n := count("pitcrew.classes.given"); n != many+3 {
		t.Errorf("%d were given in all", n)
	}
}
