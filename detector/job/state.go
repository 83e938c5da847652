package job

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/detector/durable"
)

const (
	snapshotMagic   = "PCJOBS\x00\x00"
	snapshotVersion = 3
	maxSnapshot     = 64 << 20 // bytes; attempts heard of least recently are left out beyond
	maxLabel        = 253      // bytes of a name of Kubernetes
	most            = 1 << 50  // of what is counted in rounds
)

// walk is a walk over the engine's state.
type walk struct {
	*durable.Walk
	e   *Engine
	now time.Time
}

// Snapshot gives what an engine that begins anew needs to go on: of each attempt the ranks, what was learnt of them, and what is open.
// It is at most 64 MiB; attempts that would be beyond are left out, those heard of least recently first.
func (e *Engine) Snapshot(now time.Time) []byte { return e.snapshot(now, maxSnapshot) }

func (e *Engine) snapshot(now time.Time, bound int) []byte {
	w := &walk{Walk: durable.Writing(), e: e, now: now}
	w.at(&now)
	w.statements()
	w.classes(e.classes)
	for el := e.recent.Front(); el != nil; el = el.Next() {
		before, more := w.Len(), true
		w.Flag(&more)
		w.attempt(el.Value.(*attempt))
		if w.Len() > bound-64 {
			w.Cut(before)
			break
		}
	}
	end := false
	w.Flag(&end)
	return durable.Seal(snapshotMagic, snapshotVersion, w.Bytes())
}

// Restore takes up a snapshot of an engine with the same options; what stood then stands and is not said again. The store of classes,
// which has a snapshot of its own, is restored before. On an error the engine is as it was.
func (e *Engine) Restore(now time.Time, snapshot []byte) error {
	if len(snapshot) > maxSnapshot {
		return fmt.Errorf("jobs: snapshot: %d bytes are beyond the bound", len(snapshot))
	}
	body, err := durable.Unseal(snapshotMagic, snapshotVersion, snapshot)
	if err != nil {
		return fmt.Errorf("jobs: snapshot: %w", err)
	}
	n := New(e.o)
	n.counts = e.counts
	w := &walk{Walk: durable.Reading(body), e: n, now: now}
	var saved time.Time
	w.past(&saved)
	w.statements()
	w.classes(n.classes)
	for more := true; ; {
		if w.Flag(&more); !more || w.Failed() {
			break
		}
		a := newAttempt(e, key{}, now)
		w.attempt(a)
		if n.ranks += len(a.members); n.jobs[a.key] != nil || len(n.jobs) >= n.o.MaxJobs || n.ranks > n.o.MaxRanks {
			w.Fail("attempt %q is held twice or beyond the bounds", a.key.job)
		}
		if w.Failed() {
			break
		}
		if gap := now.Sub(saved); gap > away {
			a.missed(now, gap)
		}
		n.jobs[a.key] = n.recent.PushBack(a)
	}
	if err := w.Done(); err != nil {
		return fmt.Errorf("jobs: snapshot: %w", err)
	}
	if n.classes != nil {
		if err := n.number(); err != nil {
			return fmt.Errorf("jobs: snapshot: %w", err)
		}
		if e.classes != nil {
			n.classes.blind = e.classes.blind
		}
	}
	if n.recheck = true; e.heardPeople {
		n.statements, n.heardPeople = e.statements, true
	}
	*e = *n
	return nil
}

const (
	away = 2 * time.Second // from which on the time between snapshot and restart is nobody's silence
	// rejoin is what attempts have at least to be heard of again: gRPC tries a server that was away for long once in up to 144 s (two
	// minutes and a fifth, its connection backoff).
	rejoin = 150 * time.Second
)

// missed takes the time in which the engine was not there out of what it takes for silence, and for lasting.
func (a *attempt) missed(now time.Time, gap time.Duration) {
	if back := now.Add(rejoin - a.e.o.Forget); a.heard.Before(back) {
		a.heard = back
	}
	for _, r := range a.roles {
		r.closedAt, r.resumed = now, now
		for _, x := range r.fresh {
			x.opened = x.opened.Add(gap)
		}
	}
	a.desync.missed(now)
}

// at is a time by anybody's clock, to the nanosecond.
func (w *walk) at(t *time.Time) {
	v := int64(math.MinInt64)
	if !t.IsZero() {
		v = t.UnixNano()
	}
	if w.Int64(&v); w.Reads() {
		*t = time.Time{}
		if v != math.MinInt64 {
			*t = time.Unix(0, v).UTC()
		}
	}
}

// past is a time by the gateway's own clock: never ahead of it, though that may have been set back.
func (w *walk) past(t *time.Time) {
	if w.at(t); w.Reads() && t.After(w.now) {
		*t = w.now
	}
}

// step is the number of one, or -1.
func (w *walk) step(p *int64) {
	if w.Int64(p); w.Reads() && *p < -1 {
		w.Fail("step %d", *p)
	}
}

func (w *walk) attempt(a *attempt) {
	w.Text(&a.key.job, maxText+len("pod/"))
	w.Int(&a.key.attempt, math.MinInt, math.MaxInt)
	w.past(&a.began)
	w.past(&a.heard)
	w.past(&a.contested)
	w.Int(&a.world, 0, math.MaxInt)
	w.Flag(&a.formed)
	n := w.List(len(a.roles), w.e.o.MaxRanks)
	for i := range n {
		if w.Reads() {
			a.roles = append(a.roles, &role{a: a})
		}
		r := a.roles[i]
		if w.role(r); w.Reads() && i > 0 && r.name <= a.roles[i-1].name {
			w.Fail("role %q is held twice", r.name)
		}
		if w.Failed() {
			return
		}
	}
	w.desync(a)
	if w.e.classes != nil {
		w.class(a)
	}
}

func (w *walk) role(r *role) {
	w.Text(&r.name, maxText)
	n := w.List(len(r.members), w.e.o.MaxRanks)
	for i := range n {
		if w.Reads() {
			r.members = append(r.members, &member{role: r, slot: i})
		}
		m := r.members[i]
		w.member(m)
		if !w.Reads() {
			continue
		}
		if w.Failed() || m.rank >= r.a.world || r.a.members[m.rank] != nil || i > 0 && m.rank <= r.members[i-1].rank {
			w.Fail("rank %d is beyond the world or held twice", m.rank)
			return
		}
		r.a.members[m.rank] = m
	}
	if w.Reads() && n == 0 {
		w.Fail("role %q has no ranks", r.name)
		return
	}
	w.step(&r.closed)
	w.past(&r.closedAt)
	w.step(&r.front)
	w.past(&r.frontAt)
	w.past(&r.resumed)
	w.Finite(&r.stride)
	w.Finite(&r.interval)
	w.Int(&r.rounds, 0, most)
	w.groups(r)
	w.Finite(&r.work)
	w.rounds(r)
	w.findings(r)
}

func (w *walk) member(m *member) {
	t := &m.target
	w.Int(&m.rank, 0, math.MaxInt)
	for _, p := range []*string{&t.Cluster, &t.Node, &t.GPU, &t.PCI, &t.MIG, &t.Namespace, &t.Pod, &t.PodUID} {
		w.Text(p, maxLabel)
	}
	local := t.LocalRank != nil
	if w.Flag(&local); local {
		if w.Reads() {
			t.LocalRank = new(int)
		}
		w.Int(t.LocalRank, math.MinInt, math.MaxInt)
	}
	if w.Reads() {
		t.Rank = &m.rank
	}
	w.step(&m.step)
	w.at(&m.at)
	w.past(&m.heard)
	w.step(&m.counted)
	w.Int(&m.missed, 0, most)
	w.Int(&m.newest, 0, joinable-1)
	for i := range m.last { // by their distance from the newest, which is small
		o := &m.last[i]
		at, step := o.at-m.at.UnixNano(), o.step-m.step
		w.Int64(&at)
		w.Int64(&step)
		w.Float(&o.duration)
		o.at, o.step = at+m.at.UnixNano(), step+m.step
	}
	for _, p := range []*string{&m.work.Workload, &m.work.GPU, &m.work.Driver, &m.work.Framework} {
		w.Text(p, maxText)
	}
}

func (w *walk) groups(r *role) {
	on := r.groups[0] != nil
	if w.Flag(&on); !on {
		return
	}
	if w.Reads() {
		if r.compare(); r.groups[0] == nil {
			w.Fail("role %q has too few ranks to compare", r.name)
			return
		}
	}
	for s, g := range r.groups {
		g.Walk(w.Walk)
		c := r.coarse[s]
		c.group.Walk(w.Walk)
		w.Int(&c.rounds, 0, meanRounds-1)
		for i := range c.sum {
			w.Finite(&c.sum[i])
			w.Finite(&c.n[i])
		}
	}
}

func (w *walk) rounds(r *role) {
	for _, l := range []struct {
		of   *[]*round
		most int
	}{{&r.open, maxOpen + 1}, {&r.recent, keptRounds}} {
		for i := range w.List(len(*l.of), l.most) {
			if w.Reads() {
				*l.of = append(*l.of, newRound(len(r.members)))
			}
			x := (*l.of)[i]
			if w.round(x); w.Failed() || w.Reads() && i > 0 && x.step <= (*l.of)[i-1].step {
				w.Fail("step %d is out of order", x.step)
				return
			}
		}
	}
	var last onset
	for i := range w.List(len(r.onsets), keptOnsets) {
		if w.Reads() {
			r.onsets = append(r.onsets, onset{})
		}
		o := &r.onsets[i]
		at, step := o.at-last.at, o.step-last.step
		w.Int64(&at)
		w.Int64(&step)
		o.at, o.step = last.at+at, last.step+step
		last = *o
	}
}

func (w *walk) round(x *round) {
	w.step(&x.step)
	w.at(&x.at)
	w.past(&x.first)
	x.have = 0
	for i := range x.present {
		if w.Flag(&x.present[i]); !x.present[i] {
			continue
		}
		x.have++
		for s := range x.values {
			w.Float(&x.values[s][i])
			if v := x.values[s][i]; !math.IsNaN(v) && (!(v > 0) || math.IsInf(v, 0)) {
				w.Fail("%g took no time", v)
			}
		}
		w.Float(&x.work[i])
	}
}

// findings are those about a role's ranks, and about most of them together.
func (w *walk) findings(r *role) {
	hold := func(k kind, m *member, at **deviation) {
		on := *at != nil
		if w.Flag(&on); !on || w.Failed() {
			return
		}
		if w.Reads() {
			*at = &deviation{kind: k, member: m, role: r}
			r.a.open++
		}
		x := *at
		if w.deviation(x); w.Reads() && x.report == nil {
			r.fresh = append(r.fresh, x)
		}
	}
	for _, m := range r.members {
		for k := range m.open {
			hold(kind(k), m, &m.open[k])
		}
	}
	hold(slowdown, nil, &r.slowdown)
	if w.Reads() {
		slices.SortStableFunc(r.fresh, func(a, b *deviation) int { return cmp.Or(a.opened.Compare(b.opened), cmp.Compare(a.kind, b.kind)) })
	}
}

func (w *walk) deviation(x *deviation) {
	signal, shows := int(x.signal), 0
	w.Int(&signal, 0, int(signals)-1)
	x.signal = Signal(signal)
	for s := range x.showing {
		by, f := int(x.showing[s]), &x.seen[s]
		w.Int(&by, 0, int(coarse))
		x.showing[s] = source(by)
		shows += by
		w.Int64(&f.Onset)
		for _, p := range []*float64{&f.Value, &f.Peers, &f.Ratio, &f.Score} {
			w.Float(p)
		}
		w.Int(&f.Count, 0, math.MaxInt)
		w.Int(&f.Suspect, 0, math.MaxInt)
	}
	if shows == 0 {
		w.Fail("a finding that nothing shows")
	}
	w.at(&x.onset)
	w.step(&x.step)
	w.past(&x.opened)
	w.Finite(&x.lost)
	w.step(&x.charged)
	w.report(x, &x.report)
}
