package job

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/detector/class"
	"github.com/pitcrew/pitcrew/detector/series"
	"github.com/pitcrew/pitcrew/semconv"
)

// classSignal is what classes remember and are compared by.
const classSignal = semconv.TrainStepDuration

const (
	longestStep  = 1e6             // s; what is longer is no step
	classSettle  = 5 * time.Second // that a workload must have been told the same
	classCompare = 10 * time.Minute
	classHold    = 32 // steps that wait to be taught: a finding that began in them keeps them out
	classBeyond  = 64 // steps that no sibling went as far as, after which a finding against them is over
)

// classes is what an engine knows of workloads beside its store: the judge of runs against their siblings, and what is open.
type classes struct {
	store  *class.Store
	judge  *series.Engine
	free   []series.ID
	slower map[pair]*slower

	blind bool // judges without siblings' profiles: for tests of what they are worth
}

func newClasses(o *Options) *classes {
	judge, err := series.New(series.Config{MaxSeries: o.MaxJobs})
	if err != nil { // all else is a default
		panic(err)
	}
	return &classes{store: o.Classes, judge: judge, slower: map[pair]*slower{}}
}

// number gives a series for a run; ok is false where all are taken.
func (c *classes) number() (series.ID, bool) {
	if n := len(c.free); n > 0 {
		id := c.free[n-1]
		c.free = c.free[:n-1]
		c.judge.Reset(id, series.Ratio)
		return id, true
	}
	id, err := c.judge.Add(series.Ratio)
	return id, err == nil
}

// classed is an attempt as a run of its class. The zero value is in none.
type classed struct {
	last  Work // that any rank told
	stale bool // a rank told other work since it was looked at

	run      string // the job's UID
	key      class.Key
	agreed   bool      // all ranks say key …
	since    time.Time // … since then
	on       bool      // long enough: the run is one of its class
	compared time.Time

	open   []*pace // by step
	free   []*pace
	closed int64
	steps  int // closed

	ref    *series.Reference // of siblings; nil: none
	runs   int               // of them
	id     series.ID
	judged bool    // id is in use
	clock  float64 // s, of all steps closed: nodes' clocks need not agree
	beyond int     // steps in a row that no sibling shows
	held   []lesson
	marks  []mark
	found  *against
}

// lesson is a step that waits to be taught.
type lesson struct {
	step int64
	took float64
}

// mark says when a step was, for the judge's clock.
type mark struct {
	clock int64 // ns
	step  int64
	at    time.Time
}

// add takes in that a rank ended a step.
func (c *classed) add(now time.Time, a *attempt, s *Sample) {
	if a.e.classes == nil || !(s.Duration > 0) || s.Duration > longestStep || s.Step <= c.closed && c.steps > 0 {
		return
	}
	i, ok := slices.BinarySearchFunc(c.open, s.Step, func(p *pace, step int64) int { return cmp.Compare(p.step, step) })
	if !ok {
		p := &pace{}
		if n := len(c.free); n > 0 {
			p, c.free = c.free[n-1], c.free[:n-1]
		}
		*p = pace{step: s.Step, at: clamp(s.Time, now.Add(-maxLag), now), first: now, took: p.took[:0]}
		c.open = slices.Insert(c.open, i, p)
	}
	p := c.open[i]
	if p.have++; len(p.took) < maxTook {
		p.took = append(p.took, s.Duration)
	}
	switch {
	case a.formed && p.have >= len(a.members):
		c.closeTo(now, a, p.step)
	case len(c.open) > maxOpen:
		c.closeTo(now, a, c.open[0].step)
	}
}

// closeTo closes the steps up to one. Those that less than half of the ranks told of are no measure of the job.
func (c *classed) closeTo(now time.Time, a *attempt, step int64) {
	n := 0
	for n < len(c.open) && c.open[n].step <= step {
		n++
	}
	for _, p := range c.open[:n] {
		c.closed = p.step
		if c.steps++; c.steps > warmRounds && 2*p.have >= len(a.members) {
			c.close(now, a, p)
		}
		c.free = append(c.free, p)
	}
	c.open = slices.Delete(c.open, 0, n)
}

// close judges a step against siblings, and lets it wait to be taught.
func (c *classed) close(now time.Time, a *attempt, p *pace) {
	took := p.duration()
	c.clock += took
	if len(c.marks) >= keptOnsets {
		c.marks = slices.Delete(c.marks, 0, keptOnsets/2)
	}
	c.marks = append(c.marks, mark{int64(c.clock * 1e9), p.step, p.at})
	if !c.on {
		return
	}
	if c.judged {
		c.judge(now, a, p.step, took)
	}
	if a.faulty() {
		c.held = c.held[:0]
		return
	}
	c.held = append(c.held, lesson{p.step, took})
	if len(c.held) > classHold {
		c.teach(now, a, 1)
	}
}

// faulty reports whether what the job takes now is not what its siblings are to expect. All ranks slower than they were themselves
// may be a change of the schedule, which is just what siblings are to know; that it is a fault is for the comparison with the class
// to say, and the middle of several runs to outvote.
func (a *attempt) faulty() bool {
	n := a.open
	for _, r := range a.roles {
		if r.slowdown != nil {
			n--
		}
	}
	return n > 0
}

// teach gives the class the oldest steps that wait.
func (c *classed) teach(now time.Time, a *attempt, n int) {
	for _, l := range c.held[:n] {
		a.e.classes.store.Observe(c.key, c.run, l.step, now.UnixNano(), l.took)
	}
	c.held = slices.Delete(c.held, 0, n)
}

// tick lets time pass: steps that waited long enough are closed, and what the ranks agree on is looked at.
func (c *classed) tick(now time.Time, a *attempt) {
	if a.e.classes == nil {
		return
	}
	last := int64(-1)
	for _, p := range c.open {
		if now.Sub(p.first) >= grace {
			last = p.step
		}
	}
	if last >= 0 {
		c.closeTo(now, a, last)
	}
	if c.stale {
		c.stale = false
		s, ok := a.signature()
		k := class.Key{Signature: s, Signal: classSignal}
		if ok != c.agreed || k != c.key {
			c.leave(now, a, "its ranks tell of another workload")
			c.run, c.key, c.agreed, c.since = a.key.job, k, ok, now
			if !ok {
				a.e.counts.Unclear++
			}
		}
	}
	switch {
	case c.agreed && !c.on && now.Sub(c.since) >= classSettle:
		c.on, c.compared = true, now
		c.refer(a)
	case c.on && now.Sub(c.compared) >= classCompare:
		c.compared = now
		a.e.compare(now, a, c.key)
		if !c.judged {
			c.refer(a)
		}
	}
}

// refer takes what siblings showed, if there are any.
func (c *classed) refer(a *attempt) {
	e := a.e.classes
	p, ok := e.store.Prior(c.key, c.run)
	if !ok {
		return
	}
	c.ref, c.runs = e.store.Reference(c.key, c.run), p.Runs
	if c.id, c.judged = e.number(); c.judged {
		e.judge.Prime(c.id, series.Prior{Level: p.Location, Noise: min(1, max(p.Noise, 1e-6)), Between: min(1, p.Between), Reference: !e.blind})
	}
}

// leave takes the run out of its class.
func (c *classed) leave(now time.Time, a *attempt, why string) {
	if c.found != nil {
		c.over(now, a, why)
	}
	if c.on && !a.faulty() {
		c.teach(now, a, len(c.held))
	}
	if c.judged {
		a.e.classes.free = append(a.e.classes.free, c.id)
	}
	c.on, c.agreed, c.judged, c.ref, c.runs, c.held, c.beyond = false, false, false, nil, 0, nil, 0
}

// end ends the run; what it taught may tell of its class.
func (c *classed) end(now time.Time, a *attempt, why string) {
	on, k := c.on, c.key
	c.leave(now, a, why)
	if on {
		a.e.compare(now, a, k)
	}
	*c = classed{}
}

// knows reports whether siblings say what a step is to take. Then it is the comparison with them that tells a slow job from a change
// of the schedule, and not what the job's ranks were before.
func (c *classed) knows(step int64) bool { return c.judged && c.level(step) > 0 }

// level is what siblings show at a step, in seconds; 0 is unknown.
func (c *classed) level(step int64) float64 { return float64(c.ref.At(int(min(step, math.MaxInt32)))) }
