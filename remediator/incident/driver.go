package incident

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// driver advances one incident. Its goroutine alone changes the record's state; events reach it through add.
type driver struct {
	e    *Engine
	log  *slog.Logger
	wake chan struct{} // something about the incident changed: a fault joined, a person answered

	mu     sync.Mutex
	inc    Incident
	rev    uint64
	replan bool // a fault joined that the present plan does not cover
}

// errLost ends a driver whose record was changed by another: it is not the leader any more.
var errLost = errors.New("another remediator changed the incident; this one stands back")

const retryWait = 250 * time.Millisecond

func (d *driver) snapshot() Incident {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.copy()
}

func (d *driver) copy() Incident {
	i := d.inc
	i.Faults, i.Joined, i.Notes = slices.Clone(i.Faults), slices.Clone(i.Joined), slices.Clone(i.Notes)
	i.Aimed = maps.Clone(i.Aimed)
	i.Moves, i.Writes, i.Cordons, i.Guards = slices.Clone(i.Moves), slices.Clone(i.Writes), slices.Clone(i.Cordons), slices.Clone(i.Guards)
	return i
}

// change applies f to the record and stores it. A lost compare-and-swap ends the driver.
func (d *driver) change(ctx context.Context, f func(*Incident)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.copy()
	f(&next)
	if d.e.Writes != nil {
		next.Writes = append(next.Writes, d.e.Writes(next.ID)...)
		next.Writes = next.Writes[:min(len(next.Writes), maxWrites)]
	}
	for {
		rev, err := d.e.Store.Put(ctx, next.ID, next, d.rev)
		switch {
		case err == nil:
			d.inc, d.rev = next, rev
			if d.e.Stepped != nil {
				i := d.copy()
				d.e.Stepped(&i)
			}
			return nil
		case errors.Is(err, bus.ErrConflict):
			if mine, rerr := d.tookEffect(ctx, next); rerr == nil && mine {
				continue
			}
			return errLost
		case ctx.Err() != nil:
			return ctx.Err()
		}
		d.log.Warn("store the incident; will retry", "error", err)
		if !pause(ctx, retryWait) {
			return ctx.Err()
		}
	}
}

// tookEffect resolves a conflict: a person's approval is merged in, and a write whose answer was lost counts as made.
func (d *driver) tookEffect(ctx context.Context, next Incident) (bool, error) {
	stored, rev, err := d.e.Store.Get(ctx, next.ID)
	if err != nil {
		return false, err
	}
	if stored.State != d.inc.State || !stored.StateAt.Equal(d.inc.StateAt) {
		return false, nil
	}
	if stored.Approval != d.inc.Approval {
		d.inc.Approval = stored.Approval
	}
	d.rev = rev
	return true, nil
}

// add joins an event to the incident; f is nil when it is evidence only.
func (d *driver) add(ctx context.Context, ev event.Event, f *Fault) error {
	i := d.snapshot()
	if i.Knows(ev.ID) {
		return nil
	}
	news := f != nil && d.isNews(i, *f)
	err := d.change(ctx, func(i *Incident) {
		if !news {
			i.join(ev)
			return
		}
		i.Faults = append(i.Faults, *f)
		i.note(d.e.Now(), fmt.Sprintf("%s on %s joined", f.Signal, f.Node))
	})
	if err == nil && news {
		d.mu.Lock()
		d.replan = true
		d.mu.Unlock()
		d.poke()
	}
	return err
}

// isNews tells a fault that changes what is to be done from an echo of what is known: another node to leave, or a rank of the
// attempt under way. A symptom of a pod that is being moved anyway is an echo.
func (d *driver) isNews(i Incident, f Fault) bool {
	if i.State == Closed {
		return false
	}
	if f.Moves {
		return !slices.Contains(i.FaultyNodes(), f.Node)
	}
	for _, m := range i.Moves {
		if m.OldUID == f.PodUID {
			return false
		}
	}
	if f.Attempt == nil || len(i.Faults) >= maxFaults {
		return false
	}
	switch i.State {
	case Restarted, Resumed, Verified:
		return i.Attempt > 0 && *f.Attempt >= i.Attempt
	}
	return *f.Attempt > i.Attempt // of the present attempt, whatever dies before the restart or of its fence will be started again
}

func (d *driver) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// run does the steps in order until the incident is closed, the context ends or the leadership is lost.
func (d *driver) run(ctx context.Context) {
	for ctx.Err() == nil && d.snapshot().State != Closed {
		if d.takeReplan() {
			if err := d.change(ctx, restart); err != nil {
				d.stop(err)
				return
			}
		}
		state := d.snapshot().State
		err := steps[state](d, ctx)
		switch {
		case err == nil:
		case errors.Is(err, errReplan):
		case errors.Is(err, errLost), ctx.Err() != nil:
			d.stop(err)
			return
		default:
			d.log.Warn("step will be tried again", "after", state, "error", err)
			d.fails(ctx, state, err)
		}
	}
}

// restart makes the incident plan again from live state: for a fault that joined, or a recovery that did not come about.
func restart(i *Incident) {
	i.Round++
	for _, m := range i.Moves {
		if m.To != "" {
			if i.Aimed == nil {
				i.Aimed = map[int]string{}
			}
			i.Aimed[m.Index] = m.To
		}
	}
	i.State, i.Checkpoint, i.Moves, i.FirstStep = Correlated, nil, nil, nil
}

func (d *driver) stop(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		d.log.Warn("driver stops", "error", err)
	}
}

func (d *driver) takeReplan() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	again := d.replan
	d.replan = false
	return again && d.inc.State != Detected && d.inc.State != Correlated && d.inc.State != Closed
}

// errReplan leaves a step because the plan must be made anew.
var errReplan = errors.New("a fault joined")

// fails records why a step cannot be done now, and waits a moment, or until something changes.
func (d *driver) fails(ctx context.Context, state State, err error) {
	d.waits(ctx, fmt.Sprintf("step after %s: %v", state, err))
	wait := retryWait
	if !cluster.Retriable(err) {
		wait = 4 * retryWait
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-d.wake:
	case <-t.C:
	}
}

// waits records what the present step waits for, once per reason.
func (d *driver) waits(ctx context.Context, why string) {
	if d.snapshot().Waiting == why {
		return
	}
	if err := d.change(ctx, func(i *Incident) {
		i.Waiting = why
		i.note(d.e.Now(), "waiting: "+why)
	}); err != nil {
		d.log.Warn("record a wait", "error", err)
	}
}

// to records that the step is done. The hook for crash tests stands between doing and recording.
func (d *driver) to(ctx context.Context, s State, text string, f func(*Incident)) error {
	if d.e.AfterStep != nil {
		d.e.AfterStep(s)
	}
	return d.change(ctx, func(i *Incident) {
		if f != nil {
			f(i)
		}
		i.advance(d.e.Now(), s, text)
	})
}

func (d *driver) closes(ctx context.Context, o Outcome, reason string) error {
	if d.e.AfterStep != nil {
		d.e.AfterStep(Closed)
	}
	d.log.Info("incident closed", "outcome", o, "reason", reason)
	return d.change(ctx, func(i *Incident) { i.close(d.e.Now(), o, reason) })
}

// until asks check until it says done, an error, a joined fault or the deadline ends it: at each change of the job and, since what
// rings say cannot be watched and a watch may be late, every now and then.
func (d *driver) until(ctx context.Context, deadline time.Duration, every time.Duration, check func() (bool, error)) error {
	news, cancel := d.e.Cluster.Changes(d.jobUID())
	defer cancel()
	end := time.NewTimer(deadline)
	defer end.Stop()
	for {
		done, err := check()
		if done || err != nil {
			return err
		}
		t := time.NewTimer(every)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-end.C:
			t.Stop()
			return errTimeout
		case <-d.wake:
			if d.mustReplan() {
				t.Stop()
				return errReplan
			}
		case <-news:
		case <-t.C:
		}
		t.Stop()
	}
}

func (d *driver) jobUID() string {
	if i := d.snapshot(); i.Job != nil {
		return i.Job.UID
	}
	return ""
}

func (d *driver) mustReplan() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.replan
}

var errTimeout = errors.New("not in time")

func pause(ctx context.Context, wait time.Duration) bool {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
