package job

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/detector/peers"
	"github.com/pitcrew/pitcrew/event"
)

const (
	coverage    = 0.9              // of an attempt's ranks that must be known before they are compared
	settle      = 5 * time.Second  // that ranks beyond it are waited for
	minMembers  = 4                // of a role whose ranks can be compared
	bothClaim   = 5 * time.Second  // two pods heard of within it claim one rank
	contestHold = 30 * time.Second // after a contest nobody is judged for so long
)

// attempt is one attempt of one job.
type attempt struct {
	e            *Engine
	key          key
	began, heard time.Time
	contested    time.Time // the last time that two claimed one rank, or the size of the world was in dispute
	world        int
	members      map[int]*member
	roles        []*role // by name
	formed       bool
	open         int // findings
	class        classed
	desync       desync
}

// member is a rank.
type member struct {
	rank    int
	target  event.Target
	role    *role
	slot    int       // in its role
	step    int64     // the last that it ended
	at      time.Time // of that step, by its own word
	heard   time.Time
	counted int64 // the newest step whose values were taken
	missed  int   // closed rounds in a row without it
	open    [kinds]*deviation
	last    [joinable]ended
	newest  int
	work    Work
}

func newAttempt(e *Engine, k key, now time.Time) *attempt {
	return &attempt{e: e, key: k, began: now, members: map[int]*member{}}
}

// told is its number for an event: whoever reads that must not meet a change of the attempt.
func (a *attempt) told() *int {
	n := a.key.attempt
	return &n
}

// judged reports whether ranks of the attempt are compared.
func (a *attempt) judged() bool {
	return a.formed && slices.ContainsFunc(a.roles, func(r *role) bool { return r.groups[0] != nil })
}

func (a *attempt) disputed(now time.Time) bool {
	return !a.contested.IsZero() && now.Sub(a.contested) < contestHold
}

func (a *attempt) add(now time.Time, s *Sample) {
	m := a.member(now, s)
	if m == nil {
		return
	}
	if !s.Stands && !m.join(s) {
		a.e.counts.Unjoined++
		return
	}
	if s.Step < m.step && s.Time.After(m.at) { // the process went back: the gang goes on from an older step
		a.restart(now)
		if m = a.member(now, s); m == nil {
			return
		}
		m.join(s)
	}
	m.heard = now
	if s.Stands {
		return
	}
	if s.Step > m.step {
		m.step, m.at, m.target = s.Step, s.Time, s.Target
		m.role.ahead(now, s.Step)
		a.class.add(now, a, s)
	}
	if !a.formed {
		a.form(now)
		return
	}
	if !a.disputed(now) && s.compares() {
		m.role.add(now, m, s)
	}
}

// ended is the end of a step.
type ended struct {
	at, step int64
	duration float64
}

// joinable is how many of a rank's steps are remembered for what comes later about them.
const joinable = 64

// join gives a sample the step that ended at its time, and the duration of that step, where they came before it. It reports whether
// the sample has a step.
func (m *member) join(s *Sample) bool {
	ns := s.Time.UnixNano()
	for i := range m.last {
		o := &m.last[(m.newest+joinable-i)%joinable]
		if o.at == ns && (s.Step < 0 || s.Step == o.step) {
			s.Step = o.step
			if math.IsNaN(s.Duration) {
				s.Duration = o.duration
			}
			return true
		}
	}
	if s.Step < 0 {
		return false
	}
	m.newest = (m.newest + 1) % joinable
	m.last[m.newest] = ended{ns, s.Step, s.Duration}
	return true
}

// member is the rank that the sample is of; nil when it cannot be taken.
func (a *attempt) member(now time.Time, s *Sample) *member {
	rank := *s.Target.Rank
	if a.world == 0 {
		a.world = s.Target.WorldSize
	}
	m, known := a.members[rank]
	claimed := known && m.target.PodUID != s.Target.PodUID
	switch {
	case s.Target.WorldSize != a.world, claimed && now.Sub(m.heard) < bothClaim:
		a.e.counts.Contested++
		a.contested = now
		return nil
	case claimed: // the pod before is gone: the gang was made anew under the same number
		a.restart(now)
		a.world, known = s.Target.WorldSize, false
	}
	if known {
		if m.role.name != s.Role {
			a.contested = now
			return nil
		}
		return m
	}
	if !a.e.room(now, a) {
		a.e.counts.Refused++
		return nil
	}
	m = &member{rank: rank, target: s.Target, step: -1, heard: now}
	m.counted = -1
	m.last[0].step = -1
	a.members[rank] = m
	a.e.ranks++
	m.role = a.role(s.Role)
	m.role.join(m)
	if a.formed {
		m.role.compare()
	}
	return m
}

// room makes room for another rank, at the cost of attempts that nobody judges.
func (e *Engine) room(now time.Time, a *attempt) bool {
	for e.ranks >= e.o.MaxRanks {
		el := e.victim()
		if v := el.Value.(*attempt); v == a || v.judged() {
			return false
		}
		e.counts.Evicted++
		e.drop(now, el, "too many ranks at once")
	}
	return true
}

func (a *attempt) role(name string) *role {
	i, ok := slices.BinarySearchFunc(a.roles, name, func(r *role, n string) int { return cmp.Compare(r.name, n) })
	if !ok {
		a.roles = slices.Insert(a.roles, i, &role{a: a, name: name, closed: -1})
	}
	return a.roles[i]
}

// form begins to compare once the ranks are known.
func (a *attempt) form(now time.Time) {
	known := len(a.members)
	if known < a.world && (float64(known) < coverage*float64(a.world) || now.Sub(a.began) < settle) {
		return
	}
	a.formed = true
	for _, r := range a.roles {
		r.compare()
	}
}

// restart forgets the ranks: they begin anew under the same number.
func (a *attempt) restart(now time.Time) {
	a.e.counts.Restarts++
	a.end(now, "the attempt began anew")
	a.e.ranks -= len(a.members)
	*a = attempt{e: a.e, key: a.key, began: now, heard: now, contested: a.contested, members: map[int]*member{}}
}

func (a *attempt) end(now time.Time, why string) {
	for _, r := range a.roles {
		r.end(now, why)
	}
	a.desync.end(now, a, why)
	if a.e.classes != nil {
		a.class.end(now, a, why)
	}
}

func (a *attempt) tick(now time.Time) {
	a.desync.tick(now, a)
	if !a.formed {
		a.form(now)
		return
	}
	if a.disputed(now) {
		return
	}
	for _, r := range a.roles {
		r.tick(now)
	}
	a.class.tick(now, a)
}

// join takes a rank into its role.
func (r *role) join(m *member) {
	i, _ := slices.BinarySearchFunc(r.members, m.rank, func(m *member, rank int) int { return cmp.Compare(m.rank, rank) })
	r.members = slices.Insert(r.members, i, m)
	for k := i; k < len(r.members); k++ {
		r.members[k].slot = k
	}
}

// compare makes the groups anew for the members that there are now. What was learnt of them is lost, so it happens at the start, and
// when one of the last tenth comes late.
func (r *role) compare() {
	if r.groups[0] != nil {
		r.end(r.closedAt, "a rank joined late; all are learnt anew")
	}
	r.open, r.free, r.recent = nil, nil, nil
	r.groups, r.coarse, r.work = [signals]*peers.Group{}, [signals]*mean{}, 0
	if len(r.members) < minMembers {
		return
	}
	for s := range r.groups {
		fine, err := peers.New(len(r.members))
		if err != nil {
			return
		}
		r.groups[s] = fine
		r.coarse[s] = newMean(len(r.members))
	}
}
