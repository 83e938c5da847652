package peers

import "math"

const (
	tailShare  = 0.1  // of blocks above q
	tailPrior  = 8    // blocks' weight of the prior of b …
	tailRatio  = 0.12 // … which is that part of q: normal noise of some tens of members
	tailBlocks = 4    // before a tail is believed
	tailAsked  = 1e-6 // false openings of a member by a window and round
	tailClip   = 3    // mean excesses that one block may teach
	tailStep   = 0.05 // of the quantile's tracker, at least
)

// tail is how far the foremost member of a healthy role gets, for windows of one length: rounds are cut into blocks of that
// length, q tracks the 0.9 quantile of the blocks' largest means and b the mean excess above it. Its exponential tail (extreme-value
// index 0) gives the threshold, whatever the distribution of the noise. Roles whose noise has long tails need it: their standard
// error says too little.
type tail struct {
	q, b, peak float64
	rounds     int
	blocks     int
}

// add takes in the largest mean of a round.
func (t *tail) add(mean float64, block int) {
	t.peak = max(t.peak, mean)
	if t.rounds++; t.rounds < block {
		return
	}
	m := t.peak
	t.peak, t.rounds = 0, 0
	t.blocks++
	n := float64(t.blocks)
	if t.blocks <= tailBlocks {
		t.q += (m - t.q) / n
		t.b = tailRatio * t.q
		return
	}
	step := max(2/n, tailStep) * max(t.b, tailStep*t.q)
	if m > t.q {
		e := min(m-t.q, tailClip*t.b)
		t.b += max(1/(tailShare*n+tailPrior), learnRate) * (e - t.b)
		t.q += min(2*step*(1-tailShare), m-t.q)
	} else {
		t.q -= min(2*step*tailShare, t.q-m)
	}
}

// episode lets a member teach how far it got, once it is back among the others: a fault must not raise the threshold that it has to
// pass.
func (n *noise) episode(of *standing) {
	for k, p := range of.peak {
		n.tail[k].peak = max(n.tail[k].peak, p)
	}
	of.peak = [windows]float64{}
}

// threshold of a mean in a role of so many members, with blocks of so many rounds; 0 before it is known.
func (t *tail) threshold(members, block int) float64 {
	if t.blocks < tailBlocks {
		return 0
	}
	return t.q + t.b*math.Log(max(1, tailShare/(tailAsked*float64(members*block))))
}
