package peers

import (
	"math"
	"slices"
)

const (
	history  = 32 // rounds that are remembered, a power of two
	windows  = 4
	ownMost  = 32 // rounds of its own that a member's noise is worth at most …
	ownPrior = 16 // … against so many of the role
	offsetN  = 63 // rounds that an offset of rate 1/32 is worth
	clipMost = 4  // scales of the role that one round counts at most …
	clipLow  = 0.4
	resum    = 1 << 12 // rounds after which sums are taken anew, so that they keep no rest of what came and went
)

// lengths of the windows over which the evidence of a member is summed: the short ones are for large faults, the long ones for
// small faults under much noise.
var (
	lengths = [windows]int{3, 6, 12, 24}
	shares  = [windows]float64{1. / 3, 1. / 6, 1. / 12, 1. / 24}
)

// window is a member's last distances and their sums.
type window struct {
	n    int // rounds, of which the last are kept
	sum  [windows]float64
	last [history]float32
}

func (w *window) add(d float64) {
	x := float32(d)
	n := uint(w.n)
	if w.n >= history {
		w.sum[0] += float64(x) - float64(w.last[(n-3)%history])
		w.sum[1] += float64(x) - float64(w.last[(n-6)%history])
		w.sum[2] += float64(x) - float64(w.last[(n-12)%history])
		w.sum[3] += float64(x) - float64(w.last[(n-24)%history])
	} else {
		for k, l := range lengths {
			w.sum[k] += float64(x)
			if w.n >= l {
				w.sum[k] -= w.back(l - 1)
			}
		}
	}
	w.last[n%history] = x
	w.n++
	if w.n == resum {
		w.n = history
		for k, l := range lengths {
			w.sum[k] = 0
			for i := range l {
				w.sum[k] += w.back(i)
			}
		}
	}
}

// back is the distance of so many rounds ago.
func (w *window) back(i int) float64 { return float64(w.last[uint(w.n-1-i)%history]) }

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

// believed is a member's constant distance as far as it is believed: few rounds under much noise say little, so it is drawn
// towards none by the share that chance has in it (James and Stein), unless it stands out by itself.
func (n *noise) believed(m *member) float64 {
	if m.offset*m.offset < 9*n.doubt {
		return m.offset * n.share
	}
	return m.offset
}

// variance of the mean of a member's distances over a window.
func (n *noise) variance(m *member, k int) float64 {
	own := float64(min(m.rounds, ownMost))
	s := (own*m.scale*m.scale + ownPrior*n.scale*n.scale) / (own + ownPrior)
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
	n := &g.noise
	limit := max(clipMost*n.scale, clipLow)
	lowest, s := slices.Min(floors[:])/2, shares
	var means, full, most [windows]float64
	all := 0.0
	for i := range g.m {
		m := &g.m[i]
		if math.IsNaN(m.y) || m.blind || m.rounds < learnRounds {
			continue
		}
		w := &m.window
		w.add(clip(m.d, limit))
		apart := m.suspect || m.open
		triggered = triggered || apart
		m.suspect = false
		// What is in a window that is not full yet is taken as less than it is. No loops: this is most of a quiet round's time.
		a, b, c, d := w.sum[0]*s[0], w.sum[1]*s[1], w.sum[2]*s[2], w.sum[3]*s[3]
		if math.Abs(a) >= lowest || math.Abs(b) >= lowest || math.Abs(c) >= lowest || math.Abs(d) >= lowest {
			for k, mean := range [windows]float64{a, b, c, d} {
				triggered = triggered || math.Abs(mean) >= floors[k]/2 && mean*mean > suspectScore*suspectScore/4*n.variance(m, k)
			}
		}
		switch {
		case apart:
			for k, mean := range [windows]float64{a, b, c, d} {
				m.peak[k] = max(m.peak[k], mean)
			}
			continue
		case w.n >= history:
			means[0] += math.Abs(a)
			means[1] += math.Abs(b)
			means[2] += math.Abs(c)
			means[3] += math.Abs(d)
			all++
		default:
			for k, mean := range [windows]float64{a, b, c, d} {
				if w.n >= lengths[k] {
					means[k] += math.Abs(mean)
					full[k]++
				}
			}
		}
		if a > most[0] {
			most[0] = a
		}
		if b > most[1] {
			most[1] = b
		}
		if c > most[2] {
			most[2] = c
		}
		if d > most[3] {
			most[3] = d
		}
	}
	for k := range lengths {
		if full[k] += all; full[k] > 0 && !g.apart {
			n.rounds[k]++
			n.mean[k] += rate(n.rounds[k]) * (1.2533*means[k]/full[k] - n.mean[k])
			n.tail[k].add(most[k], lengths[k])
		}
	}
	return triggered
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

// learn takes the round into the offsets and the noise; what is judged slow is not learnt, and nothing while much of the role is
// apart.
func (g *Group) learn() {
	n := &g.noise
	sum, squares, members, rounds := 0.0, 0.0, 0, 0
	wide := max(clipMost*n.scale, clipLow)
	for i := range g.m {
		m := &g.m[i]
		if math.IsNaN(m.y) || m.blind || m.suspect || m.open || g.apart && m.rounds >= learnRounds {
			continue
		}
		if g.load.given {
			g.load.learn(g.load.x[i], m.d+m.explained)
		}
		limit := wide
		if m.rounds >= learnRounds {
			if limit = 3 * m.scale; limit < 3*scaleFloor {
				limit = 3 * scaleFloor
			}
		}
		d := clip(m.d+m.believed-m.offset, limit) // beyond the offset as it was measured
		if m.rounds > 0 {
			m.scale += rate(m.rounds) * (1.2533*math.Abs(d) - m.scale)
		}
		m.rounds++
		m.offset += rate(m.rounds) * d
		sum += math.Abs(clip(m.d, wide))
		squares += m.offset * m.offset
		members++
		rounds = max(rounds, m.rounds)
	}
	if members == 0 {
		return
	}
	if n.learnt++; n.learnt > 1 { // in the first round the distances are the offsets
		n.scale += rate(n.learnt-1) * (1.2533*sum/float64(members) - n.scale)
	}
	n.doubt = n.scale * n.scale / float64(min(rounds, offsetN))
	between := max(0, squares/float64(members)-n.doubt)
	n.share = between / max(between+n.doubt, 1e-12)
}
