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

// lesson is what the tails of one series learn a block by.
type lesson struct {
	blocks  float32 // with this one
	few     bool    // no more than tailBlocks
	settled bool
	share   float32 // asked, of blocks with an onset
	most    float32 // mean excesses that the block may teach
	q, b    float32 // weights of the block in the quantile and the mean excess
}

// weigh sets the weights of the block: those of a mean at first, then those of a memory of some tens of blocks.
func (l *lesson) weigh(blocks uint16) {
	l.blocks, l.few = float32(blocks), blocks <= tailBlocks
	l.q, l.b = 0.05, 0.02
	if blocks < 420 { // 1/(tailShare·420+tailPrior) is 0.02
		l.q, l.b = max(l.q, 2/l.blocks), 1/(tailShare*l.blocks+tailPrior)
	}
}

// close ends a block.
func (t *tail) close(l *lesson) (taught bool) {
	m, over := t.record(t.peak, l)
	t.peak = 0
	if !over {
		return false
	}
	if l.few {
		t.q += (m - t.q) / l.blocks
		t.b = tailPriorShare * t.q
		return true
	}
	step := l.q * larger(t.b, 0.05*t.q)
	if m > t.q {
		e := min(m-t.q, l.most*larger(t.b, 1e-4))
		t.b += l.b * (e - t.b)
		t.q += min(step*(1-tailShare)*2, m-t.q)
	} else {
		t.q -= min(step*tailShare*2, t.q-m)
	}
	return true
}

// record keeps the largest evidence of episodes that are over, and gives what the block teaches: an episode teaches once, when
// it is over. One that lasts teaches nothing yet: a drift must not raise the threshold that it has to pass.
func (t *tail) record(m float32, l *lesson) (teach float32, over bool) {
	t.rec -= t.b * l.share
	t.pend = larger(t.pend, m)
	if l.settled && m > larger(t.q+2*t.b, 0.6*t.pend) {
		return 0, false
	}
	m = t.pend
	if most := min(m, recordMost); most > t.rec {
		t.rec = most
	}
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
func (t *tail) limit(blocks uint16, few, far, floor float32) {
	h := t.q*few + t.b*far
	if r := t.rec * recordMargin; r > h {
		h = r
	}
	if floor < limitLeast {
		floor = limitLeast
	}
	if blocks < tailBlocks {
		h = max(h, 2*floor, limitEarly)
	}
	t.per = 1 / larger(h, floor)
}

const (
	limitEarly = 0.12
	limitLeast = 1e-6
)
