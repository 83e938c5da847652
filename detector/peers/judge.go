package peers

import (
	"math"
	"slices"
)

const (
	suspectScore = 2.5 // standard errors that keep a member from being learnt, and count it as changed
	newNormal    = 128 // rounds without a measure, after which what is there is learnt
	lowerPart    = 0.3 // of the means, from which the middle is taken when members stand out
	longTimes    = 3   // job: rounds that most of a role must be up …
	levelRounds  = 30  // … and after which its level is the new one
	levelLeast   = 0.12
	levelScales  = 6
)

// floors of the mean over each window: what is less is nobody's business, however certain.
var floors = [windows]float64{0.15, 0.14, 0.13, 0.12}

// openScores are the standard errors of a mean that open a finding: the noise of real roles is skewed upwards, which means over
// few rounds show most.
var openScores = [windows]float64{7, 6, 5, 5}

// judging is the scratch space of judge.
type judging struct {
	base   [windows]float64
	sorted []float64
}

// bases gives, for each window, how far many slow members pulled the middle up: where the lower part of the members lies, beyond
// what chance puts there.
func (g *Group) bases() {
	j := &g.judging
	for k, l := range lengths {
		j.base[k] = 0
		j.sorted = j.sorted[:0]
		variance := 0.0
		for i := range g.m {
			if m := &g.m[i]; m.marks&none == 0 && int(m.heard) >= l {
				j.sorted = append(j.sorted, g.runs.mean(i, k))
				variance += g.noise.variance(m, k)
			}
		}
		n := len(j.sorted)
		if n < least {
			continue
		}
		slices.Sort(j.sorted)
		at := int(lowerPart * float64(n))
		p := (float64(at) + 0.5) / float64(n)
		j.base[k] = min(0, j.sorted[at]-math.Sqrt2*math.Erfinv(2*p-1)*math.Sqrt(variance/float64(n)))
	}
}

// evidence is a member's largest score, and the change and window that have it.
type evidence struct {
	score, change float64
	window        int
	opens         bool
}

func (g *Group) evidence(i int) (e evidence) {
	m := &g.m[i]
	e.window = -1
	for k, l := range lengths {
		if int(m.heard) < l {
			continue
		}
		change := g.runs.mean(i, k) - g.judging.base[k]
		score := change / math.Sqrt(g.noise.variance(m, k))
		if change < floors[k]/2 || score <= e.score {
			continue
		}
		e.score, e.change, e.window = score, change, k
		if change >= max(floors[k], g.noise.tail[k].threshold(len(g.m), l)) && score >= openScores[k] {
			e.opens = true
		}
	}
	return e
}

// judge opens and ends findings. It says whether so many members changed that the peers are no measure.
func (g *Group) judge(t int64, v []float64, have int, job bool) (abstains bool) {
	g.bases()
	changed := 0
	for i := range g.m {
		m, of := &g.m[i], &g.of[i]
		if m.marks&none != 0 {
			continue
		}
		e := g.evidence(i)
		if e.score < suspectScore {
			g.noise.episode(of)
		}
		m.marks &^= suspect
		if e.score >= suspectScore || of.open {
			m.marks |= suspect
			changed++
		}
	}
	abstains = float64(changed) > abstainFrom*float64(have)
	for i := range g.m {
		m, of := &g.m[i], &g.of[i]
		if m.marks&none != 0 {
			continue
		}
		e := g.evidence(i)
		switch {
		case m.marks&blind != 0:
		case of.open:
			g.ending(t, i, v[i], have)
		case e.opens && !job && !abstains:
			of.open, of.good, of.opened = true, 0, e.change
			of.onset = g.onset(i, e)
			g.open++
			of.peak = [windows]float64{}
			g.out = append(g.out, g.slow(i, v[i], have, e.change, e.score))
		}
	}
	return abstains
}

// onset is the round from which on the sum of what exceeds half of the change is largest: the likeliest start of a step of that
// height.
func (g *Group) onset(i int, e evidence) int64 {
	sum, best, at := 0.0, math.Inf(-1), 0
	for ago := range min(int(g.m[i].heard), history-1, g.rounds) {
		sum += g.runs.distance(i, ago) - g.judging.base[e.window] - e.change/2
		if sum > best {
			best, at = sum, ago
		}
	}
	return g.times[(g.rounds-at)%history]
}

func (g *Group) ending(t int64, i int, v float64, have int) {
	m, of := &g.m[i], &g.of[i]
	now := g.runs.mean(i, 0) - g.judging.base[0]
	if now >= of.opened/2 {
		of.good = 0
		return
	}
	if of.good++; of.good < closeRounds {
		return
	}
	of.open = false
	m.marks, m.heard = m.marks&^suspect|young, 0
	g.open--
	f := g.slow(i, v, have, now, now/math.Sqrt(g.noise.variance(m, 0)))
	f.Ended = t
	g.runs.begin(i) // what ended is no evidence of the next
	g.out = append(g.out, f)
}

func (g *Group) slow(i int, v float64, have int, change, score float64) Finding {
	m, of := &g.m[i], &g.of[i]
	return Finding{What: Slow, Member: i, Onset: of.onset, Value: v, Peers: math.Exp((g.y[i] - m.d - m.offset>>finer + m.rest - of.explained).float()), Count: have - 1, Ratio: math.Exp(change), Score: score}
}

// level is the role's own: when most of it moves, no member does so against the others.
type level struct {
	mean, scale float64
	rounds      int
	up          int
	since       int64
	open        bool
}

func (l *level) forget() {
	if !l.open {
		*l = level{scale: l.scale}
	} else {
		l.rounds, l.up = 0, 0
	}
}

// judge says whether most of the role is above its level, and tells when that has lasted.
func (l *level) judge(g *Group, t int64) bool {
	now := g.middle.mid.float()
	up := false
	if l.rounds >= learnRounds {
		rise := now - l.mean
		if rise > max(levelLeast, levelScales*l.scale) {
			with := 0
			n := 0
			for i := range g.m {
				if m := &g.m[i]; m.marks&none == 0 {
					n++
					if m.d.float()+rise > rise/2 {
						with++
					}
				}
			}
			up = float64(with) > jobFrom*float64(n)
		}
	}
	switch {
	case up:
		if l.up++; l.up == 1 && !l.open {
			l.since = t
		}
		if l.up == longTimes && !l.open {
			l.open = true
			g.out = append(g.out, l.finding(g, 0))
		}
		if l.up >= levelRounds {
			f := l.finding(g, t)
			l.open, l.rounds, l.up = false, 0, 0
			g.out = append(g.out, f)
		}
	default:
		l.up = 0
		if l.open {
			l.open = false
			g.out = append(g.out, l.finding(g, t))
		}
	}
	if !up {
		l.rounds++
		d := now - l.mean
		if l.rounds > learnRounds {
			d = clip(d, 3*max(l.scale, scaleFloor))
		}
		l.mean += rate(l.rounds) * d
		if l.rounds > 1 {
			l.scale += rate(l.rounds-1) * (1.2533*math.Abs(d) - l.scale)
		}
	}
	return up || l.open
}

func (l *level) finding(g *Group, ended int64) Finding {
	mid := g.middle.mid.float()
	return Finding{What: Job, Member: -1, Onset: l.since, Ended: ended, Value: math.Exp(mid), Count: len(g.m), Ratio: math.Exp(mid - l.mean)}
}
