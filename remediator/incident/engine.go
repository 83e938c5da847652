package incident

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
)

// Engine opens incidents from events and drives each to its end.
type Engine struct {
	Name       string // of the cluster
	Cluster    Cluster
	Checkpoint Checkpointer
	Judge      Judge
	Store      Store
	Attempts   Attempts
	Seen       Seen
	Conditions Conditions
	Now        func() time.Time
	Log        *slog.Logger
	// AfterStep, if not nil, is called after a step is done and before it is recorded: the moment at which a crash is worst.
	AfterStep func(State)
	// Stepped, if not nil, hears of every recorded change, for metrics, traces and the event stream.
	Stepped func(*Incident)
	// Untaken, if not nil, hears of each event that no rule acts on and that belongs to no open incident.
	Untaken func(event.Event, Facts)
	// Writes, if not nil, hands over what was written to the cluster for an incident since it was last asked.
	Writes func(id string) []Write

	handling sync.Mutex // events come from the stream and from conditions; one is dealt with at a time

	mu      sync.Mutex
	drivers map[string]*driver  // open incidents by id
	closed  map[string]Incident // for guards: what was done lately
	noted   map[string]int64    // events that opened nothing, by reason
	look    chan struct{}       // what was only observed is to be looked at now
	wg      sync.WaitGroup
	ctx     context.Context
}

// closedKept bounds what guards look back on; older incidents stay in the store.
const closedKept = 2000

// Start takes up what an earlier leader left and returns; drivers run until ctx ends. Wait waits for them.
func (e *Engine) Start(ctx context.Context) error {
	all, err := e.Store.List(ctx)
	if err != nil {
		return fmt.Errorf("read open incidents: %w", err)
	}
	e.mu.Lock()
	e.ctx, e.drivers, e.closed, e.noted = ctx, map[string]*driver{}, map[string]Incident{}, map[string]int64{}
	e.look = make(chan struct{}, 1)
	e.mu.Unlock()
	for _, c := range all {
		if c.Value.Open() {
			e.Log.Info("taking up an incident", "incident", c.Value.ID, "state", c.Value.State)
			e.drive(c.Value, c.Rev)
		} else {
			e.remember(c.Value)
		}
	}
	e.wg.Go(func() { e.keep(ctx) })
	e.wg.Go(func() { e.takeUps(ctx) })
	return nil
}

// Wait returns when every driver has ended, after the context given to Start has.
func (e *Engine) Wait() { e.wg.Wait() }

// remember keeps a closed incident in mind; what is known of it already may be newer.
func (e *Engine) remember(i Incident) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, known := e.closed[i.ID]; known {
		return
	}
	if len(e.closed) >= closedKept {
		var oldest string
		for id, c := range e.closed {
			if oldest == "" || c.ClosedAt.Before(e.closed[oldest].ClosedAt) {
				oldest = id
			}
		}
		delete(e.closed, oldest)
	}
	e.closed[i.ID] = i
}

func (e *Engine) drive(i Incident, rev uint64) *driver {
	d := &driver{e: e, wake: make(chan struct{}, 1), log: e.Log.With("incident", i.ID)}
	d.take(i, rev)
	e.mu.Lock()
	e.drivers[i.ID] = d
	e.mu.Unlock()
	e.wg.Go(func() { e.see(d, i.ID) })
	return d
}

// standBack is longer than a lease: whoever still leads then is the only leader, and takes the incident up where the store says.
const standBack = 20 * time.Second

// see drives an incident until it is closed or the leadership ends. When another has changed the record it stands back first.
func (e *Engine) see(d *driver, id string) {
	for {
		err := d.run(e.ctx)
		if err != nil && e.ctx.Err() == nil {
			d.log.Warn("driver stands back", "error", err, "for", standBack)
		}
		for err != nil {
			if !pause(e.ctx, standBack) {
				return
			}
			var stored Incident
			var rev uint64
			if stored, rev, err = e.Store.Get(e.ctx, id); err == nil {
				d.take(stored, rev)
			} else if errors.Is(err, bus.ErrNotFound) {
				e.drop(id)
				return
			}
		}
		if i := d.snapshot(); !i.Open() {
			e.remember(i)
			e.drop(id)
			return
		}
	}
}

func (e *Engine) drop(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.drivers, id)
}

// Incidents are copies of the open incidents and of those closed lately, newest first.
func (e *Engine) Incidents() (open, all []*Incident) {
	e.mu.Lock()
	drivers := make([]*driver, 0, len(e.drivers))
	for _, d := range e.drivers {
		drivers = append(drivers, d)
	}
	for _, c := range e.closed {
		all = append(all, &c)
	}
	e.mu.Unlock()
	for _, d := range drivers {
		i := d.snapshot()
		open, all = append(open, &i), append(all, &i)
	}
	slices.SortFunc(all, func(a, b *Incident) int { return b.Opened.Compare(a.Opened) })
	return open, all
}

// Follow wakes a driver whose record somebody else changed: a person's answer. It returns when ctx ends.
func (e *Engine) Follow(ctx context.Context) error {
	return e.Store.Watch(ctx, nil, func(c bus.Change[Incident]) {
		e.mu.Lock()
		d := e.drivers[c.Key]
		e.mu.Unlock()
		if d != nil && c.Value.Approval != d.snapshot().Approval {
			d.poke()
		}
	})
}
