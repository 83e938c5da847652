package series

import "math"

// training judges a sample by the training profile. What most samples need is here and cheap; changes, openings and endings are
// in functions of their own.
func (e *Engine) training(id ID, s *state, x *Sample, v, dt float64, out *Verdict) {
	d, work := float32(dt), uint16(x.Workload)^uint16(x.Workload>>16)
	usual := flagHeld
	if x.Told {
		usual |= flagTold
	}
	if x.Ref > 0 {
		usual |= flagSibling
	}
	if s.flags&(flagHeld|flagTold|flagSibling) == usual && x.Phase == s.phase && work == s.work && s.until <= 0 && d <= gapSeconds {
		s.interval(d)
	} else if !e.news(id, s, x, work, dt) {
		*out = e.unknown(s)
		return
	}
	guard := false
	if s.since <= guardSibling {
		s.since++
		guard = s.since <= s.guardFor()
	}
	k := s.phase & (phases - 1)
	n := s.n[k]
	if n == 0 && k == 0 && s.scale[0] == 0 {
		s.set(flagRatio, s.kind() == Ratio || s.kind() == Auto && v > 0)
	}
	y, ref := v, 0.0
	switch {
	case !s.is(flagRatio):
		y = clamp(v, farthest)
	case v < least: // a value that no logarithm has, in a series of ratios
		y = s.nothing()
	default:
		y = ln(v)
		if x.Ref > 0 {
			ref = ln(float64(x.Ref))
			y -= ref
		}
	}
	known := true
	if n < warmSamples {
		warm := e.warm(s)
		if known = int(n) >= warm; !known && (n < ringSize || warm > relearn) {
			s.begin(k, y)
			e.relimit(s)
			*out = e.unknown(s)
			return
		}
	}
	if k == 0 && !guard {
		s.keep(y)
	}
	raw, unit, scale := y-(float64(s.loc[k])+float64(s.side())), 1.0, float32(0)
	if s.is(flagRatio) {
		scale = s.relative(k, v)
	} else {
		scale, unit = s.units(k)
		raw = (y-float64(s.loc[k]))/unit - float64(s.side())
	}
	r := float32(raw)
	if abs32(r) > leanEach {
		s.lean(r)
		r = clamp(r, max(clip, 4*scale))
	} else {
		s.leaning = 0
	}
	if n < lateSamples && s.moved(k) {
		s.n[k], s.fast, s.slow, s.leaning = 0, 0, 0, 0
		*out = e.unknown(s)
		return
	}
	if known && !guard {
		e.gather(s, r, d)
	}
	if out.Known = known; known {
		z := larger(abs32(s.fast)*s.fastTail.per, abs32(s.slow)*s.slowTail.per)
		out.Score = float64(z / (1 + z))
		s.shift(r * larger(s.fastTail.per, s.slowTail.per))
		if s.what != 0 || z >= 1 || raw > stallLog || s.equal >= flatSamples {
			out.Score, out.Change = e.decide(id, s, k, x, v, ref, float64(r), raw, dt, unit, guard, out.Score)
		}
	}
	if !guard && s.what == 0 {
		s.learn(k, r, scale, float32(unit), d)
	}
	if known {
		out.Alarm = s.what != 0
		if e.cfg.Bands {
			out.Expected, out.Lower, out.Upper = e.band(s, k, ref, unit)
		}
	} else {
		*out = e.unknown(s)
	}
	s.flags ^= flagOdd
}

// interval learns the time between two samples; the first of a series has none.
func (s *state) interval(dt float32) {
	if s.every == 0 {
		s.every = max(0, dt) // times so far apart that their difference overflows have none
		return
	}
	s.every += 0.05 * clamp(dt-s.every, s.every)
}

// news takes in a sample that begins, ends or is told something; false: it is of the warm-up, and not judged.
func (e *Engine) news(id ID, s *state, x *Sample, work uint16, dt float64) bool {
	switch {
	case !s.is(flagHeld):
		s.set(flagHeld, true)
		s.until = e.hold
	case s.until > 0:
		s.until = max(0, s.until-float32(dt))
	}
	if x.Phase == Warmup {
		s.since = 0
		return false
	}
	s.interval(float32(dt))
	s.set(flagTold, x.Told)
	if x.Phase != s.phase || work != s.work || x.Ref > 0 != s.is(flagSibling) || dt > gapSeconds {
		e.changes(id, s, x, work, dt)
	}
	return true
}

// changes takes in what is told: phase, workload, siblings; and silence.
func (e *Engine) changes(id ID, s *state, x *Sample, work uint16, dt float64) {
	phase := x.Phase
	if phase >= phases {
		phase = phases - 1
	}
	if phase != s.phase {
		s.phase, s.since = phase, 0
		s.set(flagWork, false)
		s.equal = 0
	}
	sibling := x.Ref > 0
	switch {
	case x.Phase != 0: // only steps are aligned with siblings'
	case sibling != s.is(flagSibling):
		s.set(flagSibling, sibling)
		s.forget()
	case work != s.work && sibling: // the siblings changed at the same step
		s.since = 0
		s.set(flagWork, true)
	case work != s.work:
		carry, old := s.recent, s.old
		if s.n[0] >= ringSize { // else the last change is not learnt yet
			carry, old = s.displaced(0), s.loc[0]
		}
		s.forget()
		s.recent, s.old = carry, old
		if s.what != 0 {
			e.open[id].crossed = s.t
		}
	}
	if x.Phase == 0 {
		s.work = work
	}
	if dt > max(gapSeconds, gapIntervals*float64(s.every)) && s.n[s.phase] > ringSize {
		e.counts.Gaps++
		if s.what == 0 {
			s.fast, s.slow, s.since = 0, 0, 0
		}
	}
	e.relimit(s)
}

func (e *Engine) warm(s *state) int {
	if s.what != 0 { // nothing is learnt while a finding is open
		return ringSize
	}
	if s.is(flagTold) && s.scale[s.phase] > 0 && s.blocks >= 1 {
		return relearn
	}
	return warmSamples
}

// guardFor is how long nothing is judged after a change; siblings change within some steps of each other.
func (s *state) guardFor() uint16 {
	if s.is(flagSibling) && s.is(flagWork) {
		return guardSibling
	}
	return guardSamples
}

// lean counts samples in a row that lie beyond leanEach on one side, of which r is one.
func (s *state) lean(r float32) {
	switch {
	case r > 0 && s.leaning >= 0:
		s.leaning = min(s.leaning+1, 100)
	case r < 0 && s.leaning <= 0:
		s.leaning = max(s.leaning-1, -100)
	default:
		s.leaning = 0
	}
}

func clamp[F float32 | float64](x, c F) F {
	if x > c {
		return c
	}
	if x < -c {
		return -c
	}
	return x
}

func clampTo[F float32 | float64](x, lo, hi F) F {
	if x < lo {
		return lo
	}
	if x > hi {
		return hi
	}
	return x
}

func abs32(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ (1 << 31)) }

// larger of two numbers that are not negative: their bits are in their order. It has no branch to mispredict, and a third of the
// instructions of max, which has to look for minus zero.
func larger(a, b float32) float32 {
	return math.Float32frombits(max(math.Float32bits(a), math.Float32bits(b)))
}
