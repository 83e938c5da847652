package series

import (
	"math"
	"slices"
)

// training judges a sample by the training profile.
func (e *Engine) training(id ID, s *state, x Sample, v, dt float64) Verdict {
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
	k := &s.slots[s.phase]
	if k.n == 0 && s.phase == 0 && !s.is(flagAccept) && k.scale == 0 {
		s.set(flagRatio, Kind(s.kind) == Ratio || Kind(s.kind) == Auto && v > 0)
	}
	y, ref, ok := s.transform(v, x.Ref)
	if !ok { // a value that no logarithm has, in a series of ratios: as far below as evidence goes
		y = float64(k.loc) - 1
	}
	if warm := e.warm(s); int(k.n) < warm && (k.n < ringSize || warm > relearn) {
		s.keep(y)
		if k.n++; k.n%ringSize == 0 {
			s.start(k)
			s.carried(k)
		}
		return e.unknown(s)
	}
	s.keep(y)
	scale, unit := s.units(k, v)
	r := (y - float64(k.loc)) / unit
	par := float64(k.par)
	if k.odd {
		r -= par
	} else {
		r += par
	}
	raw := r
	k.odd = !k.odd
	r = clamp(r, math.Max(clip, 4*scale))
	guard := s.since <= s.guardFor() && s.since > 0 && int(k.n) >= ringSize
	known := int(k.n) >= e.warm(s)
	s.lean(clamp(raw, carryMost))
	if s.moved(k) {
		k.n, s.fast, s.slow = 0, 0, 0
		return e.unknown(s)
	}
	if !guard && known {
		e.gather(s, r, dt)
	}
	out := Verdict{Known: known}
	if known && s.until == 0 {
		s.until = x.T + e.hold
	}
	if known {
		e.decide(id, s, k, x, v, ref, r, raw, dt, unit, guard, &out)
	}
	if !guard && s.what == 0 {
		s.learn(k, r, scale, unit, dt)
	}
	if !known {
		out = e.unknown(s)
		return out
	}
	out.Alarm = s.what != 0
	return e.band(s, k, ref, unit, out)
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
	sibling := x.Ref > 0
	switch {
	case x.Phase != 0: // only steps are aligned with siblings'
	case sibling != s.is(flagSibling):
		s.set(flagSibling, sibling)
		s.forget()
	case x.Workload != s.workload && sibling: // the siblings changed at the same step
		s.since = 0
		s.set(flagWork, true)
	case x.Workload != s.workload:
		carry := s.recent
		if f := e.open[id]; s.what != 0 && f.Samples > 0 {
			carry = float32(clamp(f.sum/float64(f.Samples), carryMost))
		} else if n := math.Abs(float64(s.leaning)); n >= carryRow {
			carry /= float32(1 - math.Pow(1-recentRate, n))
		} else {
			carry = 0
		}
		old := s.slots[0].loc
		s.forget()
		s.carry, s.old = carry, old
	}
	if x.Phase == 0 {
		s.workload = x.Workload
	}
	if dt > math.Max(gapSeconds, gapIntervals*float64(s.every)) && s.slots[s.phase].n > ringSize {
		e.counts.Gaps++
		if s.what == 0 {
			s.fast, s.slow, s.since = 0, 0, 0
		}
	}
}

// forget starts the baselines anew and keeps the scales: other work has another level and much the same noise.
func (s *state) forget() {
	for i := range s.slots {
		s.slots[i].n = 0
	}
	s.fast, s.slow, s.since, s.good = 0, 0, 0, 0
	s.equal, s.leaning, s.recent, s.carry = 0, 0, 0, 0
}

func (e *Engine) warm(s *state) int {
	if s.what != 0 { // nothing is learnt while a finding is open
		return ringSize
	}
	if s.is(flagTold) && s.slots[s.phase].scale > 0 && s.fastTail.n >= 1 {
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

// keep puts a value into the ring; an even number of them holds as many odd as even steps.
func (s *state) keep(y float64) {
	s.ring[s.at%ringSize] = float32(y)
	s.at++
}

// start sets a baseline from the ring: its median, and as scale the median distance, pairs of odd and even samples taken out.
func (s *state) start(k *slot) {
	r := s.ring
	k.par = 0
	slices.Sort(r[:])
	k.loc = (r[ringSize/2-1] + r[ringSize/2]) / 2
	old := k.scale
	for i, x := range r {
		r[i] = float32(math.Abs(float64(x - k.loc)))
	}
	slices.Sort(r[:])
	k.scale = r[ringSize/2] * 1.4826
	if old > 0 {
		k.scale = min(max(k.scale, old/2), 2*old)
	}
}

// units gives the scale relative to the level and the unit of residuals in the space of the kind.
func (s *state) units(k *slot, v float64) (scale, unit float64) {
	sc := float64(k.scale)
	if s.is(flagRatio) {
		q := 0.0
		if v > 0 {
			q = math.Min(0.1, 0.3*float64(s.quantum)/v)
		}
		return math.Max(sc, math.Max(scaleFloor, q)), 1
	}
	l := math.Abs(float64(k.loc))
	unit = math.Max(math.Max(10*sc, l), math.SmallestNonzeroFloat32)
	return math.Max(sc/unit, math.Max(scaleFloor, math.Min(0.1, 0.3*float64(s.quantum)/unit))), unit
}

func (s *state) unitOf(k *slot) float64 {
	_, u := s.units(k, math.Exp(float64(k.loc)))
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
	s.recent += float32(recentRate * (r - float64(s.recent)))
}

// carried takes a fault that was there before a told change out of the new baseline: it lasts, as far as anyone knows. Where the
// level before the change is the level after it, there was no fault: the change was told some steps late.
func (s *state) carried(k *slot) {
	if s.carry != 0 && math.Abs(float64(k.loc-s.old)/s.unitOf(k)-float64(s.carry)) > sameLevel {
		k.loc -= float32(float64(s.carry) * s.unitOf(k))
	}
	s.carry = 0
}

// moved says whether a baseline was learnt too early after a told change: at the old level, which the series then left.
func (s *state) moved(k *slot) bool {
	return s.is(flagTold) && s.what == 0 && s.old != 0 && k.n >= ringSize && k.n < lateSamples &&
		(s.leaning >= leanRow || s.leaning <= -leanRow) && math.Abs(float64(k.loc-s.old)/s.unitOf(k)) < sameLevel
}

// gather takes a residual into the evidence and the tail models.
func (e *Engine) gather(s *state, r, dt float64) {
	every := float64(s.every) // not dt: one long step is one piece of evidence
	a := clampTo(every/fastSeconds, 1.0/256, 1.0/fastLeast)
	b := clampTo(every/slowSeconds, 1.0/1024, 1.0/slowLeast)
	s.fast += float32(a * (r - float64(s.fast)))
	s.slow += float32(b * (r - float64(s.slow)))
	if abs32(s.fast) <= max(s.fastTail.q, onsetLeast) && s.what == 0 {
		s.rise = s.t
	}
	if s.what != 0 {
		return
	}
	s.fastTail.peak = max(s.fastTail.peak, abs32(s.fast))
	s.slowTail.peak = max(s.slowTail.peak, abs32(s.slow))
	s.block += float32(dt)
	if s.blockN++; s.blockN >= blockLeast && s.block >= blockSeconds {
		p := e.cfg.Asked / 2 * float64(s.block) / 3600
		most := float64(excessClip)
		if math.Abs(float64(s.fast-s.slow)) > leanLeast {
			most = 1
		}
		s.fastTail.close(p, most)
		s.slowTail.close(p, most)
		s.block, s.blockN = 0, 0
	}
}

// limits are the thresholds in force for both evidences.
func (e *Engine) limits(s *state) (fast, slow float64) {
	ff, fs := floorFast, floorSlow
	if s.is(flagSibling) {
		fs = floorSibling
	}
	// The mean of independent residuals of that scale stays below it but for one in millions.
	noise := noiseScales * float64(s.slots[s.phase].scale)
	if !s.is(flagRatio) {
		noise = 0
	}
	every := float64(s.every)
	ff = math.Max(ff, noise*math.Sqrt(clampTo(every/fastSeconds, 1.0/256, 1.0/fastLeast)/2))
	fs = math.Max(fs, noise*math.Sqrt(clampTo(every/slowSeconds, 1.0/1024, 1.0/slowLeast)/2))
	return limit(&s.fastTail, ff*e.share), limit(&s.slowTail, fs*e.share)
}

// limit is the floor or, above it, the series' own threshold; a tail that has seen little is not believed.
func limit(t *tail, floor float64) float64 {
	if t.n < tailBlocks {
		return math.Max(2*floor, math.Max(0.12, float64(t.h)))
	}
	return math.Max(floor, float64(t.h))
}

// learn moves the baseline. While the short evidence has left the long one it learns slowly: a fault must not become normal
// before it is found. A lean that lasts is a trend, and is followed.
func (s *state) learn(k *slot, r, scale, unit, dt float64) {
	n := float64(k.n)
	base := baseSeconds
	if s.is(flagSibling) {
		base = baseSibling
	}
	a := math.Max(1/(n+1), clampTo(dt/base, 1.0/8192, 1.0/baseLeast))
	if k.n < math.MaxUint16 {
		k.n++
	}
	if math.Abs(float64(s.fast-s.slow)) > leanLeast && n > warmSamples || n < 100 && (s.leaning >= carryRow || s.leaning <= -carryRow) {
		a /= 8
	}
	c := clamp(r, huber*scale)
	k.loc += float32(a * c * unit)
	if k.odd { // toggled: the sample at hand was an even one
		k.par -= float32(a * c)
	} else {
		k.par += float32(a * c)
	}
	m := math.Min(math.Abs(r-float64(s.fast)), huber*scale) * 1.2533 // about the short mean: a lagging baseline is not noise
	sc := float64(k.scale) / unit
	k.scale += float32(math.Max(a, 0.01) * (m - sc) * unit)
}

func clamp(x, c float64) float64 { return math.Max(-c, math.Min(c, x)) }

func clampTo(x, lo, hi float64) float64 { return math.Max(lo, math.Min(hi, x)) }

func abs32(x float32) float32 {
	if x < 0 {
		return -x
	}
	return x
}
