package series

import "math"

// tail turns an asked rate into a threshold for one evidence. Time is cut into blocks; the largest evidence of a block feeds a
// quantile tracker (conformal: whatever the distribution, a tenth of the blocks lie above it) and the mean excess above it, whose
// exponential tail (extreme-value index 0) carries the threshold beyond what was seen.
type tail struct {
	q, b float32 // the 0.9 quantile of block maxima, mean excess over it
	peak float32 // of the running block
	h    float32 // threshold for the asked rate
	rec  float32 // record of episodes that ended; falls by b·p a block, so that a share p of blocks exceeds it
	pend float32 // largest of the running episode
}

const (
	tailShare  = 0.1 // of blocks above q
	tailPrior  = 8   // blocks' weight of the prior of b
	tailBlocks = 4   // before the threshold is the series' own
	excessClip = 3   // mean excesses that one block may teach
)

// close ends a block. blocks counts those so far, most is the mean excesses that it may teach, p the asked share of blocks with an onset.
func (t *tail) close(blocks uint16, p, most float64) (taught bool) {
	m := float64(t.peak)
	t.peak = 0
	m, over := t.record(m, p, blocks > tailBlocks+1)
	if !over {
		return false
	}
	q, b := float64(t.q), float64(t.b)
	n := float64(blocks)
	if blocks <= tailBlocks {
		q += (m - q) / n
		b = tailPriorShare * q
	} else {
		step := max(2/n, 0.05) * max(b, 0.05*q)
		if m > q {
			e := min(m-q, most*max(b, 1e-4))
			b += max(1/(tailShare*n+tailPrior), 0.02) * (e - b)
			q += min(step*(1-tailShare)*2, m-q)
		} else {
			q -= min(step*tailShare*2, q-m)
		}
	}
	t.q, t.b = float32(q), float32(b)
	t.threshold(blocks, p)
	return true
}

// record keeps the largest evidence of episodes that are over, and gives what the block teaches: an episode teaches once, when
// it is over. One that lasts teaches nothing yet: a drift must not raise the threshold that it has to pass.
func (t *tail) record(m, p float64, settled bool) (teach float64, over bool) {
	t.rec -= t.b * float32(p)
	t.pend = max(t.pend, float32(m))
	if settled && m > max(float64(t.q+2*t.b), 0.6*float64(t.pend)) {
		return 0, false
	}
	m = float64(t.pend)
	t.rec = max(t.rec, min(t.pend, recordMost))
	t.pend = 0
	return m, true
}

// recordMost is the largest evidence that is ever taken for usual: a practical fault stays one however often it comes.
const (
	recordMost   = 0.12
	recordMargin = 1.02
)

// tailPriorShare of the first block's maximum is what a healthy series' excesses are before they are known.
const tailPriorShare = 0.35

func (t *tail) threshold(blocks uint16, p float64) {
	early := 1 + 2/(float64(blocks)+1) // a quantile of few blocks is low
	t.h = max(t.rec*recordMargin, float32(float64(t.q)*early+float64(t.b)*math.Log(max(1, tailShare/p))))
}
