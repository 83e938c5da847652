package peers

import (
	"math"
)

const (
	ownMost  = 32 // rounds of its own that a member's noise is worth at most …
	ownPrior = 16 // … against so many of the role
	offsetN  = 63 // rounds that an offset of rate 1/32 is worth
	clipMost = 4  // scales of the role that one round counts at most …
	clipLow  = 0.4
	clipHigh = 5 // … and what it counts at most, whatever they are: so that a window's sum has 32 bits
)

// noise is what the healthy members of a role show.
type noise struct {
	scale  float64 // of a distance
	learnt int     // rounds behind it
	mean   [windows]float64
	rounds [windows]int
	tail   [windows]tail
	doubt  float64 // variance of an offset, for having been seen in few rounds
	share  float64 // of an offset that is believed
}

// trust is how far an offset is believed: few rounds under much noise say little, so it is drawn towards none by the share that chance
// has in it (James and Stein), unless it stands out by itself.
type trust struct{ far, chance fixed }

func (n *noise) trust() trust {
	return trust{fix(3*math.Sqrt(n.doubt)) << finer, fix(1 - n.share)}
}

// rest is what of an offset is not believed.
func (t *trust) rest(offset fixed) (rest fixed) {
	if offset.magnitude() < t.far {
		rest = offset >> finer * t.chance >> unitBits
	}
	return rest
}

// variance of the mean of a member's distances over a window.
func (n *noise) variance(m *member, k int) float64 {
	own := float64(min(m.rounds, ownMost))
	scale := m.scale.learnt()
	s := (own*scale*scale + ownPrior*n.scale*n.scale) / (own + ownPrior)
	s = max(s, scaleFloor*scaleFloor)
	l := float64(lengths[k])
	of := s / l
	if n.rounds[k] > 0 && n.scale > 0 { // rounds that depend on each other make means of more noise
		of *= max(1, n.mean[k]*n.mean[k]*l/max(n.scale*n.scale, scaleFloor*scaleFloor))
	}
	return of + n.doubt*n.share
}

// gather adds the round to each member's evidence. It says whether any member stands out in any window against the middle of all,
// half as much as opens a finding: the middle of few rounds can be pulled up by the slow, never down, so nothing is missed but for
// a while.
func (g *Group) gather() (triggered bool) {
	n, now, full := &g.noise, g.runs.back(0), [windows]int{}
	var before [windows][]int32
	for k, l := range lengths {
		before[k], full[k] = g.runs.back(l), len(g.m)
	}
	if g.marked {
		triggered = g.leaveOut(&before, &full)
	}
	far := false
	for k, row := range before {
		far = n.take(k, full[k], tally(now, row), g.apart) || far
	}
	for i := 0; far && !triggered && i < len(g.m); i++ {
		for k := range windows {
			triggered = triggered || n.standsOut(&g.m[i], k, fixed(now[i]-before[k][i]))
		}
	}
	return triggered
}

// limit is what one round counts at most.
func (n *noise) limit() fixed { return fix(min(max(clipMost*n.scale, clipLow), clipHigh)) }

// leaveOut makes copies of the rows before, in which there is nothing between then and now for members that are not heard, suspects, and
// windows that are not full. It says whether there are suspects.
func (g *Group) leaveOut(before *[windows][]int32, full *[windows]int) (suspects bool) {
	now := g.runs.back(0)
	for k, l := range lengths {
		copy(g.before[k], before[k])
		before[k] = g.before[k]
		for i := range g.m {
			m, of := &g.m[i], &g.of[i]
			switch {
			case m.marks&unheard != 0:
			case m.marks&suspect != 0:
				suspects = true
				of.peak[k] = max(of.peak[k], g.runs.mean(i, k))
			case int(m.heard) >= l:
				continue
			}
			full[k]--
			before[k][i] = now[i]
		}
	}
	return suspects
}

// tallied are the sums of all members over windows of one length.
type tallied struct {
	magnitudes  fixed // together
	most, least int32 // 0 at least, 0 at most
}

// tally takes the sums from one row to a later one. This and the loops of distances and learnSettled are a quiet round's time: they call
// nothing, hold little at once, and take no branch that depends on a value.
//
//go:noinline
func tally(now, before []int32) (t tallied) {
	before = before[:len(now)]
	for i, x := range now {
		x -= before[i]
		t.most, t.least = max(t.most, x), min(t.least, x)
		sign := x >> 31
		t.magnitudes += fixed(uint32(x^sign) - uint32(sign))
	}
	return t
}

// take learns what the means of so many members show, unless the role is apart, and says whether one is far enough to be looked at.
func (n *noise) take(k, full int, all tallied, apart bool) (far bool) {
	l := float64(lengths[k])
	if full > 0 && !apart {
		n.rounds[k]++
		n.mean[k] += rate(n.rounds[k]) * (1.2533*all.magnitudes.float()/(l*float64(full)) - n.mean[k])
		n.tail[k].add(fixed(all.most).float()/l, lengths[k])
	}
	return fixed(max(all.most, -all.least)).float() >= floors[k]/2*l
}

// standsOut says whether a member's mean over a window is half of what opens a finding.
func (n *noise) standsOut(m *member, k int, sum fixed) bool {
	mean := sum.float() / float64(lengths[k])
	return math.Abs(mean) >= floors[k]/2 && mean*mean > suspectScore*suspectScore/4*n.variance(m, k)
}

// clip keeps x within limit of zero.
func clip(x, limit float64) float64 {
	if x > limit {
		return limit
	}
	if x < -limit {
		return -limit
	}
	return x
}

// rate of the nth value of a mean that forgets.
func rate(n int) float64 {
	if n >= 1/learnRate {
		return learnRate
	}
	return 1 / float64(n)
}

// part of x is that of the rate.
func part(x fixed, n int) fixed {
	if n >= 1/learnRate {
		return x >> slowest
	}
	return x / fixed(n)
}

// learn takes the round into the offsets and the noise; what is judged slow is not learnt, and nothing while much of the role is
// apart.
func (g *Group) learn() {
	n, wide := &g.noise, g.noise.limit()
	if g.load.given {
		g.learnLoads()
	}
	var l learning
	if !g.apart {
		l = g.learnSettled(wide)
	}
	settled, rounds := l.members, offsetN
	if settled < len(g.m) {
		rounds = g.learnOthers(wide, &l)
	}
	if settled > 0 {
		rounds = offsetN
	}
	if l.members == 0 {
		return
	}
	members := float64(l.members)
	if n.learnt++; n.learnt > 1 { // in the first round the distances are the offsets
		n.scale += rate(n.learnt-1) * (1.2533*l.magnitudes.float()/members - n.scale)
	}
	n.doubt = n.scale * n.scale / float64(rounds)
	between := max(0, l.squares/(precise*precise)/members-n.doubt)
	n.share = between / max(between+n.doubt, 1e-12)
}

// learning is what a round gives the role.
type learning struct {
	members    int
	magnitudes fixed   // of their distances
	squares    float64 // of their offsets
}

// What a member learns, its offset and scale, is in whole numbers.
const (
	deviation  = 82136       // 1.2533 · 2¹⁶: the scale of a normal distance is so many times its mean magnitude
	leastScale = 10995116278 // scaleFloor, with the finer bits
	slowest    = 5           // 2⁻⁵ is learnRate
)

// learnSettled is learnMember for all without a mark.
func (g *Group) learnSettled(wide fixed) (l learning) {
	members := g.m
	for i := range members {
		m := &members[i]
		if m.marks != 0 {
			continue
		}
		d := m.d - m.rest
		sign := d >> 63
		far := min((d^sign)-sign, 3*max(m.scale, leastScale)>>finer)
		m.scale += (far*deviation - m.scale) >> slowest
		m.offset += ((far ^ sign) - sign) << (finer - slowest)
		l.squares += float64(m.offset) * float64(m.offset)
		l.magnitudes += min(m.d.magnitude(), wide)
		l.members++
	}
	return l
}

// learnOthers is for those with a mark. It gives the rounds behind the longest known of them.
func (g *Group) learnOthers(wide fixed, l *learning) (rounds int) {
	for i := range g.m {
		m := &g.m[i]
		if m.marks&young == 0 || m.marks&(none|blind|suspect) != 0 || g.apart && m.marks&fresh == 0 {
			continue
		}
		m.learn(wide)
		l.squares += float64(m.offset) * float64(m.offset)
		l.magnitudes += min(m.d.magnitude(), wide)
		l.members++
		rounds = max(rounds, int(m.rounds))
	}
	return rounds
}

// learn moves the offset by the distance beyond it as it was measured.
func (m *member) learn(wide fixed) {
	limit := wide
	if m.marks&fresh == 0 {
		limit = 3 * max(m.scale, leastScale) >> finer
	}
	d := (m.d - m.rest).clip(limit)
	if m.rounds > 0 {
		m.scale += part(d.magnitude()*deviation-m.scale, int(m.rounds))
	}
	m.rounds = min(m.rounds+1, offsetN)
	m.offset += part(d<<finer, int(m.rounds))
	m.marks = m.marks&^(fresh|young) | m.age()
}

// age is the mark of the rounds behind a member.
func (m *member) age() marks {
	switch {
	case m.rounds < learnRounds:
		return fresh | young
	case m.rounds < offsetN || m.heard < history:
		return young
	}
	return 0
}
