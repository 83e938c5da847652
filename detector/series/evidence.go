package series

import "math"

// gather takes a residual into the evidence and the tail models.
func (e *Engine) gather(s *state, r, dt float32) {
	every := s.every // not dt: one long step is one piece of evidence
	s.fast += clampTo(every*(1/fastSeconds), 1.0/256, 1.0/fastLeast) * (r - s.fast)
	s.slow += clampTo(every*(1/slowSeconds), 1.0/1024, 1.0/slowLeast) * (r - s.slow)
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
	if s.block >= blockLeast && float32(s.block)*every >= blockSeconds || s.block == math.MaxUint16 {
		e.closeBlock(s)
	}
}

// closeBlock lets the tail models learn from a block, and sets the thresholds anew.
func (e *Engine) closeBlock(s *state) {
	p := e.blockShare(s)
	most := float32(excessClip)
	if abs32(s.fast-s.slow) > leanLeast {
		most = 1
	}
	n := s.blocks + 1
	a, b := s.fastTail.close(n, p, most), s.slowTail.close(n, p, most)
	if (a || b) && n < math.MaxUint16 {
		s.blocks = n
	}
	s.block = 0
	e.relimit(s)
}

// blockShare is the asked share of blocks with an onset.
func (e *Engine) blockShare(s *state) float32 {
	return e.rate * max(blockLeast*s.every, blockSeconds)
}

// relimit sets the thresholds of both evidences: the floor or, above it, the series' own.
func (e *Engine) relimit(s *state) {
	every := float64(s.every)
	ff, fs := floorFast, floorSlow
	if s.is(flagSibling) {
		fs = floorSibling
	}
	if s.is(flagRatio) { // the mean of independent residuals of that scale stays below it but for one in millions
		noise := noiseScales * float64(s.scale[s.phase])
		if e.uncalibrated {
			ff, fs = 0, 0
		}
		ff = max(ff, noise*math.Sqrt(clampTo(every/fastSeconds, 1.0/256, 1.0/fastLeast)/2))
		fs = max(fs, noise*math.Sqrt(clampTo(every/slowSeconds, 1.0/1024, 1.0/slowLeast)/2))
	}
	far := 0.0
	if p := e.blockShare(s); p > 0 {
		far = max(0, ln(float64(tailShare/p)))
	}
	if e.uncalibrated {
		s.fastTail.per, s.slowTail.per = float32(1/max(ff, limitLeast)), float32(1/max(fs, limitLeast))
		return
	}
	s.fastTail.limit(s.blocks, float32(far), float32(ff*e.share))
	s.slowTail.limit(s.blocks, float32(far), float32(fs*e.share))
}
