package bus

import (
	"context"
	"testing"
	"time"
)

func TestTheBacklogIsWhatTheDurableConsumerHasNotReceived(t *testing.T) {
	b := testBus(t)
	publish(t, b, 1, 2, 3)
	if got, err := b.EventBacklog(t.Context()); err != nil || got != (Backlog{Stored: 3}) {
		t.Fatalf("before anybody consumes: %+v, %v; want 3 stored", got, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = b.Events(ctx, "d", func(context.Context, Delivery) error { return nil }, nil)
	}()
	await := func(want Backlog) {
		t.Helper()
		var got Backlog
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			var err error
			if got, err = b.EventBacklog(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got == want {
				return
			}
		}
		t.Fatalf("%+v, want %+v", got, want)
	}
	await(Backlog{Consumers: 1, Stored: 3, Delivered: 3, Reached: 3, Waiting: 1})
	cancel()
	<-ended
	publish(t, b, 4, 5)
	await(Backlog{Consumers: 1, Stored: 5, Delivered: 3, Pending: 2, Reached: 3})
}
