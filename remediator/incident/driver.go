package incident

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// driver advances one incident. Its goroutine alone changes the record's state; events reach it through add.
type driver struct {
	e    *Engine
	log  *slog.Logger
	wake chan struct{} // something about the incident changed: a fault joined, a person answered

	considered int       // faults that the step under way knows of; of the driver's goroutine
	waited     time.Time // when a wait was last recorded; of the driver's goroutine

	mu  sync.Mutex // held while the record is written
	rev uint64
	now atomic.Pointer[Incident] // as it is stored; never changed in place
}

const retryWait = 250 * time.Millisecond

func (d *driver) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

var (
	// errReplan leaves a step because the plan must be made anew.
	errReplan = errors.New("a fault joined")
	// errNewer: a newer version wrote the record.
	errNewer   = errors.New("this version does not know the incident's state")
	errTimeout = errors.New("not in time")
)

// run does the steps in order until the incident is closed, or returns why it cannot: the context's end, or errLost.
func (d *driver) run(ctx context.Context) error {
	for {
		i := d.snapshot()
		if !i.Open() || ctx.Err() != nil {
			return ctx.Err()
		}
		d.considered = len(i.Faults)
		err := d.step(ctx, i)
		switch {
		case err == nil, errors.Is(err, errReplan), errors.Is(err, errClosed):
			continue
		case errors.Is(err, errLost), errors.Is(err, errNewer), ctx.Err() != nil:
			return err
		}
		d.log.Warn("step will be tried again", "after", i.State, "error", err)
		if err := d.fails(ctx, i.State, err); err != nil && !errors.Is(err, errClosed) {
			return err
		}
	}
}

func (d *driver) step(ctx context.Context, i Incident) error {
	if i.Replan && order[i.State] > order[Correlated] && !i.Suspended { // a job is not left suspended: the step that did it resumes it first
		d.letGo(ctx, i)
		return d.change(ctx, func(i *Incident) {
			i.Approval = "" // whoever said yes said it to another plan
			restart(i, d.e.Now())
		})
	}
	do, known := steps[i.State]
	if !known {
		return fmt.Errorf("%w: %s", errNewer, i.State)
	}
	return do(d, ctx)
}

// restart makes the incident plan again from live state: for a fault that joined, or a recovery that did not come about. The moves
// stay, since their pods may be under way.
func restart(i *Incident, now time.Time) {
	i.Round++
	i.State, i.StateAt, i.Checkpoint, i.FirstStep, i.Replan, i.Waiting = Correlated, now, nil, nil, false, ""
}

// again plans a further recovery from live state; plan closes the incident as failed when the restarts are used up.
func (d *driver) again(ctx context.Context, why string, began int) error {
	return d.change(ctx, func(i *Incident) {
		i.note(d.e.Now(), why+"; planning again")
		i.Restarts += began
		restart(i, d.e.Now())
	})
}

// letGo lets ranks that hold after a checkpoint train on: what they hold for does not come now.
func (d *driver) letGo(ctx context.Context, i Incident) {
	if !i.holds() {
		return
	}
	g, err := d.e.Cluster.Gang(ctx, *i.Job)
	if err == nil {
		err = d.e.Checkpoint.Release(ctx, members(&g, nil), *i.Checkpoint.Save)
	}
	if err != nil {
		d.log.Warn("release the ranks; they leave at their deadline", "error", err)
	}
}

// fails records why a step cannot be done now, and waits a moment, or until something changes.
func (d *driver) fails(ctx context.Context, state State, err error) error {
	wait := retryWait
	if !cluster.Retriable(err) {
		wait = 4 * retryWait
	}
	return d.standsBy(ctx, fmt.Sprintf("step after %s: ", state), err.Error(), wait)
}

// standsBy records what the present step waits for, and waits until something changes, at most for so long. The step is then begun
// again, with live state.
func (d *driver) standsBy(ctx context.Context, what, why string, wait time.Duration) error {
	if err := d.waits(ctx, what, why); err != nil {
		return err
	}
	return d.rests(ctx, wait)
}

func (d *driver) rests(ctx context.Context, wait time.Duration) error {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-d.wake:
	case <-t.C:
	}
	return nil
}

// waitNote is how often a wait whose reason only differs in its details is recorded.
const waitNote = 15 * time.Second

// waits records what the present step waits for.
func (d *driver) waits(ctx context.Context, what, why string) error {
	i, now := d.snapshot(), d.e.Now()
	if i.Waiting == what+why || strings.HasPrefix(i.Waiting, what) && now.Sub(d.waited) < waitNote {
		return nil
	}
	d.waited = now
	return d.change(ctx, func(i *Incident) {
		i.Waiting = what + why
		i.note(now, "waiting: "+i.Waiting)
	})
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

// closes ends the incident after giving back what it holds. A fault that joined meanwhile keeps it open.
func (d *driver) closes(ctx context.Context, o Outcome, reason string) error {
	i := d.snapshot()
	if !i.Open() {
		return nil
	}
	if o != Gone {
		d.letGo(ctx, i)
	}
	if i.reached(Checkpointed) {
		if err := d.e.Cluster.Release(ctx, i.ID); err != nil && !errors.Is(err, cluster.ErrNotFound) {
			return err
		}
	}
	if d.e.AfterStep != nil {
		d.e.AfterStep(Closed)
	}
	err := d.update(ctx, func(i *Incident) error {
		if len(i.Faults) > d.considered {
			return errReplan
		}
		i.close(d.e.Now(), o, reason)
		return nil
	})
	if err == nil {
		d.log.Info("incident closed", "outcome", o, "reason", reason)
	}
	return err
}

// until asks check until it says done, an error, a joined fault or the deadline ends it: at each change of the job and, since what
// rings say cannot be watched and a watch may be late, every now and then.
func (d *driver) until(ctx context.Context, deadline time.Duration, every time.Duration, check func() (bool, error)) error {
	news, cancel := d.e.Cluster.Changes(d.jobUID())
	defer cancel()
	end := time.NewTimer(deadline)
	defer end.Stop()
	for {
		if d.now.Load().Replan {
			return errReplan
		}
		done, err := check()
		if done || err != nil {
			return err
		}
		t := time.NewTimer(every)
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-end.C:
			err = errTimeout
		case <-d.wake:
		case <-news:
		case <-t.C:
		}
		t.Stop()
		if err != nil {
			return err
		}
	}
}

func (d *driver) jobUID() string {
	if i := d.now.Load(); i.Job != nil {
		return i.Job.UID
	}
	return ""
}

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
