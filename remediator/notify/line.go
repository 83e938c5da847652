package notify

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// queued is a notice in a line, with what became of its tries.
type queued struct {
	Notice
	first    time.Time // try
	next     time.Time // try, not earlier; others pass it until then
	wait     time.Duration
	answered int // tries that the receiver answered with an error
}

// answeredMost is how many answers with an error a notice gets before others pass it. Such a receiver is up, so the error may be of this
// notice alone. If there is no answer, or the receiver asks for a pause, the others wait too.
const answeredMost = 3

// passedMost is how many notices others pass while none is sent. If more fail, the receiver is at fault and the others keep waiting, or
// in an outage of hours each of them would use up its own hour.
const passedMost = 8

// line is the way to one receiver. Notices leave in the order in which they came, and those of one incident always do.
type line struct {
	o       *Options
	to      Receiver
	name    string // for metrics and logs
	follows bool
	probe   Prober // nil: takes no canary
	passed  int    // notices that others passed since one was sent; of run
	term    *atomic.Int64
	more    chan struct{}

	mu    sync.Mutex
	queue []queued
	done  map[string]bool // keys that an earlier process delivered
}

func (l *line) put(n Notice) {
	l.mu.Lock()
	if l.done[n.Key] {
		l.mu.Unlock()
		return
	}
	if n.Stage == Progress { // the newest says all, and must not precede what was reported before it
		l.queue = slices.DeleteFunc(l.queue, func(q queued) bool { return q.Stage == n.Stage && q.thread() == n.thread() })
	}
	waits := -1
	if n.Stage == Canary { // it keeps its place, or a new one each minute would never reach the front of a long queue
		waits = slices.IndexFunc(l.queue, func(q queued) bool { return q.Stage == Canary })
	}
	if waits >= 0 {
		l.queue[waits].Notice = n
	} else {
		l.queue = append(l.queue, queued{Notice: n})
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
	k := slices.IndexFunc(l.queue, func(q queued) bool { return q.Stage == Finding || q.Stage == Progress || q.Stage == Canary })
	if k < 0 {
		k = slices.IndexFunc(l.queue, func(q queued) bool { return !q.NeedsPerson && q.Stage != Closed })
	}
	l.queue = slices.Delete(l.queue, max(k, 0), max(k, 0)+1)
}

// take gives the first notice whose try is due. If there is none, it gives the time until one is.
func (l *line) take() (n queued, ok bool, rest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rest, held := l.o.GiveUp, map[string]bool{}
	for k, q := range l.queue {
		thread := q.thread()
		switch left := time.Until(q.next); {
		case left > 0:
			rest, held[thread] = min(rest, left), true
		case thread == "" || !held[thread]:
			l.queue = slices.Delete(l.queue, k, k+1)
			return q, true, 0
		}
	}
	return n, false, rest
}

func (l *line) run(ctx context.Context) {
	for ctx.Err() == nil {
		term := l.term.Load()
		n, ok, rest := l.take()
		if !ok {
			t := time.NewTimer(rest)
			select {
			case <-ctx.Done():
			case <-l.more:
			case <-t.C:
			}
			t.Stop()
			continue
		}
		if !l.deliver(ctx, &n, term) {
			l.putBack(n, term)
		}
	}
	l.last(ctx)
}

// putBack gives a notice its place again, unless another process reports it by now.
func (l *line) putBack(n queued, term int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term.Load() == term {
		l.queue = slices.Insert(l.queue, 0, n)
	}
}

// deliver tries until the notice is sent or given up; false when ctx ended first, or when others are to pass it. A canary is tried once:
// the next one follows.
func (l *line) deliver(ctx context.Context, n *queued, term int64) bool {
	if n.Stage == Canary {
		_, err := l.try(ctx, n.Notice)
		l.o.Probed(l.name, n.Notice, err)
		return true
	}
	if n.first.IsZero() {
		n.first, n.wait = time.Now(), l.o.First
	}
	for until := n.first.Add(l.o.GiveUp); ; {
		if l.term.Load() != term {
			return true // another process tells it
		}
		proof, err := l.try(ctx, n.Notice)
		switch {
		case err == nil:
			l.passed = 0
			l.sent(ctx, n.Notice, proof)
			return true
		case errors.Is(err, ErrUnproven):
			l.o.Count(l.name, Unproven)
			l.o.Log.Warn("notice taken, but not there when read back; give each Alertmanager its own address, not a load balancer's", "to", l.name, "key", n.Key, "error", err)
			l.record(ctx, n.Notice, "")
			return true
		case ctx.Err() != nil:
			return false
		case errors.Is(err, ErrRefused) || time.Now().After(until):
			if !n.next.IsZero() {
				l.passed = max(l.passed-1, 0)
			}
			l.o.Count(l.name, Failed)
			l.o.Log.Error("notice not sent", "to", l.name, "key", n.Key, "error", err)
			return true
		}
		l.o.Count(l.name, Retried)
		if n.wait == l.o.First {
			l.o.Log.Warn("notice not sent; trying again", "to", l.name, "key", n.Key, "error", err)
		}
		pause := n.wait
		n.wait = min(2*n.wait, l.o.Most)
		if asked := (busy{}); errors.As(err, &asked) {
			pause = max(pause, min(asked.after, maxRetryAfter))
		} else if errors.As(err, new(answered)) {
			n.answered++
			if first := n.next.IsZero(); !first || n.answered >= answeredMost && l.passed < passedMost {
				if first {
					l.passed++
				}
				n.next = time.Now().Add(pause)
				return false
			}
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
	l.mu.Lock()
	left := l.queue
	l.queue = nil
	l.mu.Unlock()
	for _, q := range left {
		n := q.Notice
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
