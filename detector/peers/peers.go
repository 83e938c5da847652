// Package peers judges the ranks of one job and role against each other: the culprit is the one that changed and its peers did
// not.
//
// It promises: leave-one-out and robust to four slow members of ten; above that and up to six of ten it abstains, beyond that it
// speaks of the job and not of ranks; a constant offset of a rank is its own and no finding, unless it is there from the start and
// large (static imbalance); no name is read, only ratios; the same rounds give the same findings; and a round allocates nothing
// while nothing changes. The caller makes groups of one role and one signal in which slow means high: compute time or launch
// latency, never the step time of a synchronous job, which is the same for all.
package peers

import (
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
	scaleRate    = 1.0 / 32
	scaleFloor   = 0.01
	openScales   = 6    // of the member's own noise that open …
	openLeast    = 0.12 // … and at least so much
	openSum      = 3.0  // sum of normalised excess that opens: two strong rounds or more weak ones
	meanRate     = 0.25 // of the mean of distances, each at most meanClip scales …
	meanClip     = 4.0
	meanScales   = 3.1 // … which opens from so many scales, and meanLeast, on
	meanLeast    = 0.17
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
	Ratio   float64 // to the peers, its own constant offset taken out but for Imbalance
	Score   float64 // in scales of its own noise
	Suspect int     // place among those open, 1 is the first suspect
}

type member struct {
	offset, scale  float64
	rounds         int
	sum, mean      float64
	onset          int64
	high, silent   int
	good           int
	ratio, z       float64
	open           bool
	static, judged bool
	absent         bool
}

// Group is the ranks of one job, role and signal. It is used by one goroutine at a time.
type Group struct {
	m      []member
	y      []float64 // logarithms of the round
	sorted []float64
	dev    []float64
	rounds int
	job    bool
	jobSum int
	out    []Finding
	held   int // rounds without a judgement
}

// New makes a group of n members.
func New(n int) (*Group, error) {
	if n < least {
		return nil, fmt.Errorf("%d members: peers need %d", n, least)
	}
	return &Group{m: make([]member, n), y: make([]float64, n), sorted: make([]float64, 0, n), dev: make([]float64, 0, n)}, nil
}

// Attempt starts a new attempt of the job: silence while ranks come and go, and offsets are learnt anew.
func (g *Group) Attempt() {
	for i := range g.m {
		g.m[i] = member{}
	}
	g.rounds, g.job, g.jobSum = 0, false, 0
}

// Held counts rounds that were not judged for too few values.
func (g *Group) Held() int { return g.held }

// Round judges one round: a value of each member, NaN where there is none. Findings that open or end are given; the slice is
// valid until the next round.
func (g *Group) Round(t int64, v []float64) []Finding {
	g.out = g.out[:0]
	if len(v) != len(g.m) {
		return nil
	}
	g.sorted = g.sorted[:0]
	for i, x := range v {
		g.y[i] = math.NaN()
		if x > 0 && !math.IsInf(x, 0) {
			g.y[i] = math.Log(x)
			g.sorted = append(g.sorted, g.y[i])
		}
	}
	have := len(g.sorted)
	if have == 0 {
		g.held++
		return nil
	}
	g.absences(t, v)
	if float64(have) < coverage*float64(len(g.m)) && g.present() > have || have < least {
		g.held++
		return g.out
	}
	slices.Sort(g.sorted)
	spread := g.spread()
	g.rounds++
	changed := g.residuals(t, spread)
	share := float64(changed) / float64(have)
	switch {
	case share > jobFrom:
		g.jobEvent(t)
	case share > abstainFrom:
	default:
		g.jobOver(t)
		g.judge(t, v, spread)
	}
	g.order()
	return g.out
}

// present counts the members that are not known to be absent.
func (g *Group) present() (n int) {
	for i := range g.m {
		if !g.m[i].absent {
			n++
		}
	}
	return n
}

func (g *Group) absences(t int64, v []float64) {
	for i := range g.m {
		m := &g.m[i]
		if !math.IsNaN(g.y[i]) {
			if m.absent {
				g.out = append(g.out, Finding{What: Absent, Member: i, Onset: m.onset, Ended: t, Value: v[i], Count: len(g.sorted) - 1})
				m.absent = false
			}
			m.silent = 0
			continue
		}
		if m.silent++; m.silent == 1 {
			m.onset = t
		}
		if m.silent == absentAfter && !m.absent && m.rounds > 0 {
			m.absent = true
			g.out = append(g.out, Finding{What: Absent, Member: i, Onset: m.onset, Value: math.NaN(), Count: len(g.sorted)})
		}
	}
}

// without is the middle of the round without one member: which of the middle values go depends only on its side.
func (g *Group) without(y float64) float64 {
	s, k := g.sorted, len(g.sorted)/2
	if len(s)%2 == 0 {
		if y <= s[k-1] {
			return s[k]
		}
		return s[k-1]
	}
	switch {
	case y < s[k]:
		return (s[k] + s[k+1]) / 2
	case y > s[k]:
		return (s[k-1] + s[k]) / 2
	}
	return (s[k-1] + s[k+1]) / 2
}

// spread is the role's: 1.4826 times the middle distance from the middle. The values are sorted, so their distances grow to both
// sides and are met in order by walking outwards.
func (g *Group) spread() float64 {
	s := g.sorted
	mid := (s[(len(s)-1)/2] + s[len(s)/2]) / 2
	lo, hi := (len(s)-1)/2, (len(s)-1)/2+1
	d := 0.0
	for range len(s)/2 + 1 {
		if hi >= len(s) || lo >= 0 && mid-s[lo] <= s[hi]-mid {
			d = mid - s[lo]
			lo--
		} else {
			d = s[hi] - mid
			hi++
		}
	}
	return 1.4826 * math.Abs(d)
}

// residuals gives each member its distance from the peers beyond its own offset, and counts those that changed. As many slow
// members pull the middle up, the middle is taken again without those that stand out.
func (g *Group) residuals(t int64, spread float64) (changed int) {
	base := 0.0
	for pass := range 2 {
		changed = 0
		for i := range g.m {
			m := &g.m[i]
			if math.IsNaN(g.y[i]) {
				continue
			}
			m.ratio = g.y[i] - g.without(g.y[i]) - base
			if m.rounds < learnRounds {
				continue
			}
			m.z = (m.ratio - m.offset) / max(m.scale, scaleFloor)
			if m.z > openScales/2 && m.ratio-m.offset > openLeast/2 {
				changed++
			}
		}
		if pass == 1 || changed == 0 {
			break
		}
		base = g.shift()
	}
	return changed
}

// shift is how far the middle was pulled: the middle change of the members that lie in the lower half of changes.
func (g *Group) shift() float64 {
	g.dev = g.dev[:0]
	for i := range g.m {
		if m := &g.m[i]; !math.IsNaN(g.y[i]) && m.rounds >= learnRounds {
			g.dev = append(g.dev, m.ratio-m.offset)
		}
	}
	if len(g.dev) == 0 {
		return 0
	}
	slices.Sort(g.dev)
	return g.dev[len(g.dev)*3/10]
}

func (g *Group) jobEvent(t int64) {
	if g.jobSum++; g.jobSum == closeRounds && !g.job {
		g.job = true
		g.out = append(g.out, Finding{What: Job, Member: -1, Onset: t, Count: len(g.sorted)})
	}
}

func (g *Group) jobOver(t int64) {
	g.jobSum = 0
	if g.job {
		g.job = false
		g.out = append(g.out, Finding{What: Job, Member: -1, Ended: t, Count: len(g.sorted)})
	}
}

func (g *Group) finding(w What, i int, t int64, v float64) Finding {
	m := &g.m[i]
	ratio := m.ratio - m.offset
	if w == Imbalance {
		ratio = m.ratio
	}
	return Finding{What: w, Member: i, Onset: m.onset, Value: v, Peers: math.Exp(g.without(g.y[i])), Count: len(g.sorted) - 1, Ratio: math.Exp(ratio), Score: m.z}
}

func (g *Group) judge(t int64, v []float64, spread float64) {
	for i := range g.m {
		m := &g.m[i]
		if math.IsNaN(g.y[i]) {
			continue
		}
		g.static(t, i, v[i], spread)
		d := m.ratio - m.offset
		if m.rounds >= learnRounds {
			limit := max(openLeast, openScales*max(m.scale, spread/math.Sqrt2/staticSpread))
			x := d / limit
			if x > 0.5 {
				if m.sum == 0 {
					m.onset = t
				}
				m.sum += min(x, 2)
			} else {
				m.sum = max(0, m.sum-1)
			}
			sc := max(m.scale, max(scaleFloor, spread/math.Sqrt2/staticSpread))
			m.mean += meanRate * (max(-meanClip*sc, min(meanClip*sc, d)) - m.mean)
			long := m.mean >= max(meanLeast, meanScales*sc)
			if m.sum == 0 && m.mean < meanLeast/2 {
				m.onset = t
			}
			switch {
			case !m.open && (m.sum >= openSum && x > 0.5 || long):
				m.open, m.good = true, 0
				g.out = append(g.out, g.finding(Slow, i, t, v[i]))
			case m.open && x < 0.5 && m.mean < meanLeast/2:
				if m.good++; m.good >= closeRounds {
					f := g.finding(Slow, i, t, v[i])
					f.Ended, m.open, m.sum = t, false, 0
					g.out = append(g.out, f)
				}
			case m.open:
				m.good = 0
			}
			if m.open || x > 0.5 || m.mean > meanLeast/2 && d > meanLeast/2 {
				continue // what is judged slow is not learnt
			}
		}
		g.learn(m)
	}
}

// static is the once-only judgement of the start: a member that is slow from its first round has no normal of its own.
func (g *Group) static(t int64, i int, v, spread float64) {
	m := &g.m[i]
	if m.judged || g.rounds > staticRounds {
		return
	}
	if g.rounds == 1 {
		m.onset = t
	}
	if m.ratio > max(math.Log(staticRatio), staticSpread*spread) {
		m.high++
	}
	if m.high >= staticMost && !m.static {
		m.static, m.judged = true, true
		g.out = append(g.out, g.finding(Imbalance, i, t, v))
	}
}

func (g *Group) learn(m *member) {
	m.rounds++
	n := float64(m.rounds)
	a := max(1/n, learnRate)
	d := m.ratio - m.offset
	if m.rounds > learnRounds {
		d = max(-3*max(m.scale, scaleFloor), min(3*max(m.scale, scaleFloor), d))
	}
	m.offset += a * d
	if m.rounds > 1 {
		m.scale += max(1/(n-1), scaleRate) * (1.2533*math.Abs(d) - m.scale)
	}
}

// order numbers the suspects among the findings that open now: the largest score first.
func (g *Group) order() {
	if len(g.out) == 0 {
		return
	}
	slices.SortStableFunc(g.out, func(a, b Finding) int {
		switch {
		case a.Score > b.Score:
			return -1
		case a.Score < b.Score:
			return 1
		}
		return a.Member - b.Member
	})
	n := 0
	for i := range g.out {
		if f := &g.out[i]; f.Ended == 0 && (f.What == Slow || f.What == Imbalance) {
			n++
			f.Suspect = n
		}
	}
}
