package incident

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/ledger"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

var (
	// errLost means that another changed the record: this process may not be the leader any more.
	errLost = errors.New("another remediator changed the incident; this one stands back")
	// errClosed means that the incident has ended; what comes now concerns another one.
	errClosed = errors.New("the incident is closed")
	// errStore means that something could not be stored now. Whether it took effect may not be known; the next write finds out.
	errStore = errors.New("not stored")
)

// asStore files an error of the ledger: one that trying again can end, or the end of this leader's term.
func asStore(err error) error {
	if err == nil || errors.Is(err, ledger.ErrDeposed) || errors.Is(err, ledger.ErrNoGrant) || errors.Is(err, ledger.ErrReserved) || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w: %w", errStore, err)
}

// snapshot is a copy of the record as it is stored. It never waits for a write under way.
func (d *driver) snapshot() Incident {
	i := *d.now.Load()
	i.Faults, i.Joined, i.Notes = slices.Clone(i.Faults), slices.Clone(i.Joined), slices.Clone(i.Notes)
	i.Moves, i.Writes, i.Cordons, i.Guards = slices.Clone(i.Moves), slices.Clone(i.Writes), slices.Clone(i.Cordons), slices.Clone(i.Guards)
	i.Strays, i.Uncordoned = slices.Clone(i.Strays), slices.Clone(i.Uncordoned)
	return i
}

// take makes d stand where the store does.
func (d *driver) take(i Incident, rev uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i.migrate()
	was := d.now.Load()
	d.now.Store(&i)
	d.rev, d.attempted = rev, nil
	d.e.index(d, was, &i)
	d.e.meet(&i)
}

// migrate completes a record that an earlier version wrote.
func (i *Incident) migrate() {
	if i.Furthest != "" {
		return
	}
	i.Furthest = Detected
	for _, n := range i.Notes {
		if n.State != Closed && order[n.State] > order[i.Furthest] {
			i.Furthest = n.State
		}
	}
	i.Reserved = i.reached(Checkpointed)
	i.Begun = i.State == Placed && len(i.Moves) > 0
	if i.Path == recreatePath {
		for _, m := range i.Moves {
			if m.OldUID != "" {
				i.Replaced = append(i.Replaced, m.OldUID)
			}
		}
	}
}

// change is update for what cannot fail.
func (d *driver) change(ctx context.Context, f func(*Incident)) error {
	return d.update(ctx, func(i *Incident) error { f(i); return nil })
}

// update applies f to the record and stores it by compare-and-swap, once: no lock is held across a retry. f may be called again, on a newer
// record, and its error leaves everything as it was. A closed record is changed no more. errStore: it could not be stored, or it is not
// known whether it was.
func (d *driver) update(ctx context.Context, f func(*Incident) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.settle(ctx); err != nil {
		return err
	}
	for try := 0; ; try++ {
		next := d.snapshot()
		if !next.Open() {
			return errClosed
		}
		if err := f(&next); err != nil {
			return err
		}
		next.Term = d.e.Term
		var writes []Write
		if d.e.Writes != nil {
			writes = d.e.Writes(next.ID)
		}
		next.Writes = append(next.Writes, writes...)
		next.Writes = next.Writes[:min(len(next.Writes), maxWrites)]
		err := d.put(ctx, &next)
		if errors.Is(err, bus.ErrConflict) && try < 3 { // a person answered, or somebody else drives it
			if err := d.adopt(ctx); err != nil {
				return err
			}
			continue
		}
		return err
	}
}

// put stores a record. What does not fit into a message is stored without what people read only.
func (d *driver) put(ctx context.Context, next *Incident) error {
	if err := d.e.fence(); err != nil {
		return err
	}
	rev, err := d.e.Store.Put(ctx, next.ID, *next, d.rev)
	if errors.Is(err, bus.ErrTooLarge) {
		next.shrink()
		rev, err = d.e.Store.Put(ctx, next.ID, *next, d.rev)
	}
	switch {
	case err == nil:
		d.stored(next, rev)
		return nil
	case errors.Is(err, bus.ErrConflict):
		return err
	case errors.Is(err, bus.ErrTooLarge): // nothing of it took effect
		return fmt.Errorf("%w: %w", errStore, err)
	}
	d.attempted = next
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", errStore, err)
}

// shrink leaves out what no step reads.
func (i *Incident) shrink() {
	i.Writes = nil
	for k := range i.Moves {
		if i.Moves[k].Decision != nil {
			short := *i.Moves[k].Decision
			short.Candidates = short.Candidates[:min(1, len(short.Candidates))]
			i.Moves[k].Decision = &short
		}
	}
	if n := len(i.Notes); n > 40 {
		i.Notes = slices.Concat(i.Notes[:20], i.Notes[n-20:])
	}
	if i.Plan != nil {
		p := *i.Plan
		p.Decision = nil
		i.Plan = &p
	}
	for k := range i.Faults {
		i.Faults[k].Event.Data.Evidence.Raw = ""
	}
}

// stored makes d stand where the store does.
func (d *driver) stored(next *Incident, rev uint64) {
	was := d.now.Load()
	d.now.Store(next)
	d.rev, d.attempted = rev, nil
	if !next.Open() {
		if d.e.remember(*next); next.Group != nil {
			d.e.kin.leads(next)
		}
	}
	d.e.index(d, was, next)
	if was.Plan == nil { // an earlier leader opened it, and its rule is known by now
		d.e.meet(next)
	}
	if d.e.Stepped != nil {
		i := d.snapshot()
		d.e.Stepped(&i)
	}
}

// settle finds out what became of a write whose answer was lost.
func (d *driver) settle(ctx context.Context) error {
	if d.attempted == nil {
		return nil
	}
	stored, rev, err := d.e.Store.Get(ctx, d.attempted.ID)
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return errLost
	case err != nil:
		return fmt.Errorf("%w: %w", errStore, err)
	case rev == d.rev: // it did not take effect
		d.attempted = nil
		return nil
	}
	next := *d.attempted
	if next.Approval = stored.Approval; same(stored, next) {
		d.stored(&next, rev)
		return nil
	}
	d.attempted = nil
	return d.differs(stored, rev)
}

// adopt takes a person's answer from the stored record.
func (d *driver) adopt(ctx context.Context) error {
	stored, rev, err := d.e.Store.Get(ctx, d.now.Load().ID)
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return errLost
	case err != nil:
		return fmt.Errorf("%w: %w", errStore, err)
	case rev == d.rev:
		return nil
	}
	return d.differs(stored, rev)
}

// differs accepts a person's answer in a record that was changed. Any other difference is another remediator's.
func (d *driver) differs(stored Incident, rev uint64) error {
	stored.migrate()
	answered := d.snapshot()
	answered.Approval = stored.Approval
	if !same(stored, answered) {
		return errLost
	}
	d.now.Store(&answered)
	d.rev = rev
	return nil
}

// absorb looks whether a person has answered.
func (d *driver) absorb(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.settle(ctx); err != nil {
		return err
	}
	return d.adopt(ctx)
}

// same compares what the store keeps: neither a clock's monotonic part nor bytes that are no UTF-8 survive it.
func same(a, b Incident) bool {
	x, errA := canonical(a)
	y, errB := canonical(b)
	return errA == nil && errB == nil && bytes.Equal(x, y)
}

func canonical(i Incident) ([]byte, error) {
	raw, err := json.Marshal(i)
	if err != nil {
		return nil, err
	}
	var kept Incident
	if err := json.Unmarshal(raw, &kept); err != nil {
		return nil, err
	}
	return json.Marshal(kept)
}

// add joins an event to the incident; f is nil when it is evidence only. errClosed: it came too late and needs an incident of its own.
func (d *driver) add(ctx context.Context, ev event.Event, f *Fault) error {
	if i := d.now.Load(); i.Knows(ev.ID) || i.Open() && len(i.Joined) >= maxJoined && !i.matters(f) {
		return nil
	}
	news := false
	err := d.update(ctx, func(i *Incident) error {
		news = false
		switch {
		case i.Knows(ev.ID):
		case !i.matters(f):
			i.join(ev)
		default:
			news = i.isNews(*f)
			joined := *f
			joined.Unplanned = true
			i.Faults = append(i.Faults, joined)
			i.Replan = i.Replan || news
			i.note(d.e.Now(), fmt.Sprintf("%s on %s joined", f.Signal, f.Node))
		}
		return nil
	})
	if err == nil && news {
		d.poke()
	}
	return err
}

// covered is the record as the present plan covers it: without the faults that joined since. first reports that its nodes are to be cordoned
// before the plan is made again: in a storm another fault of a large gang joins every few milliseconds, and the nodes that the ledger granted
// would wait for the last one. Nobody was asked about such a plan.
func (i *Incident) covered() (c Incident, first bool) {
	c = *i
	c.Faults = slices.DeleteFunc(slices.Clone(i.Faults), func(f Fault) bool { return f.Unplanned })
	soon := (i.State == Planned || i.State == Approved) && i.HeldAt.IsZero() && i.Plan.Has(policy.Cordon) && !i.Plan.NeedsApproval
	return c, soon && len(c.Faults) > 0 && len(c.Faults) < len(i.Faults)
}

// matters tells a fault that is to be known to the steps from an echo of what is known. A statistical finding is an echo once the incident has
// acted: its guards would not be asked any more.
func (i *Incident) matters(f *Fault) bool {
	if f == nil || f.statistical() && i.acted() || len(i.Faults) >= maxFaults && !(f.Moves && len(i.Faults) < maxNodes) {
		return false
	}
	return i.isNews(*f) || len(i.Faults) < maxFaults && (i.worsens(*f) || i.adds(*f))
}

// isNews tells a fault that changes what is to be done: another node to leave, or a rank of the attempt that is to step again. A
// symptom of a pod that is being moved anyway is an echo, and so is whatever dies before the restart, since it will be started again.
func (i *Incident) isNews(f Fault) bool {
	if f.Moves {
		return !slices.Contains(i.FaultyNodes(), f.Node)
	}
	if slices.ContainsFunc(i.Moves, func(m Move) bool { return m.OldUID != "" && m.OldUID == f.PodUID }) {
		return false
	}
	restarted := i.State == Restarted || i.State == Resumed || i.State == Verified
	if i.Path != launcherPath {
		return restarted && f.PodUID != "" && !i.Replaced.Has(f.PodUID)
	}
	if f.Attempt == nil {
		return false
	}
	return restarted && *f.Attempt == i.Attempt || (restarted || i.State == Placed) && *f.Attempt > i.Attempt
}

// worsens tells a fault on a known node after which less is possible than was thought: its ranks cannot save any more, or no kubelet
// is there to end its pods.
func (i *Incident) worsens(f Fault) bool {
	here := false
	for _, k := range i.Faults {
		if k.Node != f.Node || f.Node == "" {
			continue
		}
		if here = true; k.Signal == f.Signal || f.Signal != nodeLost && !k.Usable {
			return false
		}
	}
	return here && (!f.Usable || f.Signal == nodeLost)
}

// adds tells another fault of a node that is being left: when the first one ends by itself, the node is not well.
func (i *Incident) adds(f Fault) bool {
	return f.Moves && f.Rank == nil && !slices.ContainsFunc(i.Faults, func(k Fault) bool { return k.Signal == f.Signal && k.Node == f.Node })
}

// sendsTo reports whether a replacement is on its way to the node, or has just come there.
func (i *Incident) sendsTo(node string) bool {
	return i.Open() && (order[i.State] >= order[Placed] || i.Round > 1) && node != "" && slices.ContainsFunc(i.Moves, func(m Move) bool { return m.To == node })
}
