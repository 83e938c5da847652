package incident

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
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

func (e *Engine) remember(i Incident) {
	e.mu.Lock()
	defer e.mu.Unlock()
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

// Origin says how an event reached the engine.
type Origin struct {
	Age time.Duration // since JetStream stored it, by its clock
	// Live says that the node's own current conditions bear the event out: it was read from them, not from the stream.
	Live bool
	// Observed is the closed incident that a policy only observed, where the event is said again for it; nil otherwise.
	Observed *Incident
}

// Handle deals with one event. It returns nil when the event is dealt with for good, also when nothing is to be done; an error
// means: deliver it again.
func (e *Engine) Handle(ctx context.Context, ev event.Event, o Origin) error {
	if ev.Type != event.Fault && ev.Type != event.Anomaly {
		return nil
	}
	e.handling.Lock()
	defer e.handling.Unlock()
	known, err := e.Seen.Known(ctx, ev.ID)
	if err != nil {
		return err
	}
	if known {
		e.count("seen before")
		return nil
	}
	if age := e.ageOf(ev, o); age > e.Judge.MaxEventAge() && !o.Live {
		// A stale event never acts by itself. If its node still has the condition, the reconciliation of conditions brings it
		// back as a live one; so it must not be remembered as dealt with.
		e.count("stale")
		e.Log.Warn("stale event: nothing is done by it", "id", ev.ID, "signal", ev.Data.Cause.Signal(), "age", age)
		return nil
	}
	err = e.dispatch(ctx, ev, o.Observed)
	if errors.Is(err, cluster.ErrForbidden) { // it will be refused again, and must not hold up the others
		e.count("forbidden")
		e.Log.Error("event not dealt with", "id", ev.ID, "signal", ev.Data.Cause.Signal(), "error", err)
		return nil
	}
	if err != nil {
		return err
	}
	return e.Seen.Remember(ctx, ev.ID)
}

// ageOf is the greater of the stream's age and of what the event says of itself: a replayed event is young in the stream and
// old by its own time. A node's clock that runs ahead cannot make it younger than the stream says.
func (e *Engine) ageOf(ev event.Event, o Origin) time.Duration {
	return max(o.Age, e.Now().Sub(ev.Time))
}

func (e *Engine) count(reason string) {
	e.mu.Lock()
	e.noted[reason]++
	e.mu.Unlock()
}

// Noted counts events that opened nothing, by reason.
func (e *Engine) Noted() map[string]int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[string]int64{}
	for k, v := range e.noted {
		out[k] = v
	}
	return out
}

// dispatch opens or joins one incident per gang concerned, or one for the node where no gang is.
func (e *Engine) dispatch(ctx context.Context, ev event.Event, observed *Incident) error {
	gangs, err := e.Cluster.GangsAt(ctx, ev.Data.Target)
	if err != nil {
		return err
	}
	if len(gangs) == 0 {
		return e.concern(ctx, ev, nil, observed)
	}
	var errs []error
	for _, g := range gangs {
		errs = append(errs, e.concern(ctx, ev, &g, observed))
	}
	return errors.Join(errs...)
}

func (e *Engine) concern(ctx context.Context, ev event.Event, g *cluster.Gang, observed *Incident) error {
	t := ev.Data.Target
	node, err := e.Cluster.NodeState(t.Node)
	if err != nil && t.Node != "" {
		e.count("node unknown")
		e.Log.Warn("event about a node that the cluster does not have", "id", ev.ID, "node", t.Node)
		return nil
	}
	if g != nil && t.Node != "" && !standsOn(g, t.Node) { // a node speaks for its own pods only
		e.count("gang is elsewhere")
		e.Log.Warn("event about a gang that has no pod on the node that speaks", "id", ev.ID, "node", t.Node, "job", g.Job.Name)
		return nil
	}
	if g != nil && t.Job != nil && t.Job.UID != "" && t.Job.UID != g.Job.UID { // it was compared with ranks of a job that is not its own
		e.count("pod of another job")
		e.Log.Warn("event about a pod that is not of the job it names", "id", ev.ID, "pod", t.PodUID, "job", t.Job.UID, "its job", g.Job.UID)
		return nil
	}
	d := e.incidentOf(g, t.Node)
	facts := Facts{Now: e.Now(), Node: node, Gang: g, Nodes: e.Cluster.Nodes()}
	if d != nil {
		i := d.snapshot()
		facts.Incident = &i
	}
	if d == nil && g == nil && node.Quarantined != "" { // nobody runs there and nobody will: an echo of what was dealt with
		e.count("node is quarantined")
		return nil
	}
	plan, why := e.Judge.Plan(ev, facts)
	if observed != nil && (plan == nil || plan.Mode == observes || e.Now().Sub(observed.Opened) > plan.TakeUpWithin) {
		return errObserves
	}
	if plan == nil {
		e.count("no rule acts")
		if d != nil {
			return d.add(ctx, ev, nil)
		}
		if e.Untaken != nil {
			e.Untaken(ev, facts)
		}
		e.Log.Info("event noted", "id", ev.ID, "signal", ev.Data.Cause.Signal(), "node", t.Node, "why", why)
		return nil
	}
	if g == nil && d == nil && !plan.Cordon { // a rank of a pod that is no more, say
		e.count("nothing runs there")
		return nil
	}
	f := faultOf(ev, g, plan)
	f.Seen = e.Now()
	switch {
	case d != nil && plan.Mode == observes: // it is not to be acted on, also not along with another
		err = d.add(ctx, ev, nil)
	case d != nil:
		err = d.add(ctx, ev, &f)
	default:
		return e.open(ctx, ev, g, f, observed)
	}
	if errors.Is(err, errClosed) { // it ended at this moment
		e.drop(d.now.Load().ID)
		return e.concern(ctx, ev, g, observed)
	}
	return err
}

func standsOn(g *cluster.Gang, node string) bool {
	on := func(m cluster.Member) bool { return m.Node == node || m.Node == "" }
	return slices.ContainsFunc(g.Members, on) || slices.ContainsFunc(g.Leaving, on)
}

// incidentOf finds the open incident that an event about this gang, or about this node when it has none, belongs to.
func (e *Engine) incidentOf(g *cluster.Gang, node string) *driver {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range e.drivers {
		i := d.snapshot()
		if g != nil && i.Job != nil && i.Job.UID == g.Job.UID || g == nil && (slices.Contains(i.FaultyNodes(), node) || i.sendsTo(node)) {
			return d
		}
	}
	return nil
}

// maxRaw bounds what an incident keeps of an event's raw text.
const maxRaw = 4 << 10

func faultOf(ev event.Event, g *cluster.Gang, p *Plan) Fault {
	t := ev.Data.Target
	f := Fault{
		EventID: ev.ID, Signal: ev.Data.Cause.Signal(), Sev: ev.Data.Severity, At: ev.Time, Node: t.Node, GPU: t.GPU, PodUID: t.PodUID,
		Rank: t.Rank, Attempt: t.Attempt, Moves: p.Cordon, Usable: usable(ev), Event: ev,
	}
	f.Event.Data.Extra = nil // the record has to fit into one message
	if raw := &f.Event.Data.Evidence.Raw; len(*raw) > maxRaw {
		*raw = strings.ToValidUTF8((*raw)[:maxRaw], "") + " …"
	}
	if g != nil && f.PodUID == "" {
		for _, m := range g.Members {
			if m.Node == t.Node && (t.Pod == "" || m.Pod == t.Pod) {
				f.PodUID = m.PodUID
			}
		}
	}
	return f
}

// lostSignals and lostAdvice are what leaves a rank unable to step, or its memory not to be trusted: no round is begun for it.
// docs/decisions/0002 says why. Advice is the action bucket of the XID table.
var (
	lostSignals = map[string]bool{"rank/dead": true, "rank/hung": true, "gpu/lost": true, "node/lost": true}
	lostAdvice  = map[string]bool{"reset-gpu": true, "reboot-node": true, "drain-and-rma": true}
	// laterAdvice is for the next idle moment: a row that waits to be swapped in works, as XID 63 says of the same thing.
	laterAdvice = map[string]bool{"gpu/row-remap": true}
)

func usable(ev event.Event) bool {
	signal := ev.Data.Cause.Signal()
	return !ev.Data.Severity.AtLeast(event.Fatal) && !lostSignals[signal] && (!lostAdvice[ev.Data.Advice] || laterAdvice[signal])
}

// open makes the incident's record. Its id follows from the event and the job, so that a redelivery finds the first.
func (e *Engine) open(ctx context.Context, ev event.Event, g *cluster.Gang, f Fault, observed *Incident) error {
	now := e.Now()
	subject := ev.Data.Target.Node
	if g != nil {
		subject = g.Job.UID
	}
	i := Incident{
		ID: "inc-" + event.NewID(ev.ID, subject)[:12], Cluster: e.Name, State: Detected, Opened: now, StateAt: now, Faults: []Fault{f}, Round: 1,
	}
	i.Notes = []Note{{At: now, State: Detected, Text: strings.TrimSpace(fmt.Sprintf("%s on %s %s", f.Signal, f.Node, ev.Data.Evidence.Raw))}}
	if observed != nil {
		i.TakenUp = now
		i.note(now, fmt.Sprintf("taken up again: %s only observed it, the policy acts by now, and the node says that it still holds", observed.ID))
	}
	if g != nil {
		i.Job = &g.Job
	}
	rev, err := e.Store.Put(ctx, i.ID, i, 0)
	if errors.Is(err, bus.ErrConflict) { // delivered before, and recorded before the crash
		return nil
	}
	if err != nil {
		return err
	}
	e.Log.Info("incident opened", "incident", i.ID, "signal", f.Signal, "node", f.Node, "job", subject)
	e.drive(i, rev)
	return nil
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

// stallFloor is the least time without a step that speaks for a stalled peer.
const stallFloor = 700 * time.Millisecond

// PeersStalled asks the surviving ranks of a gang whether they stand still beyond their own pace: the witness of a lost node. Where no
// surviving rank can be read, known is false.
func (e *Engine) PeersStalled(ctx context.Context, g cluster.Gang, node string) (stalled, known bool) {
	live, _ := e.Checkpoint.Observe(ctx, members(&g, func(m cluster.Member) bool { return m.Node == node }))
	for _, r := range live.Ranks {
		limit := max(stallFloor, time.Duration(3*r.P99StepS*float64(time.Second)))
		stalled = stalled || r.Section != "setup" && r.StepAgeS > limit.Seconds()
	}
	return stalled, len(live.Ranks) > 0
}
