package remediator

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// occurrences remembers when faults happened, so that a rule can ask how often one did within a time. It counts an event once, however often
// it comes, and by the count that it carries.
type occurrences struct {
	mu sync.Mutex
	at map[occasion][]occurrence
	of map[string]int // occasions by node

	forgot time.Time // when it was last looked what may be forgotten

	// known is closed when what happened before this leader has been read; nil: nothing is read. Until then no rule counts, for at most
	// recountWait: a rule that counts too little would close an incident that an earlier leader has planned.
	known chan struct{}
	until time.Time
}

// recountWait bounds how long rules that count wait for a new leader to have read the events of the last days.
const recountWait = 30 * time.Second

// occasion is what is counted together: a signal of a GPU, or of a node where it names none.
type occasion struct{ node, subject, signal string }

type occurrence struct {
	id    string
	at    time.Time
	count int
}

const (
	maxOccasions   = 1 << 14
	maxOfNode      = 256 // occasions of one node, so that no node takes the room of the others
	maxOccurrences = 64  // of one occasion: no rule needs to count further
)

func newOccurrences() *occurrences {
	return &occurrences{at: map[occasion][]occurrence{}, of: map[string]int{}}
}

func occasionOf(e event.Event) occasion {
	t := e.Data.Target
	return occasion{t.Node, cmp.Or(t.PCI, t.GPU), e.Data.Cause.Signal()}
}

// add takes an event in. A later report of the same one may carry a higher count.
func (o *occurrences) add(e event.Event) {
	if o == nil || e.Type != event.Fault {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	k, n := occasionOf(e), max(1, e.Data.Count)
	all := o.at[k]
	for i := range all {
		if all[i].id == e.ID {
			all[i].count = max(all[i].count, n)
			return
		}
	}
	at := e.Time
	if now := time.Now(); at.After(now) { // by a clock that runs ahead it would count for longer
		at = now
	}
	if all == nil {
		full := func() bool { return len(o.at) >= maxOccasions || o.of[k.node] >= maxOfNode }
		if full() {
			o.forget(at.Add(-time.Duration(policy.MaxWithin)))
		}
		if full() {
			return // what is not counted does not act
		}
		o.of[k.node]++
	}
	if len(all) >= maxOccurrences {
		all = all[1:]
	}
	o.at[k] = append(all, occurrence{e.ID, at, n})
}

// forget drops what lies too far back for any rule. It looks at everything, so it does so once a minute at most. The caller holds the lock.
func (o *occurrences) forget(before time.Time) {
	if now := time.Now(); now.Sub(o.forgot) >= time.Minute {
		o.forgot = now
	} else {
		return
	}
	for k, all := range o.at {
		if slices.ContainsFunc(all, func(x occurrence) bool { return !x.at.Before(before) }) {
			continue
		}
		delete(o.at, k)
		if o.of[k.node]--; o.of[k.node] <= 0 {
			delete(o.of, k.node)
		}
	}
}

// times is how often the event's signal occurred on its GPU within a time that ends now, the event included.
func (o *occurrences) times(e event.Event, within time.Duration, now time.Time) int {
	if o == nil {
		return max(1, e.Data.Count)
	}
	o.add(e)
	if o.known != nil {
		wait := time.NewTimer(time.Until(o.until))
		defer wait.Stop()
		select {
		case <-o.known:
		case <-wait.C:
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for _, x := range o.at[occasionOf(e)] {
		if now.Sub(x.at) <= within {
			n += x.count
		}
	}
	return n
}

// reading says that what happened before this leader will be read. It is called before anything is judged.
func (o *occurrences) reading(now time.Time) {
	o.known, o.until = make(chan struct{}), now.Add(recountWait)
}

// recount reads what happened before this leader, as far back as any rule of the policies may look.
func (r *remediator) recount(ctx context.Context, seen *occurrences) {
	defer close(seen.known)
	_ = r.retry(ctx, "the events of the last days", func(ctx context.Context) error {
		return r.bus.Replay(ctx, time.Now().Add(-time.Duration(policy.MaxWithin)), func(d bus.Delivery) { seen.add(d.Event) }, func(string, error) {})
	})
}
