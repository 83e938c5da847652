package series

import (
	"math"
	"slices"
)

// training judges a sample by the training profile.
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
	e.changes(id, s, x, dt)
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
	if warm := e.warm(s); int(s.n[k]) < warm && (s.n[k] < ringSize || warm > relearn) {
		s.begin(k, y)
		return e.unknown(s)
	}
	guard := s.since <= s.guardFor() && s.since > 0
	if k == 0 && !guard {
		s.keep(y)
	}
	scale, unit := s.units(k, v)
	r := (y-float64(s.loc[k]))/unit - s.side()
	raw := r
	r = clamp(r, max(clip, 4*scale))
	known := int(s.n[k]) >= e.warm(s)
	s.lean(clamp(raw, carryMost))
	if s.moved(k) {
		s.n[k], s.fast, s.slow, s.leaning = 0, 0, 0, 0
		return e.unknown(s)
	}
	if !guard && known {
		e.gather(s, r, dt)
	}
	out := Verdict{Known: known}
	if known {
		e.decide(id, s, k, x, v, ref, r, raw, dt, unit, guard, &out)
	}
	if !guard && s.what == 0 {
		s.learn(k, r, scale, unit, dt)
	}
	if known {
		out.Alarm = s.what != 0
		if e.cfg.Bands {
			out = e.band(s, k, ref, unit, out)
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
	d := clamp(dt-float64(s.every), float64(s.every))
	s.every += float32(0.05 * d)
}

// changes takes in what is told: phase, workload, siblings; and silence.
func (e *Engine) changes(id ID, s *state, x Sample, dt float64) {
	phase := x.Phase
	if phase >= phases {
		phase = phases - 1
	}
	if phase != s.phase {
		s.phase, s.since = phase, 0
		s.set(flagWork, false)
		s.equal = 0
	}
	work := uint16(x.Workload) ^ uint16(x.Workload>>16)
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
		return v, 0, true
	}
	if v <= 0 {
		return 0, 0, false
	}
	y = math.Log(v)
	if r > 0 {
		ref = math.Log(float64(r))
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
	switch {
	case s.phase != 0:
		return 0
	case s.is(flagOdd):
		return float64(s.par)
	}
	return -float64(s.par)
}

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
		q := 0.0
		if v > 0 {
			q = min(0.1, 0.3*float64(s.quantum)/v)
		}
		return max(sc, max(scaleFloor, q)), 1
	}
	l := math.Abs(float64(s.loc[k]))
	unit = max(max(10*sc, l), math.SmallestNonzeroFloat32)
	return max(sc/unit, max(scaleFloor, min(0.1, 0.3*float64(s.quantum)/unit))), unit
}

func (s *state) unitOf(k uint8) float64 {
	_, u := s.units(k, math.Exp(float64(s.loc[k])))
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
	a := clampTo(every/fastSeconds, 1.0/256, 1.0/fastLeast)
	b := clampTo(every/slowSeconds, 1.0/1024, 1.0/slowLeast)
	s.fast += float32(a * (r - float64(s.fast)))
	s.slow += float32(b * (r - float64(s.slow)))
	if s.what != 0 {
		return
	}
	s.lead += float32(dt)
	if abs32(s.fast) <= max(s.fastTail.q, onsetLeast) {
		s.lead = 0
	}
	s.fastTail.peak = max(s.fastTail.peak, abs32(s.fast))
	s.slowTail.peak = max(s.slowTail.peak, abs32(s.slow))
	if s.block++; s.block >= blockLeast && float64(s.block)*every >= blockSeconds || s.block == math.MaxUint16 {
		p := e.cfg.Asked / 2 * float64(s.block) * every / 3600
		most := float64(excessClip)
		if math.Abs(float64(s.fast-s.slow)) > leanLeast {
			most = 1
		}
		n := s.blocks + 1
		a, b := s.fastTail.close(n, p, most), s.slowTail.close(n, p, most)
		if (a || b) && n < math.MaxUint16 {
			s.blocks = n
		}
		s.block = 0
	}
}

// limits are the thresholds in force for both evidences.
func (e *Engine) limits(s *state) (fast, slow float64) {
	ff, fs := floorFast, floorSlow
	if s.is(flagSibling) {
		fs = floorSibling
	}
	// The mean of independent residuals of that scale stays below it but for one in millions.
	noise := noiseScales * float64(s.scale[s.phase])
	if !s.is(flagRatio) {
		noise = 0
	}
	every := float64(s.every)
	ff = max(ff, noise*math.Sqrt(clampTo(every/fastSeconds, 1.0/256, 1.0/fastLeast)/2))
	fs = max(fs, noise*math.Sqrt(clampTo(every/slowSeconds, 1.0/1024, 1.0/slowLeast)/2))
	return limit(&s.fastTail, s.blocks, ff*e.share), limit(&s.slowTail, s.blocks, fs*e.share)
}

// limit is the floor or, above it, the series' own threshold; a tail that has seen little is not believed.
func limit(t *tail, blocks uint16, floor float64) float64 {
	if blocks < tailBlocks {
		return max(2*floor, max(0.12, float64(t.h)))
	}
	return max(floor, float64(t.h))
}

// learn moves the baseline. While the short evidence has left the long one it learns slowly: a fault must not become normal
// before it is found. A lean that lasts is a trend, and is followed.
func (s *state) learn(k uint8, r, scale, unit, dt float64) {
	n := float64(s.n[k])
	base := baseSeconds
	if s.is(flagSibling) {
		base = baseSibling
	}
	a := max(1/(n+1), clampTo(dt/base, 1.0/8192, 1.0/baseLeast))
	if s.n[k] < math.MaxUint16 {
		s.n[k]++
	}
	began := math.Abs(float64(s.fast-s.slow)) > leanLeast && n > warmSamples
	if began || n < 100 && (s.leaning >= carryRow || s.leaning <= -carryRow) {
		a /= 8
	}
	c := clamp(r, huber*scale)
	s.loc[k] += float32(a * c * unit)
	switch {
	case k != 0:
	case s.is(flagOdd):
		s.par += float32(a * c)
	default:
		s.par -= float32(a * c)
	}
	m := min(math.Abs(r-float64(s.fast)), huber*scale) * 1.2533 // about the short mean: a lagging baseline is not noise
	s.scale[k] += float32(max(a, 0.01) * (m - float64(s.scale[k])/unit) * unit)
}

func clamp(x, c float64) float64 { return max(-c, min(c, x)) }

func clampTo(x, lo, hi float64) float64 { return max(lo, min(hi, x)) }

func abs32(x float32) float32 {
	if x < 0 {
		return -x
	}
	return x
}
