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
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/ledger"
	"github.com/pitcrew/pitcrew/remediator/policy"
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
	Claims     Claims // nil: nobody reads the heartbeats of checkpoint directories
	Ledger     *ledger.Ledger
	Term       int64        // of this leader; Start takes it from the ledger
	Fence      func() error // whether this leader's term still holds, asked before each write; nil: nobody else can lead
	Now        func() time.Time
	Log        *slog.Logger
	// AfterStep, if not nil, is called after a step is done and before it is recorded: the moment at which a crash is worst.
	AfterStep func(State)
	// Stepped, if not nil, hears of every recorded change, for metrics, traces and the event stream.
	Stepped func(*Incident)
	// Ignored, if not nil, hears of each event that no rule acts on and that belongs to no open incident.
	Ignored func(event.Event, Facts, policy.Judgement)
	// Writes, if not nil, hands over what was written to the cluster for an incident since it was last asked.
	Writes func(id string) []Write

	// Alone, if not nil, hears of an incident that did not speak for a while and does now: see Speaks.
	Alone func(*Incident)

	keys keys // events are dealt with in parallel, but those about one node or one job one after the other

	rush rush // of cordons

	kin *kin // incidents that may have one cause

	mu      sync.Mutex
	drivers map[string]*driver   // open incidents by id
	byJob   map[string]*driver   // the open incident of a job, by its UID
	byNode  map[string][]*driver // open incidents without a job, and those that send a replacement there, by node
	closed  map[string]Incident  // for guards: what was done lately
	noted   map[string]int64     // events that opened nothing, by reason
	costs   map[string]Cost      // of a restart, by the UID of a job that was restarted
	look    chan struct{}        // what was only observed is to be looked at now
	wg      sync.WaitGroup
	ctx     context.Context
}

// closedKept bounds what guards look back on; older incidents stay in the store.
const closedKept = 2000

// Start takes up what an earlier leader left and returns; drivers run until ctx ends. Wait waits for them.
func (e *Engine) Start(ctx context.Context) error {
	stored, err := e.Store.List(ctx)
	if err != nil {
		return fmt.Errorf("read open incidents: %w", err)
	}
	for k := range stored {
		stored[k].Value.migrate()
	}
	e.mu.Lock()
	e.kin = newKin()
	e.ctx, e.drivers, e.closed, e.noted = ctx, map[string]*driver{}, map[string]Incident{}, map[string]int64{}
	e.costs = map[string]Cost{}
	e.byJob, e.byNode, e.look = map[string]*driver{}, map[string][]*driver{}, make(chan struct{}, 1)
	e.mu.Unlock()
	served, err := e.Ledger.Start(ctx, func() []guard.Grant { return grantsOf(stored, e.Now()) }, func(b *ledger.Book) { tidy(b, stored, e.Now()) })
	if err != nil {
		return err
	}
	e.Term = e.Ledger.Term()
	e.wg.Go(func() { <-served })
	slices.SortFunc(stored, func(a, b bus.Change[Incident]) int { return a.Value.Opened.Compare(b.Value.Opened) }) // the first of one cause is told
	for _, c := range stored {
		if c.Value.Open() {
			e.Log.Info("taking up an incident", "incident", c.Value.ID, "state", c.Value.State)
			e.drive(c.Value, c.Rev)
		} else {
			e.remember(c.Value)
			e.meet(&c.Value)
		}
	}
	e.wg.Go(func() { e.keep(ctx) })
	e.wg.Go(func() { e.takeUps(ctx) })
	e.wg.Go(func() { e.gathers(ctx) })
	return nil
}

// Granted wakes an incident that the ledger let in.
func (e *Engine) Granted(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if d := e.drivers[id]; d != nil {
		d.poke()
	}
}

func (e *Engine) fence() error {
	if e.Fence == nil {
		return nil
	}
	return e.Fence()
}

// tidy returns grants whose incident has ended or is no more: the leader before may have died in between.
func tidy(b *ledger.Book, stored []bus.Change[Incident], now time.Time) {
	open := map[string]bool{}
	for _, c := range stored {
		open[c.Value.ID] = c.Value.Open()
	}
	for k := range b.Grants {
		if g := b.Grants[k].Clone(); !open[g.Incident] && g.End(now) {
			b.Grants[k] = g
		}
	}
}

// grantsOf is the ledger of a cluster on which an earlier version ran, which kept none: what its incidents did, by their notes.
func grantsOf(stored []bus.Change[Incident], now time.Time) (out []guard.Grant) {
	for _, c := range stored {
		i := c.Value
		if i.Plan == nil || !i.acted() || !i.Open() && now.Sub(i.ClosedAt) > guard.JobWindow {
			continue
		}
		g := guard.Grant{Incident: i.ID, Policy: i.Plan.Policy, Active: true, At: i.Opened, Charged: i.Plan.Disruptive(), Restart: i.Plan.Has(policy.RestartJob), Causes: i.causes()}
		if i.Job != nil {
			g.Job = i.Job.UID
		}
		for _, n := range i.Cordons {
			g.Nodes = append(g.Nodes, guard.Place{Node: n})
			g.Did = append(g.Did, guard.Done{Verb: policy.Cordon, Node: n, At: i.Opened})
		}
		for round := range i.Restarts {
			g.Did = append(g.Did, guard.Done{Verb: policy.RestartJob, Node: i.Faults[0].Node, At: i.Opened, Round: round + 1})
		}
		if !i.Open() {
			g.End(i.ClosedAt)
		}
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b guard.Grant) int { return b.At.Compare(a.At) })
	return out[:min(len(out), ledger.MaxGrants)]
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
		if j := e.closed[oldest].Job; j != nil {
			delete(e.costs, j.UID)
		}
		delete(e.closed, oldest)
	}
	e.closed[i.ID] = i
	if c, ok := i.shown(); ok && i.Outcome == Recovered {
		e.costs[i.Job.UID] = c
	}
}

func (e *Engine) drive(i Incident, rev uint64) *driver {
	d := &driver{e: e, wake: make(chan struct{}, 1), log: e.Log.With("incident", i.ID), marked: map[string]bool{}}
	d.now.Store(&i) // before anybody can find the driver
	e.mu.Lock()
	e.drivers[i.ID] = d
	e.mu.Unlock()
	d.take(i, rev)
	e.wg.Go(func() { e.see(d, i.ID) })
	return d
}

// standBack is longer than a lease: whoever still leads then is the only leader, and takes the incident up where the store says.
const standBack = 20 * time.Second

// see drives an incident until it is closed or the leadership ends. When another has changed the record it stands back first.
func (e *Engine) see(d *driver, id string) {
	for {
		err := d.run(e.ctx)
		if errors.Is(err, ledger.ErrDeposed) || errors.Is(err, cluster.ErrDeposed) {
			d.log.Warn("this leader has been replaced; nothing more is done by it", "error", err)
			return
		}
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
				if err := e.Ledger.End(e.ctx, id); err != nil && e.ctx.Err() == nil {
					d.log.Warn("return the grant of an incident whose record is deleted", "error", err)
				}
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
	if d := e.drivers[id]; d != nil {
		e.unindex(d, d.now.Load())
	}
	delete(e.drivers, id)
}

// index keeps what incidentOf looks up: which open incident an event about a job or a node belongs to.
func (e *Engine) index(d *driver, was, now *Incident) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.drivers[now.ID] != d {
		return
	}
	if was != nil {
		e.unindex(d, was)
	}
	if !now.Open() {
		return
	}
	if now.Job != nil {
		e.byJob[now.Job.UID] = d
	}
	for _, n := range now.nodes() {
		e.byNode[n] = append(e.byNode[n], d)
	}
}

func (e *Engine) unindex(d *driver, was *Incident) {
	if was == nil {
		return
	}
	if was.Job != nil && e.byJob[was.Job.UID] == d {
		delete(e.byJob, was.Job.UID)
	}
	for _, n := range was.nodes() {
		if rest := slices.DeleteFunc(e.byNode[n], func(o *driver) bool { return o == d }); len(rest) > 0 {
			e.byNode[n] = rest
		} else {
			delete(e.byNode, n)
		}
	}
}

// nodes are those that the incident is about or sends a replacement to.
func (i *Incident) nodes() []string {
	out := i.FaultyNodes()
	for _, m := range i.Moves {
		if i.sendsTo(m.To) && !slices.Contains(out, m.To) {
			out = append(out, m.To)
		}
	}
	return out
}

// wanted reports whether another open incident wants the node cordoned.
func (e *Engine) wanted(node, not string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.byNode[node], func(d *driver) bool {
		i := d.now.Load()
		return i.ID != not && slices.Contains(i.FaultyNodes(), node)
	})
}

// IsOpen reports whether an incident of this id is open.
func (e *Engine) IsOpen(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.drivers[id]
	return d != nil && d.now.Load().Open()
}

// Unwanted calls do if no open incident is about the node, has cordoned it or sends a replacement there. While do runs no event about the node
// opens an incident. Otherwise it returns the incident that has the node.
func (e *Engine) Unwanted(node string, do func()) (by string) {
	defer e.keys.lock("node/" + node)()
	if by = e.has(node); by == "" {
		do()
	}
	return by
}

func (e *Engine) has(node string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, d := range e.drivers {
		if i := d.now.Load(); i.Open() && (slices.Contains(i.nodes(), node) || slices.Contains(i.Cordons, node)) {
			return id
		}
	}
	return ""
}

// Uncordoned records that a person uncordoned a node at that time: what was reported of it until then is history, and what is under way for it
// stops where nothing was stopped yet. A time that is zero or in the future counts as now: the person's clock may be wrong.
func (e *Engine) Uncordoned(ctx context.Context, node string, at time.Time) error {
	if now := e.Now(); at.IsZero() || at.After(now) {
		at = now
	}
	err := e.Ledger.Clear(ctx, node, at)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range e.byNode[node] {
		d.poke()
	}
	return err
}

// NeedPerson counts the open incidents that do not go on without a person.
func (e *Engine) NeedPerson() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range e.drivers {
		i := d.now.Load()
		if p := e.drivers[i.Parent]; p != nil && p.now.Load().Open() {
			continue // its parent counts
		}
		if i.NeedsPerson() {
			n++
		}
	}
	return n
}

// Waits are the waits under way, by incident: also those that are not recorded.
func (e *Engine) Waits() map[string]Wait {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[string]Wait{}
	for id, d := range e.drivers {
		if w := d.pending.Load(); w != nil && w.Reason != ReasonChildren {
			out[id] = *w
		}
	}
	return out
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

// Answered wakes the driver of an incident that a person answered: its record was changed by somebody else.
func (e *Engine) Answered(a Approval) {
	if d := e.driverOf(a.ID); d != nil && d.now.Load().Approval != a.Text {
		d.poke()
	}
}
