package job

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/detector/peers"
)

const (
	grace       = 3 * time.Second // that a round waits for its last ranks
	longGrace   = 30 * time.Second
	maxOpen     = 256 // rounds that wait at once; about a minute of very fast steps
	warmRounds  = 5   // of an attempt that are not judged: caches fill, kernels are compiled
	lostRounds  = 3   // without a rank, until nobody waits for it
	keptRounds  = 16  // closed ones whose values are kept to be shown
	keptOnsets  = 512 // closed ones whose step and time are kept
	strideRate  = 0.1
	workChanges = 0.05 // logarithm of the work of a step, that is another schedule
	absentShare = 0.4  // of a role; if more are silent it is not they who are gone
)

// round is one step of a role.
type round struct {
	step      int64
	at, first time.Time // of the first rank's end of the step; of its arrival
	have      int
	present   []bool
	values    [signals][]float64
	work      []float64
}

// role is the ranks of an attempt that do the same.
type role struct {
	a        *attempt
	name     string
	members  []*member // by rank
	groups   [signals]*peers.Group
	coarse   [signals]*mean
	work     float64  // of a rank in a step, the middle of the last round
	open     []*round // by step
	free     []*round
	recent   []*round // closed, the newest last
	onsets   []onset
	closed   int64 // step of the last closed round
	closedAt time.Time
	front    int64 // the newest step that any rank ended
	frontAt  time.Time
	stride   float64   // seconds between steps
	resumed  time.Time // since when steps come without a long gap
	rounds   int
	interval float64 // seconds between rounds
	slowdown *deviation
	fresh    []*deviation // opened, and not said yet
	sorted   []float64
	before   []float64
}

type onset struct {
	at   int64
	step int64
}

func (r *role) add(now time.Time, m *member, s *Sample) {
	if r.groups[0] == nil {
		return
	}
	if s.Step <= r.closed {
		if m.counted < s.Step {
			r.a.e.counts.Late++
			m.missed = 0 // it lags, and is there
		}
		return
	}
	m.counted = s.Step
	x := r.round(now, s)
	if !x.present[m.slot] {
		x.present[m.slot] = true
		x.have++
	}
	for k := range x.values {
		if v := Signal(k).of(s); !math.IsNaN(v) {
			x.values[k][m.slot] = v
		}
	}
	x.work[m.slot] = s.Rate * s.Duration
	if m.missed >= lostRounds {
		m.missed = 0
	}
	if r.full(x) || len(r.open) > maxOpen {
		r.closeTo(now, x.step)
	}
}

// maxLag is how far back a step's own time is believed.
const maxLag = 10 * time.Minute

func clamp(t, lo, hi time.Time) time.Time {
	switch {
	case t.Before(lo):
		return lo
	case t.After(hi):
		return hi
	}
	return t
}

// full says whether all ranks that a round waits for are in it.
func (r *role) full(x *round) bool {
	for i, m := range r.members {
		if !x.present[i] && m.missed < lostRounds {
			return false
		}
	}
	return true
}

// live counts the ranks that a round waits for.
func (r *role) live() (n int) {
	for _, m := range r.members {
		if m.missed < lostRounds {
			n++
		}
	}
	return max(n, 1)
}

func (r *role) round(now time.Time, s *Sample) *round {
	i, ok := slices.BinarySearchFunc(r.open, s.Step, func(x *round, step int64) int { return cmp.Compare(x.step, step) })
	if ok {
		return r.open[i]
	}
	var x *round
	if n := len(r.free); n > 0 {
		x, r.free = r.free[n-1], r.free[:n-1]
	} else {
		x = newRound(len(r.members))
	}
	x.empty()
	x.step, x.at, x.first = s.Step, clamp(s.Time, now.Add(-maxLag), now), now
	r.open = slices.Insert(r.open, i, x)
	return x
}

func newRound(members int) *round {
	x := &round{present: make([]bool, members), work: make([]float64, members)}
	for k := range x.values {
		x.values[k] = make([]float64, members)
	}
	x.empty()
	return x
}

// empty takes all values from a round.
func (x *round) empty() {
	x.have = 0
	clear(x.present)
	for i := range x.work {
		x.work[i] = math.NaN()
	}
	for k := range x.values {
		copy(x.values[k], x.work)
	}
}

// closeTo closes the rounds up to a step. A rank that has ended a step will not send an older one.
func (r *role) closeTo(now time.Time, step int64) {
	n := 0
	for n < len(r.open) && (r.open[n].step <= step || len(r.open)-n > maxOpen) {
		n++
	}
	due := slices.Clone(r.open[:n])
	r.open = slices.Delete(r.open, 0, n)
	for _, x := range due {
		r.close(now, x)
	}
}

func (r *role) close(now time.Time, x *round) {
	r.a.e.counts.Rounds++
	if x.have < r.live() {
		r.a.e.counts.Partial++
	}
	if r.rounds++; r.rounds > 1 {
		if d := now.Sub(r.closedAt).Seconds(); r.interval == 0 {
			r.interval = d
		} else {
			r.interval += 0.1 * (d - r.interval)
		}
	}
	r.closed, r.closedAt = x.step, now
	for i, m := range r.members {
		if x.present[i] {
			m.missed = 0
		} else {
			m.missed++
		}
	}
	r.recent = append(r.recent, x)
	if len(r.recent) > keptRounds {
		r.free = append(r.free, r.recent[0])
		r.recent = slices.Delete(r.recent, 0, 1)
	}
	if len(r.onsets) >= keptOnsets {
		r.onsets = slices.Delete(r.onsets, 0, keptOnsets/2)
	}
	r.onsets = append(r.onsets, onset{x.at.UnixNano(), x.step})
	if r.rounds <= warmRounds {
		return
	}
	r.charge(x)
	load := r.load(x)
	for s, v := range x.values {
		if !slices.ContainsFunc(v, func(v float64) bool { return !math.IsNaN(v) }) {
			continue
		}
		given := load
		if Signal(s) != Compute {
			given = nil
		}
		for _, f := range r.groups[s].RoundLoad(x.at.UnixNano(), v, given) {
			r.judge(now, Signal(s), fine, f)
		}
		for _, f := range r.coarse[s].add(x.at.UnixNano(), v) {
			r.judge(now, Signal(s), coarse, f)
		}
	}
	r.announce(now)
}

// load is what the ranks were given to do in a round, nil where not all say it. Where the middle of it changes the schedule did.
func (r *role) load(x *round) []float64 {
	r.sorted = r.sorted[:0]
	for i, w := range x.work {
		if x.present[i] && !(w > 0) || math.IsInf(w, 0) {
			return nil
		}
		if x.present[i] {
			r.sorted = append(r.sorted, w)
		}
	}
	slices.Sort(r.sorted)
	w := r.sorted[len(r.sorted)/2]
	if r.work > 0 && math.Abs(math.Log(w/r.work)) > workChanges {
		for _, g := range r.groups {
			g.Workload()
		}
	}
	r.work = w
	return x.work
}

// ahead takes note of the newest step of the role. Steps come in batches, so it is their mean pace that counts.
func (r *role) ahead(now time.Time, step int64) {
	if step <= r.front {
		return
	}
	if r.frontAt.IsZero() || now.Sub(r.frontAt) >= r.a.e.o.Absent {
		r.resumed = now
	}
	if d := now.Sub(r.frontAt).Seconds(); r.front > 0 && d > 0 {
		r.stride += strideRate * (d/float64(step-r.front) - r.stride)
	}
	r.front, r.frontAt = step, now
}

func (r *role) tick(now time.Time) {
	wait := max(grace, min(longGrace, 4*seconds(r.interval)))
	last := int64(-1)
	for _, x := range r.open {
		if now.Sub(x.first) >= wait {
			last = x.step
		}
	}
	if last >= 0 {
		r.closeTo(now, last)
	}
	r.absences(now)
	r.announce(now)
}

// absences finds ranks of which nothing is heard while their peers go on, and ends those that are heard of again.
func (r *role) absences(now time.Time) {
	limit := max(r.a.e.o.Absent, lostRounds*seconds(r.stride))
	var silent []*member
	for _, m := range r.members {
		if now.Sub(m.heard) < limit {
			r.back(now, m)
		} else if r.front >= m.step+lostRounds {
			silent = append(silent, m)
		}
	}
	if now.Sub(r.frontAt) >= limit || now.Sub(r.resumed) < limit || float64(len(silent)) > absentShare*float64(len(r.members)) {
		return
	}
	for _, m := range silent {
		if m.open[absent] == nil {
			r.begin(now, absent, m, Compute, fine, peers.Finding{Onset: m.heard.UnixNano(), Count: len(r.members) - len(silent), Value: math.NaN(), Peers: math.NaN()})
		}
	}
}

func seconds(s float64) time.Duration { return time.Duration(min(s, 1e6) * float64(time.Second)) }
