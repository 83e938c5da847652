package remediator

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// found is a finding that a gateway has set.
type found struct {
	event  event.Event
	at     time.Time // when it was last set, by our clock
	active bool
	ended  time.Time
}

const (
	maxFound   = 4096
	foundFor   = 10 * time.Minute // a finding that was not set again for so long is forgotten, as its bucket does
	foundStale = 45 * time.Second // silence after which a gateway no longer vouches for what it found
	nearOnset  = 5 * time.Minute  // two families whose onsets are this near have one cause: heat takes its time
)

// Signals of gateways that contradict a single culprit.
const (
	slowdown  = "job/slowdown"
	straggler = "rank/straggler"
	imbalance = "rank/imbalance"
)

// brief is an event without what nobody reads again.
func brief(e event.Event) *event.Event {
	e.Data.Evidence.Samples, e.Data.Evidence.PromQL, e.Data.Extra = nil, "", nil
	return &e
}

// setFound takes in what a gateway set, or took away. stored is when, where it was set before this process looked; else the zero value.
// What finds no room may contradict anything: see against.
func (b *board) setFound(c bus.Condition, stored time.Time) {
	now := b.clock()
	key := c.Gateway + "\n" + c.Key
	b.mu.Lock()
	defer b.mu.Unlock()
	have := b.found[key]
	if c.Event == nil {
		if have != nil && have.active {
			have.active, have.ended = false, now
		}
		return
	}
	if have == nil && len(b.found) >= maxFound && !b.forgetFound(now) {
		b.leftOut = now
		return
	}
	at := now
	if !stored.IsZero() && stored.Before(now) {
		at = stored
	}
	b.unlist(key)
	b.found[key] = &found{event: *brief(*c.Event), at: at, active: c.Active}
	b.list(key)
}

// forgetFound drops what nobody has set for long. The caller holds the lock.
func (b *board) forgetFound(now time.Time) (freed bool) {
	for key, f := range b.found {
		if !f.active && now.Sub(f.ended) > foundStale || now.Sub(f.at) > foundFor {
			b.unlist(key)
			delete(b.found, key)
			freed = true
		}
	}
	return freed
}

// subjects are by what a finding is looked up: each look of each incident that waits asks for the findings of its own job.
func subjects(t event.Target) (out []string) {
	for prefix, id := range map[string]string{"pod/": t.PodUID, "gpu/": t.GPU} {
		if id != "" {
			out = append(out, prefix+id)
		}
	}
	if t.Job != nil && t.Job.UID != "" {
		out = append(out, jobSubject+t.Job.UID)
	}
	return out
}

const jobSubject = "job/"

// list makes a finding known under its subjects. The caller holds the lock.
func (b *board) list(key string) {
	f := b.found[key]
	for _, s := range subjects(f.event.Data.Target) {
		if b.foundOf[s] == nil {
			b.foundOf[s] = map[string]*found{}
		}
		b.foundOf[s][key] = f
	}
}

// unlist takes a finding away from its subjects. The caller holds the lock.
func (b *board) unlist(key string) {
	f := b.found[key]
	if f == nil {
		return
	}
	for _, s := range subjects(f.event.Data.Target) {
		if delete(b.foundOf[s], key); len(b.foundOf[s]) == 0 {
			delete(b.foundOf, s)
		}
	}
}

// foundAt gives the findings of some subjects, each once. The caller holds the lock.
func (b *board) foundAt(of []string) map[string]*found {
	out := map[string]*found{}
	for _, s := range of {
		maps.Copy(out, b.foundOf[s])
	}
	return out
}

// sameFinding reports whether two events of gateways are about one thing: two gateways that split see one onset at two steps.
func sameFinding(a, b event.Event) bool {
	return sameRank(a.Data.Target, b.Data.Target) && a.Data.Cause.Kind == b.Data.Cause.Kind && a.Data.Cause.Signal() == b.Data.Cause.Signal()
}

// newestFound is the newest word of any gateway on a finding; nil: there is none.
func (b *board) newestFound(e event.Event) (newest *found) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, f := range b.foundAt(subjects(e.Data.Target)) {
		if sameFinding(f.event, e) && (newest == nil || f.active && !newest.active || f.active == newest.active && f.at.After(newest.at)) {
			newest = f
		}
	}
	if newest == nil {
		return nil
	}
	out := *newest
	return &out
}

// foundStanding is Standing of what a gateway said.
func (b *board) foundStanding(e event.Event) (incident.Standing, string) {
	f := b.newestFound(e)
	now := b.clock()
	switch {
	case f == nil:
		return incident.Unknown, ""
	case !f.active && !f.ended.Before(began(e)):
		return incident.Ended, "ended at " + f.ended.UTC().Format(time.RFC3339)
	case !f.active:
		return incident.Unknown, ""
	case now.Sub(f.at) > foundStale:
		return incident.Silent, "its gateway is silent"
	}
	return incident.Holds, "since " + began(f.event).UTC().Format(time.RFC3339)
}

// latest is the newest report of a finding, and when its source last confirmed it; the event itself, and the zero time, where nothing is known.
func (b *board) latest(e event.Event) (event.Event, time.Time) {
	if event.GatewayOf(e.Source) != "" {
		if f := b.newestFound(e); f != nil && f.active {
			return f.event, f.at
		}
		return e, time.Time{}
	}
	node := e.Data.Target.Node
	for _, v := range b.of(node) {
		if v.event == nil || !v.active || v.signal != e.Data.Cause.Signal() || !about(v.target, e.Data.Target) || !b.now(node, v) {
			continue
		}
		if !b.heard(node) {
			return *v.event, time.Time{}
		}
		return *v.event, b.clock() // the node's agent beats, and ends a condition within a second of its end
	}
	return e, time.Time{}
}

// confirms are the families of signals that the node of a finding measures itself and that went bad with it, on the same GPU or pod, or on the
// host as a whole.
func (b *board) confirms(e event.Event) (names []string) {
	t := e.Data.Target
	if t.Node == "" || !b.heard(t.Node) {
		return nil
	}
	all := b.of(t.Node)
	for _, v := range all {
		if !v.active || len(v.families) == 0 || b.over(t.Node, all, v) {
			continue
		}
		same := v.target.GPU != "" && v.target.GPU == t.GPU && (v.target.PodUID == "" || v.target.PodUID == t.PodUID) ||
			v.target.PodUID != "" && v.target.PodUID == t.PodUID && sameLocal(v.target, t) && (v.target.GPU == "" || t.GPU == "") // a pod has many GPUs
		near := e.Data.Cause.Signal() == imbalance || v.onset.Sub(began(e)).Abs() <= nearOnset
		if !near || !same && !v.host {
			continue
		}
		for _, f := range v.families {
			if !slices.Contains(names, f) {
				names = append(names, f)
			}
		}
	}
	slices.Sort(names)
	return names
}

// sameLocal reports whether two targets of one pod may be the same rank of it.
func sameLocal(a, b event.Target) bool { return a.Rank == nil || b.Rank == nil || *a.Rank == *b.Rank }

// against are the standing findings about a finding's job that name another node, or that no single rank explains. Together with the finding
// they say that nobody knows the culprit.
func (b *board) against(e event.Event, g *cluster.Gang) (out []string) {
	t := e.Data.Target
	pods := map[string]bool{}
	nodes := map[string]bool{}
	job := ""
	if g != nil {
		job = g.Job.UID
		for _, m := range g.Members {
			pods[m.PodUID], nodes[m.Node] = true, true
		}
	} else if t.Job != nil {
		job = t.Job.UID
	}
	ours := func(o event.Target) bool {
		return pods[o.PodUID] || o.Job != nil && o.Job.UID != "" && o.Job.UID == job
	}
	slow := map[int]bool{}
	if t.Rank != nil {
		slow[*t.Rank] = true
	}
	now := b.clock()
	b.mu.RLock()
	if !b.leftOut.IsZero() && now.Sub(b.leftOut) <= foundStale {
		out = append(out, "more findings than can be compared")
	}
	of := []string{jobSubject + job}
	for pod := range pods {
		of = append(of, "pod/"+pod)
	}
	for _, f := range b.foundAt(of) {
		o := f.event.Data.Target
		if !f.active || now.Sub(f.at) > foundStale || !ours(o) || o.Attempt != nil && t.Attempt != nil && *o.Attempt != *t.Attempt {
			continue
		}
		signal := f.event.Data.Cause.Signal() // the words are joined anew each time
		switch {
		case signal == slowdown:
			out = append(out, slowdown+": most ranks became slow together")
		case signal != straggler && signal != imbalance:
		default:
			if o.Rank != nil {
				slow[*o.Rank] = true
			}
			if o.Node != t.Node {
				out = append(out, signal+" names "+named(o))
			}
		}
	}
	b.mu.RUnlock()
	for node := range nodes {
		if node == t.Node {
			continue
		}
		for _, v := range b.of(node) {
			if v.active && v.event != nil && policy.Statistical(*v.event) && v.severity.AtLeast(event.Warning) && pods[v.target.PodUID] && b.now(node, v) {
				out = append(out, v.signal+" names "+named(v.event.Data.Target))
			}
		}
	}
	if world := t.WorldSize; len(slow) > 1 && 2*len(slow) >= world && world > 0 {
		out = append(out, "half of the ranks or more are slow")
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// named says which rank, on which node.
func named(t event.Target) string {
	var parts []string
	if t.Rank != nil {
		parts = append(parts, "rank "+itoa(*t.Rank))
	}
	if t.Node != "" {
		parts = append(parts, "node "+t.Node)
	}
	return strings.Join(parts, " on ")
}

// followFound keeps the board at what gateways say. Without the right to read it nothing statistical acts, since nothing is confirmed.
func (r *remediator) followFound(ctx context.Context, said *board) {
	for ctx.Err() == nil {
		read := false
		err := r.bus.WatchFound(ctx, func() { read = true }, func(c bus.Condition) {
			stored := c.Since
			if read && time.Since(stored) <= foundStale { // clocks need not agree; but what a lost connection brings late was not confirmed now
				stored = time.Time{}
			}
			said.setFound(c, stored)
		}, func(key string, err error) { r.o.Log.Warn("a gateway's finding was refused", "key", key, "error", err) })
		if ctx.Err() == nil {
			r.o.Log.Warn("follow the findings of gateways; will retry. Until then no statistical finding of a gateway acts", "error", err)
			pause(ctx, 10*time.Second)
		}
	}
}
