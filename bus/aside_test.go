package bus

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

func TestAnEventThatFailsHoldsUpItsOwnNodeIsCountedAndIsSetAside(t *testing.T) {
	b := testBus(t)
	of := func(node string, n int) event.Event {
		e := fault(n)
		e.Source = event.Source("demo.eu", node, "xid")
		e.Data.Target.Node = node
		return e
	}
	p, err := b.NewPublisher("", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []event.Event{of("node.1", 1), of("node.1", 2), of("node.2", 3), of("node.3", 4)} {
		if err := p.Publish(e); err != nil {
			t.Fatal(err)
		}
	}
	closePublisher(t, p)

	var mu sync.Mutex
	var dealt, aside []string
	var deepest Queue
	hopeless := false
	o := Lanes{
		Handle: func(_ context.Context, d Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			if d.Event.ID == fault(1).ID {
				return errors.New("no node of that name")
			}
			dealt = append(dealt, d.Event.ID)
			return nil
		},
		Hopeless: func(error, int, time.Duration) bool { mu.Lock(); defer mu.Unlock(); return hopeless },
		Aside:    func(d Delivery, _ error) { mu.Lock(); defer mu.Unlock(); aside = append(aside, d.Event.ID) },
		Depth: func(q Queue) {
			mu.Lock()
			defer mu.Unlock()
			if q.InFlight > 0 && q.Oldest > deepest.Oldest {
				deepest = q
			}
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = b.EventsInLanes(ctx, "d", o) }()
	defer func() { cancel(); <-ended }()
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			mu.Lock()
			done := ok()
			mu.Unlock()
			if done {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: dealt with %v, set aside %v, depth %+v", what, dealt, aside, deepest)
			}
		}
	}
	until("the events of other nodes", func() bool { return slices.Contains(dealt, fault(3).ID) && slices.Contains(dealt, fault(4).ID) })
	until("the depth", func() bool { return deepest.InFlight == 2 && deepest.Oldest > 0 })
	mu.Lock()
	if slices.Contains(dealt, fault(2).ID) {
		t.Error("a later event of the node came first")
	}
	hopeless = true
	mu.Unlock()
	until("the later event of its node", func() bool { return slices.Contains(dealt, fault(2).ID) && len(aside) == 1 })
	kept, _, err := NewBucket[SetAside](b, AsideBucket).Get(t.Context(), fault(1).ID)
	if err != nil || kept.Reason != "no node of that name" || kept.Tries < 2 {
		t.Errorf("kept %+v, %v", kept, err)
	}
}
