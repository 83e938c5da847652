package notify

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// line is the way to one receiver: notices leave in the order in which they came.
type line struct {
	o       *Options
	to      Receiver
	name    string // for metrics and logs
	follows bool
	probe   Prober // nil: takes no canary
	term    *atomic.Int64
	more    chan struct{}

	mu    sync.Mutex
	queue []Notice
	done  map[string]bool // keys that an earlier process delivered
}

func (l *line) put(n Notice) {
	l.mu.Lock()
	if l.done[n.Key] {
		l.mu.Unlock()
		return
	}
	if n.Stage == Progress { // the newest says all, and must not precede what was reported before it
		l.queue = slices.DeleteFunc(l.queue, func(q Notice) bool { return q.Stage == n.Stage && q.thread() == n.thread() })
	}
	waits := -1
	if n.Stage == Canary { // it keeps its place, or a new one each minute would never reach the front of a long queue
		waits = slices.IndexFunc(l.queue, func(q Notice) bool { return q.Stage == Canary })
	}
	if waits >= 0 {
		l.queue[waits] = n
	} else {
		l.queue = append(l.queue, n)
	}
	full := len(l.queue) > l.o.Queue
	if full {
		l.evict()
	}
	l.mu.Unlock()
	if full {
		l.o.Count(l.name, Dropped)
	}
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// evict drops the oldest notice of the least importance: a page or a close is dropped only if nothing else waits.
func (l *line) evict() {
	k := slices.IndexFunc(l.queue, func(q Notice) bool { return q.Stage == Finding || q.Stage == Progress || q.Stage == Canary })
	if k < 0 {
		k = slices.IndexFunc(l.queue, func(q Notice) bool { return !q.NeedsPerson && q.Stage != Closed })
	}
	l.queue = slices.Delete(l.queue, max(k, 0), max(k, 0)+1)
}

func (l *line) take() (Notice, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		return Notice{}, false
	}
	n := l.queue[0]
	l.queue = l.queue[1:]
	return n, true
}

func (l *line) run(ctx context.Context) {
	for ctx.Err() == nil {
		term := l.term.Load()
		n, ok := l.take()
		if !ok {
			select {
			case <-ctx.Done():
			case <-l.more:
			}
			continue
		}
		if !l.deliver(ctx, n, term) {
			l.putBack(n)
		}
	}
	l.last(ctx)
}

func (l *line) putBack(n Notice) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append([]Notice{n}, l.queue...)
}

// deliver tries until the notice is sent or given up; false when ctx ended first. A canary is tried once: the next one follows.
func (l *line) deliver(ctx context.Context, n Notice, term int64) bool {
	if n.Stage == Canary {
		_, err := l.try(ctx, n)
		l.o.Probed(l.name, n, err)
		return true
	}
	until := time.Now().Add(l.o.GiveUp)
	for wait := l.o.First; ; wait = min(2*wait, l.o.Most) {
		if l.term.Load() != term {
			return true // another process tells it
		}
		proof, err := l.try(ctx, n)
		switch {
		case err == nil:
			l.sent(ctx, n, proof)
			return true
		case errors.Is(err, ErrUnproven):
			l.o.Count(l.name, Unproven)
			l.o.Log.Warn("notice taken, but not there when read back; give each Alertmanager its own address, not a load balancer's", "to", l.name, "key", n.Key, "error", err)
			l.record(ctx, n, "")
			return true
		case ctx.Err() != nil:
			return false
		case errors.Is(err, ErrRefused) || time.Now().After(until):
			l.o.Count(l.name, Failed)
			l.o.Log.Error("notice not sent", "to", l.name, "key", n.Key, "error", err)
			return true
		}
		l.o.Count(l.name, Retried)
		if wait == l.o.First {
			l.o.Log.Warn("notice not sent; trying again", "to", l.name, "key", n.Key, "error", err)
		}
		pause := wait
		if asked := (busy{}); errors.As(err, &asked) {
			pause = max(wait, min(asked.after, maxRetryAfter))
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return false
		case <-t.C:
		}
	}
}

// try sends once. The end of ctx does not tear a try that is under way, or the notice would come twice.
func (l *line) try(ctx context.Context, n Notice) (proof string, err error) {
	sending, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.o.Timeout)
	defer cancel()
	hurry := context.AfterFunc(ctx, func() {
		select {
		case <-sending.Done():
		case <-time.After(l.o.Flush):
			cancel()
		}
	})
	defer hurry()
	if n.Stage == Canary {
		return "", l.probe.Probe(sending, n)
	}
	return l.to.Send(sending, n)
}

// sent counts a notice that was delivered and records it.
func (l *line) sent(ctx context.Context, n Notice, proof string) {
	l.o.Count(l.name, Sent)
	l.record(ctx, n, proof)
}

func (l *line) record(ctx context.Context, n Notice, proof string) {
	if n.thread() == "" || n.Stage == Progress {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWithin)
	defer cancel()
	l.o.Record(ctx, Delivery{Thread: n.thread(), Receiver: l.name, Key: n.Key, Stage: n.Stage, At: time.Now(), Proof: proof})
}

// last gives what is left one more chance when the work ends.
func (l *line) last(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.o.Flush)
	defer cancel()
	for n, ok := l.take(); ok; n, ok = l.take() {
		if n.Stage == Canary {
			continue
		}
		proof, err := l.to.Send(ctx, n)
		if err != nil && !errors.Is(err, ErrUnproven) {
			l.o.Count(l.name, Failed)
			l.o.Log.Error("notice not sent before the end", "to", l.name, "key", n.Key, "error", err)
			continue
		}
		l.sent(ctx, n, proof)
	}
}
