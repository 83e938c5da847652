package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

func faultOn(node string, n int) event.Event {
	src := event.Source("demo.eu", node, "xid")
	return event.Event{ID: event.NewID(src, strconv.Itoa(n)), Source: src, Type: event.Fault, Time: time.Unix(1_800_000_000, int64(n)), Data: event.Data{
		Target: event.Target{Node: node}, Cause: event.Cause{Kind: "xid", Code: "79"}, Severity: event.Fatal, Count: n}}
}

func publishAll(t *testing.T, b *Bus, events ...event.Event) {
	t.Helper()
	p, err := b.NewPublisher("", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if err := p.Publish(e); err != nil {
			t.Fatal(err)
		}
	}
	end, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.Close(end); err != nil {
		t.Fatal(err)
	}
}

// consuming runs EventsInLanes until the test ends.
func consuming(t *testing.T, b *Bus, o Lanes) {
	t.Helper()
	if o.Bad == nil {
		o.Bad = func(subject string, err error) { t.Errorf("%s refused: %v", subject, err) }
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = b.EventsInLanes(ctx, "lanes", o) }()
	t.Cleanup(func() { cancel(); <-ended })
}

func within(t *testing.T, wait time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(wait); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", wait, what)
		}
	}
}

var errAway = errors.New("the API server is away")

func TestANodeWhoseEventsAllFailHoldsUpNoOtherNode(t *testing.T) {
	b := testBus(t)
	var all []event.Event
	for n := range maxAhead + 500 {
		all = append(all, faultOn("ill", n))
	}
	for n := range 20 {
		all = append(all, faultOn("well", n))
	}
	publishAll(t, b, all...)
	var well atomic.Int64
	var most atomic.Int64
	consuming(t, b, Lanes{Depth: func(q Queue) { most.Store(int64(q.InFlight)) }, Handle: func(_ context.Context, d Delivery) error {
		if d.Node == "ill" {
			return errAway
		}
		well.Add(1)
		return nil
	}})
	within(t, 10*time.Second, "all events of the other node", func() bool { return well.Load() == 20 })
	within(t, 10*time.Second, "what the server holds is counted as in flight", func() bool { return most.Load() == maxAhead+500 })
}

func TestEventsOfANodeThatFailedAreDealtWithInOrderOnceItRecovers(t *testing.T) {
	b := testBus(t)
	const events = 3 * maxInLane
	var all []event.Event
	for n := range events {
		all = append(all, faultOn("n1", n))
	}
	publishAll(t, b, all[:events-1]...)
	var mu sync.Mutex
	var got []int
	var recovered atomic.Bool
	consuming(t, b, Lanes{Handle: func(_ context.Context, d Delivery) error {
		if !recovered.Load() {
			return errAway
		}
		mu.Lock()
		defer mu.Unlock()
		got = append(got, d.Event.Data.Count)
		return nil
	}})
	dealt := func(least int) func() bool {
		return func() bool { mu.Lock(); defer mu.Unlock(); return len(got) >= least }
	}
	time.Sleep(500 * time.Millisecond) // the events behind the first few are parked
	recovered.Store(true)
	within(t, 10*time.Second, "the events that are held in memory", dealt(maxInLane))
	publishAll(t, b, all[events-1]) // it comes at once, and before those that are parked
	within(t, 30*time.Second, "all events", dealt(events))
	mu.Lock()
	defer mu.Unlock()
	if len(got) != events || !slices.IsSorted(got) {
		t.Errorf("dealt with %v", got)
	}
}

func TestALaneThatIsFullSetsAsideWhatComesBeyondAndHoldsUpNoOther(t *testing.T) {
	b := testBus(t)
	const beyond = 10
	var all []event.Event
	for n := range maxInLane + maxParked + beyond {
		all = append(all, faultOn("ill", n))
	}
	publishAll(t, b, append(all, faultOn("well", 0))...)
	var aside, well atomic.Int64
	consuming(t, b, Lanes{
		Hopeless: func(error, int, time.Duration) bool { return false },
		Aside: func(_ Delivery, err error) {
			if errors.Is(err, errLaneFull) {
				aside.Add(1)
			}
		},
		Handle: func(_ context.Context, d Delivery) error {
			if d.Node == "well" {
				well.Add(1)
				return nil
			}
			return errAway
		}})
	within(t, 30*time.Second, "the other node's event", func() bool { return well.Load() == 1 })
	within(t, 10*time.Second, "what comes beyond is set aside", func() bool { return aside.Load() == beyond })
	kept, err := NewBucket[SetAside](b, AsideBucket).List(t.Context())
	if err != nil || len(kept) != beyond || kept[0].Value.Reason != errLaneFull.Error() {
		t.Errorf("%d kept, %v", len(kept), err)
	}
}

func TestEachNodesEventsAreDealtWithOnceAndInOrderWhileManyFailNowAndThen(t *testing.T) {
	b := testBus(t)
	const nodes, each = 60, 40
	var all []event.Event
	for n := range each {
		for k := range nodes {
			all = append(all, faultOn(fmt.Sprintf("n%d", k), n))
		}
	}
	publishAll(t, b, all...)
	var mu sync.Mutex
	got, tries := map[string][]int{}, map[string]int{}
	var done, busy atomic.Int64
	consuming(t, b, Lanes{Depth: func(q Queue) { busy.Store(int64(q.InFlight)) }, Handle: func(_ context.Context, d Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		n := d.Event.Data.Count
		if tries[d.Event.ID]++; tries[d.Event.ID] == 1 && n%17 == len(d.Node)%17 { // each node's, once in a while
			return errAway
		}
		got[d.Node] = append(got[d.Node], n)
		done.Add(1)
		return nil
	}})
	within(t, 90*time.Second, "all events", func() bool { return done.Load() >= nodes*each })
	within(t, 10*time.Second, "nothing is in flight", func() bool { return busy.Load() == 0 })
	mu.Lock()
	defer mu.Unlock()
	for node, order := range got {
		if len(order) != each || !slices.IsSorted(order) {
			t.Errorf("node %s: %v", node, order)
		}
	}
}

func TestAParkedEventIsWaitedForUntilItIsOverdue(t *testing.T) {
	var p parking
	now := time.Now()
	p.put(7, now, time.Second)
	p.put(5, now, 2*time.Second)
	p.put(9, now, time.Second)
	for _, c := range []struct {
		seq    uint64
		after  time.Duration
		before bool
	}{
		{5, 0, false},                         // it is the first
		{6, 0, true},                          // 5 comes first
		{7, time.Second, true},                // 5 comes first
		{7, 3*time.Second + parkSlack, false}, // 5 is overdue
		{8, 0, true},                          // 7 comes first
	} {
		if got := p.before(c.seq, now.Add(c.after)); got != c.before {
			t.Errorf("event %d after %v: %v, want %v", c.seq, c.after, got, c.before)
		}
	}
	if p.expire(now.Add(time.Minute)); !p.empty() {
		t.Errorf("%d are waited for", p.len())
	}
}
