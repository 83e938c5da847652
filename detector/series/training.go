package series

import (
	"math"
	"slices"
)

// training judges a sample by the training profile. What most samples need is here and cheap; changes, openings and endings are
// in functions of their own.
func (e *Engine) training(id ID, s *state, x Sample, v, dt float64) Verdict {
	switch {
	case !s.is(flagHeld):
		s.set(flagHeld, true)
		s.until = e.hold
	case s.until > 0:
		s.until = max(0, s.until-float32(dt))
	}
	if x.Phase == Warmup {
		s.since = 0
		return e.unknown(s)
	}
	e.interval(s, dt)
	s.set(flagTold, x.Told)
	work := uint16(x.Workload) ^ uint16(x.Workload>>16)
	if x.Phase != s.phase || work != s.work || x.Ref > 0 != s.is(flagSibling) || dt > gapSeconds {
		e.changes(id, s, x, work, dt)
	}
	if s.since < math.MaxUint16 {
		s.since++
	}
	k := s.phase
	if s.n[k] == 0 && k == 0 && s.scale[0] == 0 {
		s.set(flagRatio, Kind(s.kind) == Ratio || Kind(s.kind) == Auto && v > 0)
	}
	y, ref, ok := s.transform(v, x.Ref)
	if !ok { // a value that no logarithm has, in a series of ratios: as far below as evidence goes
		y = float64(s.loc[k]) - 1
	}
	known := s.n[k] >= warmSamples
	if !known {
		warm := e.warm(s)
		if known = int(s.n[k]) >= warm; !known && (s.n[k] < ringSize || warm > relearn) {
			s.begin(k, y)
			e.relimit(s)
			return e.unknown(s)
		}
	}
	guard := s.since <= guardSibling && s.since <= s.guardFor() && s.since > 0
	if k == 0 && !guard {
		s.keep(y)
	}
	scale, unit := s.units(k, v)
	raw := y - float64(s.loc[k])
	if unit != 1 {
		raw /= unit
	}
	raw -= s.side()
	most := 4 * scale
	if most < clip {
		most = clip
	}
	r := clamp(raw, most)
	s.lean(raw)
	if s.n[k] < lateSamples && s.moved(k) {
		s.n[k], s.fast, s.slow, s.leaning = 0, 0, 0, 0
		return e.unknown(s)
	}
	if known && !guard {
		e.gather(s, r, dt)
	}
	out := Verdict{Known: known}
	if known {
		z := max(abs32(s.fast)*s.fastTail.per, abs32(s.slow)*s.slowTail.per) // without a branch: either is as likely
		out.Score = float64(z / (1 + z))
		s.shift(float32(r) * max(s.fastTail.per, s.slowTail.per))
		if s.what != 0 || z >= 1 || raw > stallLog || s.equal >= flatSamples {
			out.Score, out.Change = e.decide(id, s, k, x, v, ref, r, raw, dt, unit, guard, out.Score)
		}
	}
	if !guard && s.what == 0 {
		s.learn(k, r, scale, unit, dt)
	}
	if known {
		out.Alarm = s.what != 0
		if e.cfg.Bands {
			out.Expected, out.Lower, out.Upper = e.band(s, k, ref, unit)
		}
	} else {
		out = e.unknown(s)
	}
	s.flags ^= flagOdd
	return out
}

func (e *Engine) interval(s *state, dt float64) {
	if dt <= 0 {
		return
	}
	if s.every == 0 {
		s.every = float32(dt)
		return
	}
	s.every += float32(0.05 * clamp(dt-float64(s.every), float64(s.every)))
}

// changes takes in what is told: phase, workload, siblings; and silence.
func (e *Engine) changes(id ID, s *state, x Sample, work uint16, dt float64) {
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

// forget starts the baselines anew and keeps the scales: other work has another level and much the same noise.
func (s *state) forget() {
	s.n = [phases]uint16{}
	s.fast, s.slow, s.since, s.good = 0, 0, 0, 0
	s.equal, s.leaning, s.recent = 0, 0, 0
	s.set(flagAccept, false)
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

func (s *state) transform(v float64, r float32) (y, ref float64, ok bool) {
	if !s.is(flagRatio) {
		return clamp(v, farthest), 0, true
	}
	if v <= 0 {
		return 0, 0, false
	}
	y = ln(v)
	if r > 0 {
		ref = ln(float64(r))
		y -= ref
	}
	return y, ref, true
}

// guardFor is how long nothing is judged after a change; siblings change within some steps of each other.
func (s *state) guardFor() uint16 {
	if s.is(flagSibling) && s.is(flagWork) {
		return guardSibling
	}
	return guardSamples
}

// begin takes a value into a baseline that is not known yet. Phases other than the steps are too rare for the ring, which is theirs.
func (s *state) begin(k uint8, y float64) {
	s.n[k]++
	if k != 0 {
		d := y - float64(s.loc[k])
		if s.n[k] > 1 {
			s.scale[k] += float32((math.Abs(d) - float64(s.scale[k])) / float64(s.n[k]))
		}
		s.loc[k] += float32(d / float64(s.n[k]))
		return
	}
	s.keep(y)
	if s.n[k]%ringSize == 0 {
		s.start(k)
		s.carried(k)
	}
}

// keep puts a value into the ring; an even number of them holds as many odd as even steps.
func (s *state) keep(y float64) {
	s.ring[s.at&(ringSize-1)] = float32(y)
	s.at++
}

// side is how far the sample at hand lies above the baseline for being an odd or an even step.
func (s *state) side() float64 {
	if s.phase != 0 {
		return 0
	}
	return float64(s.par) * s.sign()
}

// sign is 1 at odd steps and -1 at even ones, without a branch to mispredict.
func (s *state) sign() float64 { return signs[s.flags/flagOdd&1] }

var signs = [2]float64{-1, 1}

// start sets a baseline from the ring: its median, and as scale the median distance.
func (s *state) start(k uint8) {
	r := s.ring
	s.par = 0
	slices.Sort(r[:])
	s.loc[k] = (r[ringSize/2-1] + r[ringSize/2]) / 2
	old := s.scale[k]
	for i, x := range r {
		r[i] = abs32(x - s.loc[k])
	}
	slices.Sort(r[:])
	s.scale[k] = r[ringSize/2] * 1.4826
	if old > 0 {
		s.scale[k] = min(max(s.scale[k], old/2), 2*old)
	}
}

// units gives the scale relative to the level and the unit of residuals in the space of the kind.
func (s *state) units(k uint8, v float64) (scale, unit float64) {
	sc := float64(s.scale[k])
	if s.is(flagRatio) {
		sc = max(sc, scaleFloor)
		if q := 0.3 * float64(s.quantum); q > sc*v && v > 0 {
			sc = max(sc, min(0.1, q/v))
		}
		return sc, 1
	}
	l := math.Abs(float64(s.loc[k]))
	unit = max(max(10*sc, l), math.SmallestNonzeroFloat32)
	return max(sc/unit, max(scaleFloor, min(0.1, 0.3*float64(s.quantum)/unit))), unit
}

func (s *state) unitOf(k uint8) float64 {
	_, u := s.units(k, 0)
	return u
}

// lean counts samples in a row that lie beyond leanEach on one side.
func (s *state) lean(r float64) {
	switch {
	case r > leanEach && s.leaning >= 0:
		s.leaning = min(s.leaning+1, 100)
	case r < -leanEach && s.leaning <= 0:
		s.leaning = max(s.leaning-1, -100)
	default:
		s.leaning = 0
	}
}

// lately is how far the middle of the last n values lies off the baseline.
func (s *state) lately(n int, k uint8) float64 {
	var last [ringSize]float32
	for i := range n {
		last[i] = s.ring[(int(s.at)-1-i)&(ringSize-1)]
	}
	slices.Sort(last[:n])
	return float64((last[(n-1)/2]+last[n/2])/2-s.loc[k]) / s.unitOf(k)
}

// displaced is how far the last values lie off the baseline: the middle of those in a row on one side, or of the ring.
func (s *state) displaced(k uint8) float32 {
	n := int(max(s.leaning, -s.leaning))
	if n < carryRow || n > ringSize {
		n = ringSize
	}
	d := s.lately(n, k)
	if s.what == 0 && math.Abs(d) < max(carryLeast, carryScales*float64(s.scale[k])/s.unitOf(k)) {
		return 0
	}
	return float32(clamp(d, carryMost))
}

// carried takes a fault that was there before a told change out of the new baseline: it lasts, as far as anyone knows. Where the
// level before the change is the level after it, there was no fault: the change was told some steps late.
func (s *state) carried(k uint8) {
	if s.recent != 0 && math.Abs(float64(s.loc[k]-s.old)/s.unitOf(k)-float64(s.recent)) > sameLevel {
		s.loc[k] -= float32(float64(s.recent) * s.unitOf(k))
	}
}

// moved says whether a baseline was learnt too early after a told change: at the old level, which the series then left.
func (s *state) moved(k uint8) bool {
	return s.is(flagTold) && s.what == 0 && s.old != 0 && s.n[k] >= ringSize && s.n[k] < lateSamples &&
		(s.leaning >= leanRow || s.leaning <= -leanRow) && math.Abs(float64(s.loc[k]-s.old)/s.unitOf(k)) < sameLevel
}

// gather takes a residual into the evidence and the tail models.
func (e *Engine) gather(s *state, r, dt float64) {
	every := float64(s.every) // not dt: one long step is one piece of evidence
	a := clampTo(every*(1/fastSeconds), 1.0/256, 1.0/fastLeast)
	b := clampTo(every*(1/slowSeconds), 1.0/1024, 1.0/slowLeast)
	s.fast += float32(a * (r - float64(s.fast)))
	s.slow += float32(b * (r - float64(s.slow)))
	if s.what != 0 {
		return
	}
	fast, slow := abs32(s.fast), abs32(s.slow)
	if fast <= onsetLeast || fast <= s.fastTail.q {
		s.lead = 0
	} else {
		s.lead += float32(dt)
	}
	s.fastTail.peak = max(s.fastTail.peak, fast)
	s.slowTail.peak = max(s.slowTail.peak, slow)
	s.block++
	if s.block >= blockLeast && float64(s.block)*every >= blockSeconds || s.block == math.MaxUint16 {
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

// learn moves the baseline. While the short evidence has left the long one it learns slowly: a fault must not become normal
// before it is found. A lean that lasts is a trend, and is followed.
func (s *state) learn(k uint8, r, scale, unit, dt float64) {
	n := float64(s.n[k])
	a := dt * (1 / baseSeconds)
	if s.is(flagSibling) {
		a = dt * (1 / baseSibling)
	}
	a = clampTo(a, 1.0/8192, 1.0/baseLeast)
	if a*(n+1) < 1 {
		a = 1 / (n + 1)
	}
	if s.n[k] < math.MaxUint16 {
		s.n[k]++
	}
	if abs32(s.fast-s.slow) > leanLeast && n > warmSamples || n < 100 && (s.leaning >= carryRow || s.leaning <= -carryRow) {
		a /= 8
	}
	c := clamp(r, huber*scale)
	s.loc[k] += float32(a * c * unit)
	if k == 0 {
		s.par += float32(a * c * s.sign())
	}
	m := math.Abs(r - float64(s.fast)) // about the short mean: a lagging baseline is not noise
	if most := huber * scale; m > most {
		m = most
	}
	if a < 0.01 {
		a = 0.01
	}
	s.scale[k] += float32(a * (meanToScale*m*unit - float64(s.scale[k])))
}

// meanToScale of the mean distance from the middle gives the standard deviation of normal noise.
const meanToScale = 1.2533

func clamp(x, c float64) float64 {
	if x > c {
		return c
	}
	if x < -c {
		return -c
	}
	return x
}

func clampTo(x, lo, hi float64) float64 {
	if x < lo {
		return lo
	}
	if x > hi {
		return hi
	}
	return x
}

func abs32(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ (1 << 31)) }
