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

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/placement"
)

// driver advances one incident. Its goroutine alone changes the record's state; events reach it through add.
type driver struct {
	e    *Engine
	log  *slog.Logger
	wake chan struct{} // something about the incident changed: a fault joined, a person answered, a grant was given

	// Of the driver's goroutine.
	considered int                 // faults that the step under way knows of
	noted      time.Time           // when a wait was last recorded
	starting   time.Time           // since when a worker is seen that ended while the attempt came up
	renewed    time.Time           // when its reservations were last asked for
	marked     map[string]bool     // nodes on which the watch has shown this incident's quarantine
	wants      []placement.Request // of the pods that were last looked for a node for
	asked      *bus.Save           // a round that saved, and of which the record may not know yet
	pacedFrom  Sighting            // since when the pace of a recovered job is measured
	pacedSince time.Time           // when this leader began to measure it
	released   string              // the last round whose ranks were released, or left to their own deadline

	pending atomic.Pointer[Wait] // the wait under way, also one that is not recorded

	mu        sync.Mutex // held for one write of the record, never across a retry
	rev       uint64
	attempted *Incident                // a write whose effect is not known
	now       atomic.Pointer[Incident] // as it is stored; never changed in place
}

const retryWait = 250 * time.Millisecond

// A step that has waited long is tried less often: at the latest after a sixtieth of the time that it has waited, up to maxRest. What the
// cluster's watches, the ledger or a person's answer change wakes it at once. While ranks are stopped the bound is lower.
const (
	backOff        = 60
	maxRest        = 30 * time.Second
	maxRestStopped = 5 * time.Second
)

func (i *Incident) maxRest() time.Duration {
	if i.stopped() {
		return maxRestStopped
	}
	return maxRest
}

// maxRounds bounds how often one incident may plan again without a restart: beyond, something keeps changing under it.
const maxRounds = 100

func (d *driver) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

var (
	// errNewer: a newer version wrote the record.
	errNewer = errors.New("this version does not know the incident's state")
	// errReplan: a fault joined while the incident was being closed.
	errReplan = errors.New("a fault joined")
)

// run does the steps in order until the incident is closed, or returns why it cannot: the context's end, or errLost.
func (d *driver) run(ctx context.Context) error {
	for {
		i := d.snapshot()
		if !i.Open() || ctx.Err() != nil {
			return ctx.Err()
		}
		d.considered = len(i.Faults)
		var helps func(*fleet.Node) bool // only whoever waits for a node is woken by one
		if w := d.pending.Load(); w != nil && w.Reason == ReasonNode {
			helps = helpsAny(d.wants)
		}
		news, cancel := d.e.Cluster.Wakes(i.jobUID(), helps) // before the step looks, so that no change falls between
		r := d.step(ctx, i)
		err := d.apply(ctx, i, r, news)
		cancel()
		if err != nil {
			return err
		}
	}
}

func (i *Incident) jobUID() string {
	if i.Job == nil {
		return ""
	}
	return i.Job.UID
}

// step says what the present state comes to. It changes nothing in the record.
func (d *driver) step(ctx context.Context, i Incident) Result {
	s, known := steps[i.State]
	if !known {
		return failed(fmt.Errorf("%w: %s", errNewer, i.State))
	}
	if i.Replan && order[i.State] > order[Correlated] && !i.Suspended { // a job is not left suspended: the step that did it resumes it first
		covered, first := i.covered()
		if !first {
			return PlanAgain("", 0)
		}
		if r := d.begin(ctx, s, covered); r.kind == goOn || r.kind == stop {
			return r
		}
		return PlanAgain("", 0)
	}
	if i.State != Cordoned { // the record knows of the round by now
		d.asked = nil
	}
	return d.begin(ctx, s, i)
}

// apply records what a step came to, and waits where it has to. What was done is recorded however long the store is away.
func (d *driver) apply(ctx context.Context, i Incident, r Result, news <-chan struct{}) error {
	for {
		err := d.record(ctx, i, r, news)
		if err == nil && r.then != nil {
			d.e.wg.Go(func() { r.then(ctx) })
		}
		switch {
		case err == nil, errors.Is(err, errClosed), errors.Is(err, errReplan):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errStore):
			d.wait(ReasonStore)
			d.log.Warn("store the incident; will retry", "error", err)
			if !pause(ctx, retryWait) {
				return ctx.Err()
			}
			continue
		}
		return err
	}
}

func (d *driver) record(ctx context.Context, i Incident, r Result, news <-chan struct{}) error {
	now := d.e.Now()
	switch r.kind {
	case goOn:
		d.clear()
		if d.e.AfterStep != nil {
			d.e.AfterStep(r.to)
		}
		return d.change(ctx, func(i *Incident) {
			if r.edit != nil {
				r.edit(i)
			}
			i.advance(now, r.to, r.text)
		})
	case again:
		switch {
		case r.err != nil:
			return r.err
		case r.edit == nil && r.text == "":
			return nil
		}
		return d.change(ctx, func(i *Incident) {
			if r.edit != nil {
				r.edit(i)
			}
			if r.text != "" {
				i.note(now, r.text)
			}
		})
	case planAgain:
		d.clear()
		d.release(ctx, i)
		if i.Round >= maxRounds {
			return d.end(ctx, Close(Failed, fmt.Sprintf("planned %d times without coming to an end: %s", i.Round, r.text)))
		}
		return d.change(ctx, func(i *Incident) {
			if i.Approval = keptApproval(*i); r.text != "" {
				i.note(now, r.text+"; planning again")
			}
			i.Restarts += r.began
			restart(i, now)
		})
	case closes:
		d.clear()
		return d.end(ctx, r)
	case waitFor:
		return d.waits(ctx, i, r, news)
	case stop:
		return r.err
	}
	return fmt.Errorf("a step of state %s came to nothing", i.State)
}

// keptApproval is the person's answer that still counts for the next plan: whoever said yes said it to a plan without the fault that joined.
func keptApproval(i Incident) string {
	if i.Replan {
		return ""
	}
	return i.Approval
}

// restart makes the incident plan again from live state: for a fault that joined, or a recovery that did not come about. The moves
// stay, since their pods may be under way.
func restart(i *Incident, now time.Time) {
	i.Round++
	i.State, i.StateAt, i.Checkpoint, i.FirstStep, i.Replan, i.Waiting, i.Wait, i.Begun = Correlated, now, nil, nil, false, "", nil, false
	i.Replaced, i.Recreated = nil, false
}

// releaseWithin bounds the tries to release ranks. A rank that is not reached by then has met its own deadline and has left its attempt.
const releaseWithin = 2 * checkpoint.HoldFor

// held is the round for which ranks may hold, or nil.
func (d *driver) held(i Incident) *bus.Save {
	switch {
	case i.holds():
		return i.Checkpoint.Save
	case i.Job != nil && i.State == Cordoned:
		return d.asked
	}
	return nil
}

// release lets ranks that hold after a checkpoint train on: what they hold for does not come now. It tries again until every rank has heard
// it, since a rank that holds past its own deadline leaves the attempt, which ends it for all.
func (d *driver) release(ctx context.Context, i Incident) {
	s := d.held(i)
	if s == nil || s.Req == d.released {
		return
	}
	defer d.pending.Store(d.pending.Load())
	began := d.e.Now()
	for wait := retryWait; ; wait = min(2*wait, maxRestStopped) {
		g, err := d.e.Cluster.Gang(ctx, *i.Job)
		if err == nil {
			err = d.e.Checkpoint.Release(ctx, members(&g, nil), *s)
		}
		if err == nil || gone(err) {
			break
		}
		if d.e.Now().Sub(began) >= releaseWithin {
			d.log.Error("ranks could not be released; those not reached left the attempt at their own deadline", "req", s.Req, "error", err)
			break
		}
		d.wait(ReasonRetry)
		d.log.Warn("release the ranks; will retry", "req", s.Req, "error", err)
		if !pause(ctx, wait) {
			return // the next leader releases them
		}
	}
	d.released, d.asked = s.Req, nil
}

// end closes the incident after giving back what it holds. A fault that joined meanwhile keeps it open.
func (d *driver) end(ctx context.Context, r Result) error {
	i := d.snapshot()
	if !i.Open() {
		return nil
	}
	if r.outcome != Gone {
		d.release(ctx, i)
	}
	if i.Reserved {
		if err := d.e.Cluster.Release(ctx, i.ID); err != nil && !errors.Is(err, cluster.ErrNotFound) {
			return fmt.Errorf("%w: release the reservations: %w", errStore, err)
		}
	}
	var back []string
	if r.outcome == Resolved || r.outcome == Cancelled || r.outcome == NotTheCause {
		var err error
		if back, err = d.giveBack(ctx, i); err != nil {
			return fmt.Errorf("%w: %w", errStore, err)
		}
	}
	if err := d.e.Ledger.End(ctx, i.ID); err != nil {
		return asStore(err)
	}
	if d.e.AfterStep != nil {
		d.e.AfterStep(Closed)
	}
	err := d.update(ctx, func(i *Incident) error {
		if len(i.Faults) > d.considered {
			return errReplan
		}
		if r.edit != nil {
			r.edit(i)
		}
		if i.Reserved, i.Cordons = false, without(i.Cordons, back); len(back) > 0 {
			i.note(d.e.Now(), "uncordoned "+strings.Join(back, ", "))
		}
		i.close(d.e.Now(), r.outcome, r.text)
		return nil
	})
	if errors.Is(err, errReplan) && len(back) > 0 { // what was given back is cordoned again for the fault that joined
		if err := d.change(ctx, func(i *Incident) {
			i.Cordons, i.Reserved, i.Replan = without(i.Cordons, back), false, true
			i.note(d.e.Now(), "uncordoned "+strings.Join(back, ", "))
		}); err != nil {
			return err
		}
	}
	if err == nil {
		d.log.Info("incident closed", "outcome", r.outcome, "reason", r.text)
	}
	return err
}

// waitNote is how often a wait whose reason only differs in its details is recorded.
const waitNote = 15 * time.Second

// waits records what the step waits for, asks a person and gives up when it is time, and waits until something changes.
func (d *driver) waits(ctx context.Context, i Incident, r Result, news <-chan struct{}) error {
	w, now := d.wait(r.by), d.e.Now()
	m := meanings[r.by]
	if i.Wait != nil && i.Wait.Reason == r.by { // begun before this driver was
		w.Since, w.Reported = i.Wait.Since, i.Wait.Reported
	}
	lasts := now.Sub(w.Since)
	limit := i.limit(r.by)
	if limit > 0 && lasts >= limit {
		return d.giveUp(ctx, i, r, limit)
	}
	if m.parks && !i.stopped() {
		if err := d.e.Ledger.Park(ctx, i.ID); err != nil {
			return asStore(err)
		}
	}
	due := w.Reported.IsZero() && lasts >= m.report
	begins := i.Wait == nil || i.Wait.Reason != r.by
	text := m.begins + r.text
	changed := i.Waiting != text && now.Sub(d.noted) >= waitNote
	if r.by.guards() { // its numbers may change each time it is asked for
		changed = i.Wait != nil && !i.Wait.Until.Equal(r.until)
	}
	w.Until = r.until
	if due || !m.quiet && (begins || changed) {
		if due {
			w.Reported = now
		}
		d.noted = now
		d.pending.Store(&w)
		err := d.change(ctx, func(i *Incident) {
			if r.edit != nil {
				r.edit(i)
			}
			kept := w
			i.Wait, i.Waiting = &kept, text
			i.note(now, "waiting: "+text+r.besides)
		})
		if err != nil {
			return err
		}
	}
	rest := max(r.wait, min(lasts/backOff, i.maxRest()))
	if w.Reported.IsZero() && m.report < never {
		rest = min(rest, max(m.report-lasts, time.Millisecond))
	}
	if limit > 0 {
		rest = min(rest, limit-lasts)
	}
	if until := r.until.Sub(now); until > 0 {
		rest = min(rest, until)
	}
	return d.rest(ctx, rest, news)
}

// wait is the wait under way for a reason: the one before goes on if it is for the same.
func (d *driver) wait(by Reason) Wait {
	if w := d.pending.Load(); w != nil && w.Reason == by {
		return *w
	}
	w := Wait{Reason: by, Since: d.e.Now()}
	d.pending.Store(&w)
	return w
}

func (d *driver) clear() {
	d.pending.Store(nil)
	d.starting = time.Time{}
}

func (d *driver) rest(ctx context.Context, wait time.Duration, news <-chan struct{}) error {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-d.wake:
	case <-news:
	case <-t.C:
	}
	return nil
}

// giveUp ends an incident whose step could not be done in time, so that its job is no worse off than before: ranks are released, a
// suspension is lifted, reservations go, and so do cordons that nothing needs any more.
func (d *driver) giveUp(ctx context.Context, i Incident, r Result, after time.Duration) error {
	why := fmt.Sprintf("%s; given up after %s", meanings[r.by].begins+r.text, strings.TrimSuffix(after.String(), "0m0s"))
	switch {
	case r.by == ReasonWitness:
		return d.end(ctx, Close(NotConfirmed, r.text))
	case !i.acted():
		return d.end(ctx, Close(Refused, why+"; nothing was done"))
	}
	d.release(ctx, i)
	if i.Suspended {
		g, err := d.e.Cluster.Gang(ctx, *i.Job)
		if err == nil {
			err = d.e.Cluster.Unsuspend(ctx, g, i.ID)
		}
		if err != nil && !gone(err) {
			return fmt.Errorf("%w: lift the suspension: %w", errStore, err)
		}
	}
	back, err := d.giveBack(ctx, i)
	if err != nil {
		return fmt.Errorf("%w: %w", errStore, err)
	}
	if len(back) > 0 {
		why += "; uncordoned " + strings.Join(back, ", ")
	}
	return d.end(ctx, Result{outcome: GaveUp, text: why, edit: func(i *Incident) {
		i.Suspended = false
		i.Cordons = without(i.Cordons, back)
	}})
}

// giveBack uncordons the nodes that this incident cordoned and that are not known to be faulty any more.
func (d *driver) giveBack(ctx context.Context, i Incident) (back []string, err error) {
	for _, n := range i.Cordons {
		if d.needed(i, n) {
			continue
		}
		if _, err := d.e.Cluster.Uncordon(ctx, n, i.ID); err != nil && !gone(err) {
			return back, err
		}
		if err := d.e.Ledger.Undid(ctx, i.ID, n); err != nil {
			return back, err
		}
		back = append(back, n)
	}
	return back, nil
}

// needed reports whether a node is to stay cordoned: a fault of it may still hold, or another incident wants it so.
func (d *driver) needed(i Incident, node string) bool {
	for _, f := range i.Faults {
		if f.statistical() { // that it still stands does not make the node unfit: a grant is what took it
			continue
		}
		if s, _ := d.e.Conditions.Standing(f.Event); f.Node == node && f.Moves && s != Ended {
			return true
		}
	}
	return d.e.wanted(node, i.ID)
}

func gone(err error) bool {
	return errors.Is(err, cluster.ErrNotFound) || errors.Is(err, cluster.ErrStale)
}

func without(all, some []string) (out []string) {
	drop := map[string]bool{}
	for _, s := range some {
		drop[s] = true
	}
	for _, s := range all {
		if !drop[s] {
			out = append(out, s)
		}
	}
	return out
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
