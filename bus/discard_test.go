package bus

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

func TestWhatTheStreamDiscardsIsCounted(t *testing.T) {
	b := testBus(t)
	publish(t, b, 1, 2, 3)
	s, err := b.js.Stream(t.Context(), EventStream)
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.CachedInfo().Config
	cfg.MaxMsgs = 1 // its bound is reached
	if _, err := b.js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if cfg.Discard != jetstream.DiscardOld {
		t.Fatalf("a full stream refuses new events: %v", cfg.Discard)
	}
	if got, err := b.EventBacklog(t.Context()); err != nil || got.Stored != 3 || got.Discarded != 2 {
		t.Errorf("%+v, %v; want 2 of 3 discarded", got, err)
	}
}
