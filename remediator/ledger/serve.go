package ledger

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/guard"
)

// tripEvery bounds how often a breaker that keeps refusing is written down anew; guard.BreakerHold is counted in minutes.
const tripEvery = 30 * time.Second

// serve is the only writer. It takes what has arrived, decides it together, stores the new book and then answers.
func (l *Ledger) serve(ctx context.Context, rev uint64) {
	unsure := false // whether the last write took effect is not known
	for {
		var batch []op
		select {
		case <-ctx.Done():
			return
		case o := <-l.ops:
			batch = append(batch, o)
		}
		for more := true; more && len(batch) < 256; {
			select {
			case o := <-l.ops:
				batch = append(batch, o)
			default:
				more = false
			}
		}
		var err error
		if unsure {
			if rev, err = l.reload(ctx); err == nil {
				unsure = false
			}
		}
		if err == nil {
			rev, err = l.commit(ctx, batch, rev)
			if errors.Is(err, bus.ErrConflict) { // a write of before took effect and only its answer was lost, or another leads
				if rev, err = l.reload(ctx); err == nil {
					rev, err = l.commit(ctx, batch, rev)
				}
			}
			unsure = err != nil
		}
		if err != nil {
			for _, o := range batch {
				o.answer <- answer{err: err}
			}
		}
	}
}

// reload reads the book anew. ErrDeposed: a later term has it.
func (l *Ledger) reload(ctx context.Context) (uint64, error) {
	book, rev, err := l.o.Store.Get(ctx, Key)
	if err != nil {
		return 0, err
	}
	if book.Term > l.o.Term {
		return 0, ErrDeposed
	}
	l.mu.Lock()
	l.book = book.clone()
	l.mu.Unlock()
	return rev, nil
}

// commit decides a batch on a copy of the book, stores the copy and answers. On an error nobody has been answered.
func (l *Ledger) commit(ctx context.Context, batch []op, rev uint64) (uint64, error) {
	now := l.o.Now()
	l.mu.RLock()
	next := l.book.clone()
	queue := l.queue()
	l.mu.RUnlock()
	next.Term = l.o.Term
	before := len(next.Grants)
	next.prune(now.Add(-l.o.Keep()), now)
	changed := len(next.Grants) != before
	answers := make([]answer, len(batch))
	var asks []ask
	judgeAll := false // the queue: where nothing became free, those that wait were refused by this very book
	for k, o := range batch {
		if o.ask == nil {
			did, err := o.apply(&next)
			answers[k], changed, judgeAll = answer{err: err}, changed || did, judgeAll || did && o.frees
			continue
		}
		asks = append(asks, ask{Request: *o.ask, in: k})
		queue = slices.DeleteFunc(queue, func(r Request) bool { return r.Incident == o.ask.Incident })
	}
	for k := 0; k < len(asks) && !judgeAll; k++ { // time, a switch or a node may have let go: then those that rank first go first
		if asks[k].covered(&next) {
			continue // it takes no place that another waits for
		}
		judgeAll = len(guard.Blocking(asks[k].Judge(&next, now))) == 0
	}
	if judgeAll {
		for _, r := range queue {
			asks = append(asks, ask{Request: r, in: -1})
		}
	}
	slices.SortFunc(asks, func(a, b ask) int { return a.before(b.Request) })
	full := map[string]bool{} // by policy: no place is left among those that act, so that whoever waits for one is not asked
	for k := range asks {
		if a := &asks[k]; a.in < 0 && full[a.Grant.Policy] && !next.acts(a.Incident) {
			continue
		}
		did := asks[k].decide(&next, now)
		changed = changed || did
		full[asks[k].Grant.Policy] = full[asks[k].Grant.Policy] || asks[k].refusedBy(guard.Concurrent)
	}
	if changed {
		var err error
		if rev, err = l.o.Store.Put(ctx, Key, next, rev); err != nil {
			return rev, err
		}
	}
	l.mu.Lock()
	l.book = next
	var granted []string
	for _, a := range asks {
		switch {
		case a.granted && a.in < 0:
			granted = append(granted, a.Incident)
			fallthrough
		case a.granted:
			delete(l.waiting, a.Incident)
		case a.in >= 0:
			l.waiting[a.Incident] = a.Request
		}
		if a.in >= 0 {
			answers[a.in].verdicts = a.verdicts
		}
	}
	l.mu.Unlock()
	for k, o := range batch {
		o.answer <- answers[k]
	}
	if l.o.Granted != nil {
		for _, id := range granted {
			l.o.Granted(id)
		}
	}
	return rev, nil
}

type ask struct {
	Request
	in       int // of the batch; -1: it has waited
	verdicts []guard.Verdict
	granted  bool
}

// covered reports whether the incident holds all that it asks for.
func (a *ask) covered(b *Book) bool {
	have := b.Grant(a.Incident)
	return have != nil && have.Covers(a.Grant)
}

// refusedBy reports whether a guard refused the request.
func (a *ask) refusedBy(g guard.Name) bool {
	return slices.ContainsFunc(a.verdicts, func(v guard.Verdict) bool { return v.Guard == g && !v.Allowed })
}

// decide judges the request by the book and writes a grant into it. It reports whether the book changed.
func (a *ask) decide(b *Book, now time.Time) (changed bool) {
	have := b.Grant(a.Incident)
	a.verdicts = a.Judge(b, now)
	if have == nil && (len(b.Grants) >= MaxGrants || b.bytes() >= MaxBytes) {
		a.verdicts = append(a.verdicts, guard.Verdict{Guard: guard.LedgerFull, Asked: true, Detail: "the ledger holds as many grants as it can; it empties as their windows pass"})
	}
	blocking := guard.Blocking(a.verdicts)
	for _, v := range blocking {
		if v.Tripped && now.Sub(b.Tripped[a.Request.Grant.Policy]) > tripEvery {
			b.Tripped[a.Request.Grant.Policy], changed = now, true
		}
	}
	if len(blocking) > 0 {
		return changed
	}
	a.granted = true
	g := a.Request.Grant.Clone()
	if have != nil {
		if have.Covers(g) {
			return changed
		}
		g = have.Add(g)
	} else {
		g.At = now
	}
	g.Active, g.Ended = true, time.Time{}
	b.set(g)
	return true
}
