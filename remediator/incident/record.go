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
)

var (
	// errLost says that another changed the record: this process may not be the leader any more.
	errLost = errors.New("another remediator changed the incident; this one stands back")
	// errClosed says that the incident has ended; what comes now concerns another one.
	errClosed = errors.New("the incident is closed")
)

// snapshot is a copy of the record as it is stored. It never waits for a write under way.
func (d *driver) snapshot() Incident {
	i := *d.now.Load()
	i.Faults, i.Joined, i.Notes = slices.Clone(i.Faults), slices.Clone(i.Joined), slices.Clone(i.Notes)
	i.Moves, i.Writes, i.Cordons, i.Guards = slices.Clone(i.Moves), slices.Clone(i.Writes), slices.Clone(i.Cordons), slices.Clone(i.Guards)
	i.Strays = slices.Clone(i.Strays)
	return i
}

// take makes d stand where the store does.
func (d *driver) take(i Incident, rev uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now.Store(&i)
	d.rev = rev
}

// change is update for what cannot fail.
func (d *driver) change(ctx context.Context, f func(*Incident)) error {
	return d.update(ctx, func(i *Incident) error { f(i); return nil })
}

// update applies f to the record and stores it by compare-and-swap; f may be called again, on a newer record, and its error leaves
// everything as it was. A driver changes a closed record no more. It waits for a store that is away.
func (d *driver) update(ctx context.Context, f func(*Incident) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var writes []Write
	var next Incident
	for made, asked := false, false; ; {
		if !made { // else the same once more: perhaps it took effect, and only the answer was lost
			if next = d.snapshot(); !next.Open() {
				return errClosed
			}
			if err := f(&next); err != nil {
				return err
			}
			if !asked && d.e.Writes != nil {
				writes, asked = d.e.Writes(next.ID), true
			}
			next.Writes = append(next.Writes, writes...)
			next.Writes = next.Writes[:min(len(next.Writes), maxWrites)]
			made = true
		}
		rev, err := d.e.Store.Put(ctx, next.ID, next, d.rev)
		if errors.Is(err, bus.ErrConflict) {
			var stored bool
			if stored, rev, err = d.resolve(ctx, &next); err == nil && !stored {
				made = false
				continue
			}
		}
		switch {
		case err == nil:
			d.now.Store(&next)
			d.rev = rev
			if d.e.Stepped != nil {
				i := d.snapshot()
				d.e.Stepped(&i)
			}
			return nil
		case errors.Is(err, errLost):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
		d.log.Warn("store the incident; will retry", "error", err)
		if !pause(ctx, retryWait) {
			return ctx.Err()
		}
	}
}

// resolve finds out why a write met another revision: it took effect and only its answer was lost, or a person answered meanwhile,
// whose answer is kept and the change is made again, or somebody else drives the incident.
func (d *driver) resolve(ctx context.Context, next *Incident) (took bool, rev uint64, err error) {
	stored, rev, err := d.e.Store.Get(ctx, next.ID)
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return false, 0, errLost
	case err != nil:
		return false, 0, err
	}
	if next.Approval = stored.Approval; same(stored, *next) {
		return true, rev, nil
	}
	return false, rev, d.adopt(stored, rev)
}

// adopt takes a person's answer from the stored record. Any other difference is another remediator's.
func (d *driver) adopt(stored Incident, rev uint64) error {
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
	stored, rev, err := d.e.Store.Get(ctx, d.now.Load().ID)
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return errLost
	case err != nil || rev == d.rev:
		return err
	}
	return d.adopt(stored, rev)
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
			i.Faults = append(i.Faults, *f)
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

// matters tells a fault that is to be known to the steps from an echo of what is known.
func (i *Incident) matters(f *Fault) bool {
	return f != nil && len(i.Faults) < maxFaults && (i.isNews(*f) || i.worsens(*f))
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
		return restarted && slices.ContainsFunc(i.Moves, func(m Move) bool { return m.NewUID != "" && m.NewUID == f.PodUID })
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

// sendsTo reports whether a replacement is on its way to the node, or has just come there.
func (i *Incident) sendsTo(node string) bool {
	return i.Open() && (order[i.State] >= order[Placed] || i.Round > 1) && node != "" && slices.ContainsFunc(i.Moves, func(m Move) bool { return m.To == node })
}
