package series

// tail turns an asked rate into a threshold for one evidence. Time is cut into blocks; the largest evidence of a block feeds a
// quantile tracker (conformal: whatever the distribution, a tenth of the blocks lie above it) and the mean excess above it, whose
// exponential tail (extreme-value index 0) carries the threshold beyond what was seen.
type tail struct {
	q, b float32 // the 0.9 quantile of block maxima, mean excess over it
	peak float32 // of the running block
	per  float32 // one over the threshold in force
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
func (t *tail) close(blocks uint16, p, most float32) (taught bool) {
	m, over := t.record(t.peak, p, blocks > tailBlocks+1)
	t.peak = 0
	if !over {
		return false
	}
	n := float32(blocks)
	if blocks <= tailBlocks {
		t.q += (m - t.q) / n
		t.b = tailPriorShare * t.q
		return true
	}
	step := max(2/n, 0.05) * max(t.b, 0.05*t.q)
	if m > t.q {
		e := min(m-t.q, most*max(t.b, 1e-4))
		t.b += max(1/(tailShare*n+tailPrior), 0.02) * (e - t.b)
		t.q += min(step*(1-tailShare)*2, m-t.q)
	} else {
		t.q -= min(step*tailShare*2, t.q-m)
	}
	return true
}

// record keeps the largest evidence of episodes that are over, and gives what the block teaches: an episode teaches once, when
// it is over. One that lasts teaches nothing yet: a drift must not raise the threshold that it has to pass.
func (t *tail) record(m, p float32, settled bool) (teach float32, over bool) {
	t.rec -= t.b * p
	t.pend = max(t.pend, m)
	if settled && m > max(t.q+2*t.b, 0.6*t.pend) {
		return 0, false
	}
	m = t.pend
	t.rec = max(t.rec, min(m, recordMost))
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

// limit sets the threshold: q + b·far, where far is ln(tailShare/p), or the record, or the floor. What has seen few blocks is not
// believed, and a quantile of few is low.
func (t *tail) limit(blocks uint16, far, floor float32) {
	h := max(t.rec*recordMargin, t.q*(1+2/(float32(blocks)+1))+t.b*far)
	if blocks < tailBlocks {
		h = max(h, max(2*floor, limitEarly))
	}
	t.per = 1 / max(h, max(floor, limitLeast))
}

const (
	limitEarly = 0.12
	limitLeast = 1e-6
)
