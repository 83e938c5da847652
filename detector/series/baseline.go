package series

import (
	"math"
	"slices"
)

// forget starts the baselines anew and keeps the scales: other work has another level and much the same noise.
func (s *state) forget() {
	s.n = [phases]uint16{}
	s.fast, s.slow, s.since, s.good = 0, 0, 0, 0
	s.equal, s.leaning, s.recent = 0, 0, 0
	s.set(flagAccept, false)
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
		if s.old != 0 && s.recent == 0 && s.what == 0 && s.since <= guardSibling && s.mixed() {
			s.n[k] = ringSize / 2 // four more values; guardSibling bounds how often
			return
		}
		s.start(k)
		s.carried(k)
	}
}

// keep puts a value into the ring; an even number of them holds as many odd as even steps.
func (s *state) keep(y float64) {
	s.ring[s.at&(ringSize-1)] = float32(y)
	s.at++
}

// mixed reports whether the ring holds values of two levels: its halves differ. Each half has as many odd as even steps.
func (s *state) mixed() bool {
	d := float32(0)
	for i := range s.ring {
		x := s.ring[(int(s.at)+i)&(ringSize-1)]
		if i < ringSize/2 {
			x = -x
		}
		d += x / (ringSize / 2)
	}
	return abs32(d) > float32(leanEach*s.unitOf(0))
}

// side is how far the sample at hand lies above the baseline for being an odd or an even step.
func (s *state) side() float32 {
	if s.phase != 0 {
		return 0
	}
	return s.par * s.sign()
}

// sign is 1 at odd steps and -1 at even ones, without a branch to mispredict.
func (s *state) sign() float32 { return signs[s.flags/flagOdd&1] }

var signs = [2]float32{-1, 1}

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

// relative is the scale of a series of ratios; v is the sample at hand, of which the least change is a share.
func (s *state) relative(k uint8, v float64) float32 {
	sc := s.scale[k]
	if sc < scaleFloor {
		sc = scaleFloor
	}
	if q := 0.3 * float64(s.quantum); q > float64(sc)*v && v > 0 {
		sc = max(sc, float32(min(0.1, q/v)))
	}
	return sc
}

// units gives the scale relative to the level, and the unit of residuals, of a series of levels.
func (s *state) units(k uint8) (scale float32, unit float64) {
	sc := float64(s.scale[k])
	l := math.Abs(float64(s.loc[k]))
	unit = max(max(10*sc, l), math.SmallestNonzeroFloat32)
	return float32(max(sc/unit, max(scaleFloor, min(0.1, 0.3*float64(s.quantum)/unit)))), unit
}

func (s *state) unitOf(k uint8) float64 {
	if s.is(flagRatio) {
		return 1
	}
	_, u := s.units(k)
	return u
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
	if s.recent != 0 && math.Abs(float64(s.loc[k]-s.old)/s.unitOf(k)-float64(s.recent)) > max(sameLevel, sameShare*math.Abs(float64(s.recent))) {
		s.loc[k] -= float32(float64(s.recent) * s.unitOf(k))
	}
	if s.recent != 0 { // the change was seen before it was announced: what comes next is not its level coming late
		s.old = 0
	}
}

// moved reports whether a baseline was learned too early after an announced change: at the old level, which the series then left.
func (s *state) moved(k uint8) bool {
	return s.is(flagTold) && s.what == 0 && s.old != 0 && s.n[k] >= ringSize && s.n[k] < lateSamples &&
		(s.leaning >= leanRow || s.leaning <= -leanRow) && math.Abs(float64(s.loc[k]-s.old)/s.unitOf(k)) < sameLevel
}

// learn moves the baseline. While the short evidence has left the long one it learns slowly: a fault must not become normal
// before it is found. A lean that lasts is a trend, and is followed.
func (s *state) learn(k uint8, r, scale, unit, dt float32) {
	n := float32(s.n[k])
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
	most := huber * scale
	c := a * clamp(r, most)
	s.loc[k] += c * unit
	if k == 0 {
		s.par += c * s.sign()
	}
	m := abs32(r - s.fast) // about the short mean: a lagging baseline is not noise
	if m > most {
		m = most
	}
	if a < 0.01 {
		a = 0.01
	}
	s.scale[k] += a * (meanToScale*m*unit - s.scale[k])
}

// meanToScale of the mean distance from the middle gives the standard deviation of normal noise.
const meanToScale = 1.2533

// nothing stands for the logarithm of zero and less: that of half the least change that was seen, a fixed place far below, so that
// a series that fell to zero has a level there that can be accepted.
func (s *state) nothing() float64 {
	return math.Log(max(float64(s.quantum)/2, leastLevel))
}

const leastLevel = 1e-30
