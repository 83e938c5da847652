package series

import "math"

// shares are the weights of the newest residual in the fast and the slow evidence, for an interval in seconds.
func shares(every float32) (fast, slow float32) {
	if every >= slowSeconds/slowLeast { // both span their least samples
		return 1.0 / fastLeast, 1.0 / slowLeast
	}
	return clampTo(every*(1/fastSeconds), 1.0/256, 1.0/fastLeast), clampTo(every*(1/slowSeconds), 1.0/1024, 1.0/slowLeast)
}

// gather takes a residual into the evidence and the tail models.
func (e *Engine) gather(s *state, r, dt float32) {
	a, b := shares(s.every) // not dt: one long step is one piece of evidence
	s.fast += a * (r - s.fast)
	s.slow += b * (r - s.slow)
	if s.what != 0 {
		return
	}
	fast, slow := abs32(s.fast), abs32(s.slow)
	if fast <= onsetLeast || fast <= s.fastTail.q {
		s.lead = 0
	} else {
		s.lead += dt
	}
	s.fastTail.peak = larger(s.fastTail.peak, fast)
	s.slowTail.peak = larger(s.slowTail.peak, slow)
	s.block++
	if s.block >= blockLeast && float32(s.block)*s.every >= blockSeconds || s.block == math.MaxUint16 {
		e.closeBlock(s)
	}
}

// closeBlock lets the tail models learn from a block, and sets the thresholds anew.
func (e *Engine) closeBlock(s *state) {
	l := lesson{settled: s.blocks > tailBlocks, share: e.rate * blockLength(s.every), most: excessClip}
	if abs32(s.fast-s.slow) > leanLeast {
		l.most = 1
	}
	l.weigh(s.blocks + 1)
	a, b := s.fastTail.close(&l), s.slowTail.close(&l)
	if (a || b) && s.blocks < math.MaxUint16-1 {
		s.blocks++
	}
	s.block = 0
	e.relimit(s)
}

// blockLength is how many seconds a block of the tail models lasts.
func blockLength(every float32) float32 { return larger(blockLeast*every, blockSeconds) }

// relimit sets the thresholds of both evidences: the floor or, above it, the series' own.
func (e *Engine) relimit(s *state) {
	ff, fs := float32(floorFast), float32(floorSlow)
	if s.is(flagSibling) {
		fs = floorSibling
	}
	if s.is(flagRatio) { // the mean of independent residuals of that scale stays below it but for one in millions
		noise := noiseScales * s.scale[s.phase&(phases-1)]
		a, b := shares(s.every)
		if e.uncalibrated {
			ff, fs = 0, 0
		}
		ff = larger(ff, noise*root(a/2))
		fs = larger(fs, noise*root(b/2))
	}
	if e.uncalibrated {
		s.fastTail.per, s.slowTail.per = 1/max(ff, limitLeast), 1/max(fs, limitLeast)
		return
	}
	far := e.far - float32(ln(float64(blockLength(s.every))))
	if far < 0 {
		far = 0
	}
	few := 1 + 2/(float32(s.blocks)+1)
	s.fastTail.limit(s.blocks, few, far, ff*e.share)
	s.slowTail.limit(s.blocks, few, far, fs*e.share)
}

func root(x float32) float32 { return float32(math.Sqrt(float64(x))) }
