// Package peers judges the ranks of one job and role against each other: the culprit is the one that changed and its peers did
// not.
//
// It promises: leave-one-out and robust to four slow members of ten; above that and up to six of ten it abstains, beyond that it
// speaks of the job and not of ranks; a constant offset of a rank is its own and no finding, unless it is there from the start and
// large (static imbalance); no name is read, only ratios; the same rounds give the same findings; and a round allocates nothing
// while nothing changes. The caller makes groups of one role and one signal in which slow means high: compute time or launch
// latency, never the step time of a synchronous job, which is the same for all.
//
// The method and its measured weaknesses are in docs/detection-formulas.md.
package peers

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// The tuning. Ratios are logarithms, so 0.1 is about ten percent.
const (
	least        = 4    // members that can be peers
	coverage     = 0.9  // of the members that make a round
	staticRounds = 30   // first rounds, in which an imbalance is one from the start
	staticMost   = 20   // of them that must show it
	staticRatio  = 1.25 // and six times the spread of the role
	staticSpread = 6
	abstainFrom  = 0.4 // share of members that are slow: from here peers say nothing …
	jobFrom      = 0.6 // … and from here it is the job
	learnRounds  = 8   // before a member's offset is known
	learnRate    = 1.0 / 32
	scaleFloor   = 0.01
	closeRounds  = 3
	absentAfter  = 3 // rounds
)

// What a finding is.
type What uint8

// Kinds of finding.
const (
	Slow      What = iota // changed against its peers
	Imbalance             // slow against them from the start
	Absent                // its value is missing while its peers' are there
	Job                   // most of the role changed together
)

func (w What) String() string { return [...]string{"slow", "imbalance", "absent", "job"}[w] }

// Finding is a member that is apart from its peers. Member is -1 for Job.
type Finding struct {
	What    What
	Member  int
	Onset   int64 // ns, of the first round that showed it
	Ended   int64 // 0: open
	Value   float64
	Peers   float64 // their middle, itself left out
	Count   int     // of them
	Ratio   float64 // to the peers, its own constant offset taken out but for Imbalance; of Job, to the role's level before
	Score   float64 // in standard errors of what it is for one of its peers
	Suspect int     // place among the slow and the imbalanced that are open, 1 is the first suspect
}

// member is what a round reads and writes of each.
type member struct {
	offset, scale fixed // its own distance from the peers, and the noise of it, with the finer bits
	rest, d       fixed // of this round: what of the offset is not believed, and the distance from the peers
	rounds        uint8 // behind the offset, offsetN at most
	heard         uint8 // rounds of evidence, history at most
	marks         marks
}

// marks tell what sets a member apart from a healthy one that has long been known.
type marks uint8

const (
	none    marks = 1 << iota // it has no value in this round
	blind                     // its load is not known
	fresh                     // its offset is not known
	suspect                   // not learnt from; also while open
	young                     // its rates are not those of later, or a window is not full

	unheard = none | blind | fresh // of which there is no evidence
)

// standing is what is noted of a member beside.
type standing struct {
	explained fixed // of this round, by its load
	onset     int64
	peak      [windows]float64 // of the means while it is suspect
	open      bool
	good      int // rounds back among its peers
	opened    float64
	static    bool
	judged    bool // of the start
	high      int
	silent    int
	absent    bool
	gone      int64 // first round without it
}

// Group is the ranks of one job, role and signal. It is used by one goroutine at a time.
type Group struct {
	m       []member
	of      []standing
	y       []fixed // logarithms of this round's values
	scratch []fixed
	runs    runs
	before  [windows][]int32 // scratch of leaveOut
	marked  bool             // anybody is, in this round
	silent  bool             // somebody was missing in the round before
	rounds  int
	held    int // rounds without a judgement

	abstained int  // rounds in a row
	apart     bool // much of the role, or all of it: nothing of the round is learnt
	noise     noise
	load      load
	level     level
	middle    middle // of this round, in distances
	times     [history]int64
	judging   judging
	open      int // slow or imbalanced, and not ended
	out       []Finding
}

// New makes a group of n members.
func New(n int) (*Group, error) {
	if n < least {
		return nil, fmt.Errorf("%d members: peers need %d", n, least)
	}
	g := &Group{m: make([]member, n), of: make([]standing, n), y: make([]fixed, n), scratch: make([]fixed, n), runs: newRuns(n)}
	g.load.x = make([]fixed, n)
	for k := range g.before {
		g.before[k] = make([]int32, n)
	}
	g.Attempt()
	return g, nil
}

// Attempt starts a new attempt of the job: silence while ranks come and go, and offsets are learnt anew.
func (g *Group) Attempt() {
	for i := range g.m {
		g.begin(i)
	}
	clear(g.of)
	x := g.load.x
	g.rounds, g.open, g.abstained, g.apart, g.silent, g.noise, g.load, g.level = 0, 0, 0, false, false, noise{}, load{x: x}, level{}
}

// Workload says that the job announced other work: a new level of the whole role is expected, members' offsets stay.
func (g *Group) Workload() { g.level.forget() }

// forget lets what is there become normal: half of a role that stays apart is how the role is.
func (g *Group) forget() {
	for i := range g.m {
		g.begin(i)
		if g.of[i].peak = [windows]float64{}; g.of[i].open {
			g.m[i].marks |= suspect
		}
	}
	g.noise, g.apart = noise{}, false
}

// begin lets a member's offset and evidence begin.
func (g *Group) begin(i int) {
	g.m[i] = member{marks: fresh | young}
	g.runs.begin(i)
}

// Held counts rounds that were not judged for too few values.
func (g *Group) Held() int { return g.held }

// Round judges one round: a value of each member, NaN where there is none. Findings that open or end are given; the slice is
// valid until the next round.
func (g *Group) Round(t int64, v []float64) []Finding { return g.RoundLoad(t, v, nil) }

// RoundLoad is a round in which it is known what each member was given to do: tokens, or the compute time of its replica on the
// other stages of the pipeline; NaN where that is unknown. Only how the load varies from round to round and member to member is
// used, in whatever unit: how much of a member's time follows its load is learnt. A member whose load is unknown is not judged in
// that round, and a role that had loads is not judged in a round without.
func (g *Group) RoundLoad(t int64, v, load []float64) []Finding {
	g.out = g.out[:0]
	if len(v) != len(g.m) || load != nil && len(load) != len(g.m) {
		return nil
	}
	have := logarithms(g.y, v)
	if have == 0 {
		g.held++
		return nil
	}
	if silent := have < len(v); silent || g.silent {
		g.absences(t, v, have)
		g.silent = silent
	}
	if float64(have) < coverage*float64(len(g.m)) && g.present() > have || have < least {
		g.held++
		return g.out
	}
	if !g.load.take(g.y, load, g.scratch) {
		g.held++
		return g.out
	}
	g.static(t, v)
	g.rounds++
	g.times[g.rounds%history] = t
	g.runs.at = uint(g.rounds)
	g.distances()
	triggered := g.gather()
	job := g.level.judge(g, t)
	if triggered && g.judge(t, v, have, job) {
		g.abstained++
	} else {
		g.abstained = 0
	}
	if g.abstained == newNormal {
		g.forget()
	}
	g.apart = job || g.abstained > 0
	g.learn()
	g.order()
	return g.out
}

// distances gives each member its distance from the middle of its peers, beyond its own offset and what its load explains, and adds
// it to the evidence.
func (g *Group) distances() {
	members, s, y, have, trust := g.m, g.scratch[:len(g.m)], g.y[:len(g.m)], 0, g.noise.trust()
	for i := range members {
		m := &members[i]
		if m.marks&none != 0 {
			continue
		}
		m.rest = trust.rest(m.offset)
		m.d = y[i] - m.offset>>finer + m.rest
		s[have] = m.d
		have++
	}
	if g.load.given {
		have = g.explain(s)
	}
	g.middle = middleOf(s[:have], g.middle.mid)
	g.marked = g.advance(&g.middle, g.noise.limit())
}

// advance takes the middle of its peers from each member's distance and adds it to the evidence. It says whether anybody has a mark.
func (g *Group) advance(middle *middle, limit fixed) (marked bool) {
	members, least := g.m, -limit
	now, before := g.runs.back(0)[:len(members)], g.runs.back(1)[:len(members)]
	for i := range members {
		m := &members[i]
		if m.marks != 0 {
			marked = true
			continue
		}
		d := m.d - middle.without(m.d)
		m.d = d
		now[i] = before[i] + int32(min(max(d, least), limit))
	}
	if marked {
		g.advanceOthers(middle, limit)
	}
	return marked
}

// advanceOthers is advance for those with a mark.
func (g *Group) advanceOthers(middle *middle, limit fixed) {
	for i := range g.m {
		m := &g.m[i]
		switch {
		case m.marks == 0:
			continue
		case m.marks&fresh != 0: // of two halves that lie apart, either is the other's middle: offsets would not settle
			m.d -= middle.mid
		default:
			m.d -= middle.without(m.d)
		}
		if m.marks&unheard != 0 {
			g.runs.turn(i)
			continue
		}
		g.runs.back(0)[i] = g.runs.back(1)[i] + int32(m.d.clip(limit))
		m.heard = min(m.heard+1, history)
	}
}

// explain takes from the distances what loads explain.
func (g *Group) explain(s []fixed) (have int) {
	slope := g.load.slope()
	for i := range g.m {
		m, of := &g.m[i], &g.of[i]
		of.explained = 0
		m.marks &^= blind
		if m.marks&none != 0 {
			continue
		}
		if x := g.load.x[i]; x == missing {
			m.marks |= blind
		} else {
			of.explained = fix(slope * x.float())
		}
		m.d -= of.explained
		s[have] = m.d
		have++
	}
	return have
}

// present counts the members that are not known to be absent.
func (g *Group) present() (n int) {
	for i := range g.m {
		if !g.of[i].absent {
			n++
		}
	}
	return n
}

func (g *Group) absences(t int64, v []float64, have int) {
	for i := range g.m {
		m := &g.of[i]
		g.m[i].marks &^= none
		if g.y[i] != missing {
			if m.absent {
				g.out = append(g.out, Finding{What: Absent, Member: i, Onset: m.gone, Ended: t, Value: v[i], Count: have - 1})
				m.absent = false
			}
			m.silent = 0
			continue
		}
		g.m[i].marks |= none
		if m.silent++; m.silent == 1 {
			m.gone = t
		}
		if m.silent == absentAfter && !m.absent && g.m[i].rounds > 0 {
			m.absent = true
			g.out = append(g.out, Finding{What: Absent, Member: i, Onset: m.gone, Value: math.NaN(), Count: have})
		}
	}
}

// static is the once-only judgement of the start: a member that is slow from its first round has no normal of its own.
func (g *Group) static(t int64, v []float64) {
	if g.rounds >= staticRounds {
		return
	}
	s := g.scratch[:0]
	for _, y := range g.y {
		if y != missing {
			s = append(s, y)
		}
	}
	slices.Sort(s)
	spread := spread(s)
	mid := middleOf(s, s[len(s)/2])
	for i := range g.m {
		m := &g.of[i]
		y := g.y[i]
		if m.judged || y == missing {
			continue
		}
		if m.high == 0 {
			m.onset = t
		}
		d := (y - mid.without(y)).float()
		if d > max(math.Log(staticRatio), staticSpread*spread) {
			m.high++
		}
		if m.high >= staticMost {
			m.static, m.judged = true, true
			g.open++
			g.out = append(g.out, Finding{What: Imbalance, Member: i, Onset: m.onset, Value: v[i], Peers: math.Exp(y.float() - d), Count: len(s) - 1, Ratio: math.Exp(d), Score: d / max(spread, scaleFloor)})
		}
	}
}

// order numbers the suspects among the findings that open now, the largest score first, behind those that are open.
func (g *Group) order() {
	if len(g.out) == 0 {
		return
	}
	slices.SortStableFunc(g.out, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.Member, b.Member))
	})
	suspect := func(f *Finding) bool { return f.Ended == 0 && (f.What == Slow || f.What == Imbalance) }
	n := g.open
	for i := range g.out {
		if suspect(&g.out[i]) {
			n--
		}
	}
	for i := range g.out {
		if f := &g.out[i]; suspect(f) {
			n++
			f.Suspect = n
		}
	}
}
