package job

import (
	"math"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/detector/peers"
	"github.com/pitcrew/pitcrew/event"
)

// kind of finding about a rank; slowdown is about the job.
type kind uint8

const (
	straggler kind = iota
	imbalance
	absent
	kinds
	slowdown
)

// causes name the kinds. event.GatewaySignals has the same.
var causes = map[kind]event.Cause{
	straggler: {Kind: "rank", Name: "straggler"},
	imbalance: {Kind: "rank", Name: "imbalance"},
	absent:    {Kind: "rank", Name: "absent"},
	slowdown:  {Kind: "job", Name: "slowdown"},
}

// deviation is an open finding about a member or the job.
type deviation struct {
	kind    kind
	member  *member // nil: the job
	role    *role
	signal  Signal          // the first that showed it
	showing [signals]source // who shows it now
	seen    [signals]peers.Finding
	onset   time.Time
	step    int64 // of the onset
	opened  time.Time
	lost    float64 // GPU-seconds
	charged int64   // the step up to which
	report  *report // nil: it was not said yet
}

func (r *role) judge(now time.Time, s Signal, by source, f peers.Finding) {
	if by == coarse && f.What != peers.Slow {
		return // the fine one says it
	}
	switch f.What {
	case peers.Job:
		if f.Ended != 0 {
			r.over(now, s)
		} else if !r.a.class.knows(r.closed) || r.a.e.classes.blind {
			r.begin(now, slowdown, nil, s, by, f)
		}
	case peers.Slow, peers.Imbalance:
		if f.Member < 0 || f.Member >= len(r.members) {
			return
		}
		k := straggler
		if f.What == peers.Imbalance {
			k = imbalance
		}
		m := r.members[f.Member]
		if f.Ended != 0 {
			r.ease(now, m, k, s, by)
		} else {
			r.begin(now, k, m, s, by, f)
		}
	case peers.Absent: // of one signal; whether the rank itself is silent is seen from its rounds
	}
}

// begin opens a finding, or adds a signal to one that is open.
func (r *role) begin(now time.Time, k kind, m *member, s Signal, by source, f peers.Finding) {
	have := r.slowdown
	if m != nil {
		have = m.open[k]
	}
	if have != nil {
		if have.showing[s] == 0 {
			have.showing[s], have.seen[s] = by, f
		}
		return
	}
	x := &deviation{kind: k, member: m, role: r, signal: s, onset: time.Unix(0, f.Onset).UTC(), opened: now}
	if f.Onset <= 0 {
		x.onset = now
	}
	x.showing[s], x.seen[s] = by, f
	x.step = r.stepAt(f.Onset)
	if m != nil {
		m.open[k] = x
	} else {
		r.slowdown = x
	}
	r.a.open++
	r.fresh = append(r.fresh, x)
}

// brief is what is over so soon that nobody needs to hear of it: a process that had to wait for a processor, say.
const brief = 2 * time.Second

// announce says what has been open for long enough, now that all signals of a round are judged: of several the one that tells most of
// the cause.
func (r *role) announce(now time.Time) {
	fresh := r.fresh
	r.fresh = r.fresh[:0]
	for _, x := range fresh {
		if x.lasted(now) < brief {
			r.fresh = append(r.fresh, x)
			continue
		}
		for s := Signal(signals); s > 0; s-- {
			if x.showing[s-1] != 0 && telling[s-1] > telling[x.signal] {
				x.signal = s - 1
			}
		}
		x.lost = r.lostSince(x)
		x.report = r.a.e.open(now, x, x.key(), x.say(now))
	}
}

// lasted is how long it has, by the time of the rounds and by the gateway's: steps come in batches.
func (x *deviation) lasted(now time.Time) time.Duration {
	d := now.Sub(x.opened)
	if n := len(x.role.recent); n > 0 {
		d = max(d, x.role.recent[n-1].at.Sub(x.onset))
	}
	return d
}

// telling ranks the signals: a slow launch makes a step's compute time long as well, and both make others wait.
var telling = [signals]int{Compute: 1, Communication: 0, Launch: 2}

// ease takes a signal from a finding; without any left it ends.
func (r *role) ease(now time.Time, m *member, k kind, s Signal, by source) {
	x := m.open[k]
	if x == nil || x.showing[s] != by {
		return
	}
	if x.showing[s] = 0; x.showing == [signals]source{} {
		m.open[k] = nil
		r.recovered(now, x, "it is as fast as its peers again")
	}
}

func (r *role) over(now time.Time, s Signal) {
	x := r.slowdown
	if x == nil || x.showing[s] == 0 {
		return
	}
	if x.showing[s] = 0; x.showing == [signals]source{} {
		r.slowdown = nil
		r.recovered(now, x, "most ranks are as they were, or stayed as they are for long")
	}
}

// back ends an absence.
func (r *role) back(now time.Time, m *member) {
	if x := m.open[absent]; x != nil {
		m.open[absent] = nil
		r.recovered(now, x, "it steps with its peers again")
	}
}

// end closes everything that is open.
func (r *role) end(now time.Time, why string) {
	for _, m := range r.members {
		for k, x := range m.open {
			if x != nil {
				m.open[k] = nil
				r.recovered(now, x, why)
			}
		}
	}
	if x := r.slowdown; x != nil {
		r.slowdown = nil
		r.recovered(now, x, why)
	}
}

// charge adds to open findings what a round cost: all ranks wait for the slow one.
func (r *role) charge(x *round) {
	for _, m := range r.members {
		for _, f := range m.open {
			if f == nil || f.kind == absent || f.report == nil {
				continue // before it is said, lostSince counts
			}
			if d := r.excess(x, m, f.signal); !math.IsNaN(d) {
				steps := min(max(x.step-f.charged, 0), mostSpan) // a device is asked about some steps only
				f.lost += d * float64(steps) * float64(r.a.world)
				f.charged = x.step
			}
		}
	}
}

// mostSpan is how many steps one that was measured stands for at most.
const mostSpan = 64

// excess is how much longer a rank took in a round than the middle of its peers, in seconds, 0 when it did not. Not a number: it was
// not measured.
func (r *role) excess(x *round, m *member, s Signal) float64 {
	return math.Max(0, x.values[s][m.slot]-r.others(x, m, s))
}

// others is the middle of a rank's peers in a round, not a number where there are none.
func (r *role) others(x *round, m *member, s Signal) float64 {
	r.sorted = r.sorted[:0]
	for i, o := range x.values[s] {
		if i != m.slot && !math.IsNaN(o) {
			r.sorted = append(r.sorted, o)
		}
	}
	if len(r.sorted) == 0 {
		return math.NaN()
	}
	slices.Sort(r.sorted)
	n := len(r.sorted)
	return (r.sorted[(n-1)/2] + r.sorted[n/2]) / 2
}

// lostSince is what the steps from the onset on have cost: the mean of those that were measured and are kept, times all of them.
func (r *role) lostSince(f *deviation) float64 {
	if f.member == nil || f.kind == absent {
		return 0
	}
	sum, n := 0.0, 0.0
	for _, x := range r.recent {
		if d := r.excess(x, f.member, f.signal); x.step >= f.step && !math.IsNaN(d) {
			sum += d
			n++
		}
	}
	f.charged = r.closed
	if n == 0 {
		return 0
	}
	return sum / n * float64(r.closed-f.step+1) * float64(r.a.world)
}

// stepAt is the step of the round at a time: of the first that is not before it.
func (r *role) stepAt(ns int64) int64 {
	for _, o := range r.onsets {
		if o.at >= ns {
			return o.step
		}
	}
	return r.closed
}
