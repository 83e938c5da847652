package job

import (
	"math"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

// unlevelled are the signals whose findings have no level that could be accepted.
var unlevelled = []string{causes[absent].Signal(), desyncCause.Signal()}

// Levelled reports whether findings of a signal are of a level, which people can accept.
func Levelled(signal string) bool { return !slices.Contains(unlevelled, signal) }

// accept implements standing. A rank that is silent has no level.
func (x *deviation) accept(now time.Time) bool {
	r := x.role
	switch x.kind {
	case absent:
		return false
	case slowdown:
		for _, g := range r.groups {
			g.AcceptLevel()
		}
		r.slowdown = nil
	default:
		m := x.member
		for s, g := range r.groups {
			apart := r.apart(m, Signal(s), x.step)
			g.Accept(m.slot, apart)
			r.coarse[s].accept(m.slot, apart)
		}
		for _, k := range []kind{straggler, imbalance} { // both are of the place that it has now
			if o := m.open[k]; o != nil && o != x {
				r.overtaken(now, o)
			}
			m.open[k] = nil
		}
	}
	r.a.open--
	return true
}

// overtaken forgets a finding whose level was accepted with another's.
func (r *role) overtaken(now time.Time, x *deviation) {
	e := r.a.e
	r.a.open--
	if x.report == nil {
		r.fresh = slices.DeleteFunc(r.fresh, func(o *deviation) bool { return o == x })
		return
	}
	delete(e.reports, x.report)
	e.emit(x.report, x.report.now(now, event.StateAccepted), false, true)
}

// apart is the logarithm of a rank's ratio to the middle of its peers in the rounds that are kept from a step on, the middle of them;
// not a number where it was not measured.
func (r *role) apart(m *member, s Signal, from int64) float64 {
	var all []float64
	for _, x := range r.recent {
		if d := math.Log(x.values[s][m.slot] / r.others(x, m, s)); x.step >= from && !math.IsNaN(d) {
			all = append(all, d)
		}
	}
	if len(all) == 0 {
		return math.NaN()
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// accept implements standing: the judge takes the level for the run's own, and the class is taught what the run shows.
func (x *against) accept(time.Time) bool {
	c := &x.a.class
	if c.judged {
		x.a.e.classes.judge.Accept(c.id)
	}
	c.found = nil
	x.a.open--
	return true
}

// accept implements standing. That collectives were not entered is no level.
func (*desynced) accept(time.Time) bool { return false }

// accept implements standing: the difference is known from now on, and said again once it is twice as much.
func (s *slower) accept(time.Time) bool {
	s.accepted, s.report = true, nil
	return true
}
