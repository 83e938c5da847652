package series

import (
	"math"
	"slices"
)

// features of a sample: how far it lies from the mean, from the value before, from its half-hour of the day and of the week; the
// same of medians of windows; and how far the spread of a window lies from what it was.
const (
	featMean = iota
	featStep
	featDay
	featWeek
	featLevel    // median of 24 from the mean
	featResidual // median of 24 residuals of the day
	featShort    // median of 6 from the median of 96
	featSpread
	featPeriod // from what a learnt period says, and …
	featCycle  // … the sum of that over a quarter of it
	features
)

// families of features that see the same thing.
const (
	familyPoint = iota
	familyLevel
	familySpread
	families
)

var familyOf = [features]uint8{
	featMean: familyPoint, featStep: familyPoint, featDay: familyPoint, featWeek: familyPoint,
	featLevel: familyLevel, featResidual: familyLevel, featShort: familyLevel,
	featSpread: familySpread,
	featPeriod: familyPoint, featCycle: familyLevel,
}

// explained is what a believed period says better.
var explained = [features]bool{featMean: true, featStep: true, featDay: true, featWeek: true, featResidual: true, featShort: true}

const (
	facMemory   = 2500 // samples, of location and scales
	facWindow   = 24   // samples
	facLong     = 96
	facShort    = 6
	facDay      = 0.2 // weight of a value in its half-hour of the day …
	facWeek     = 0.3 // … and of the week
	facBelieved = 2   // days before the season is believed
	facBins     = 48  // of a day
	facLeast    = 0.05
	facCap      = 5   // scales that one sample may teach a scale
	facClip     = 4.5 // scales that one may pull the mean by
	facEarly    = 20  // samples without either bound
)

// memory is what the features are taken against. The fields of the last sample are z, expected and scale.
type memory struct {
	z               [features]float64 // signed, in scales
	expected, scale float64

	n               uint32
	binDay          [facBins]int32 // last day that was counted
	seen            [facBins]uint16
	mean, prev      float64
	spread          float64 // mean logarithm of the window's standard deviation
	size            [features]scale
	all             scale
	day             [facBins]float32
	week            [7 * facBins]float32
	wseen           [7 * facBins]uint8
	window, resid   [facWindow]float32
	long            [facLong]float32
	short           [facShort]float32
	windowS, residS [facWindow]float32 // the same, sorted
	longS           [facLong]float32
	shortS          [facShort]float32
}

// take updates the memory with a value and gives its features, from what was known before it.
func (m *memory) take(t int64, v float64) {
	first := m.n == 0
	if first {
		m.mean, m.prev = v, v
	}
	n := float64(m.n)
	a := max(1/(n+1), 1.0/facMemory)
	sc := max(m.all.s, leastScale(m.mean))
	least := facLeast * sc
	d, step := v-m.mean, v-m.prev
	m.prev = v
	day, bin := dayBin(t)
	believed := m.seen[bin] >= facBelieved
	rd := d
	m.expected, m.scale = m.mean, sc
	if believed {
		m.expected = float64(m.day[bin])
		rd = v - m.expected
		m.scale = max(m.size[featDay].s, least)
	}
	level := median(m.window[:], m.windowS[:], m.n, v) - m.mean
	long := median(m.long[:], m.longS[:], m.n, v)
	short := median(m.short[:], m.shortS[:], m.n, v) - long
	resid := median(m.resid[:], m.residS[:], m.n, rd)
	ls := math.Log(deviation(m.window[:min(int(m.n)+1, facWindow)]) + 0.02*sc)

	m.z = [features]float64{}
	m.z[featMean] = d / sc
	m.feature(featStep, step, least, a, true)
	m.feature(featShort, short, least, a, true)
	m.feature(featLevel, level, least, a, m.n >= facWindow)
	if believed {
		m.feature(featDay, rd, least, a, true)
		m.feature(featResidual, resid, least, a, true)
	}
	off := ls - m.spread
	wide := m.size[featSpread].s
	m.feature(featSpread, off, facLeast, a, m.n >= facWindow)
	if m.n >= facWindow {
		m.spread += max(1/(n+2-facWindow), a) * clamp(off, 3*max(wide, 0.3))
	}
	m.weekly(day, bin, v, rd, least, a, believed)

	h := facClip * sc
	if m.n < facEarly {
		h = math.Inf(1)
	}
	m.mean += a * clamp(d, h)
	m.all.learn(math.Abs(d), a)
	m.season(day, bin, v, least)
	m.n++
}

// leastScale of a series, for one that hardly moves.
func leastScale(mean float64) float64 { return 1e-9 + 1e-6*math.Abs(mean) }

// feature measures a distance in its own usual size, and learns the size.
func (m *memory) feature(i int, x, least, a float64, teach bool) {
	m.z[i] = x / max(m.size[i].s, least)
	if teach {
		m.size[i].learn(math.Abs(x), a)
	}
}

// weekly compares with the same half-hour a week ago, where that says less than the day: a Saturday is no odd Friday.
func (m *memory) weekly(day int64, bin int, v, rd, least, a float64, believed bool) {
	w := int(((day+3)%7+7)%7)*facBins + bin
	if m.wseen[w] > 0 && believed {
		off := v - float64(m.week[w])
		if math.Abs(rd) < math.Abs(off) {
			off = rd
		}
		m.feature(featWeek, off, least, a, true)
	}
	if m.wseen[w] == 0 {
		m.week[w], m.wseen[w] = float32(v), 1
		return
	}
	m.week[w] += float32(facWeek * m.size[featWeek].bound(v-float64(m.week[w]), least))
}

func (m *memory) season(day int64, bin int, v, least float64) {
	if m.seen[bin] == 0 {
		m.day[bin], m.seen[bin], m.binDay[bin] = float32(v), 1, int32(day)
		return
	}
	m.day[bin] += float32(facDay * m.size[featDay].bound(v-float64(m.day[bin]), least))
	if m.binDay[bin] != int32(day) && m.seen[bin] < math.MaxUint16 {
		m.binDay[bin] = int32(day)
		m.seen[bin]++
	}
}

// scale is a mean absolute size that one sample cannot make.
type scale struct {
	s float64
	n float64
}

func (s *scale) learn(x, a float64) {
	s.n++
	if s.n < facEarly {
		s.s += (x - s.s) / s.n
		return
	}
	s.s += max(a, 1/s.n) * (min(x, facCap*s.s) - s.s)
}

// bound keeps one sample from moving a baseline by more than facClip scales times its rate.
func (s *scale) bound(x, least float64) float64 {
	if s.n <= facEarly {
		return x
	}
	return clamp(x, facClip*max(s.s, least))
}

// median puts the n-th value into a ring and its sorted twin, and gives their median.
func median(ring, sorted []float32, n uint32, v float64) float64 {
	x, at, k := float32(v), int(n)%len(ring), min(int(n), len(ring))
	if k == len(ring) {
		i, _ := slices.BinarySearch(sorted, ring[at])
		i = min(i, k-1)
		copy(sorted[i:], sorted[i+1:])
		k--
	}
	i, _ := slices.BinarySearch(sorted[:k], x)
	copy(sorted[i+1:k+1], sorted[i:k])
	sorted[i], ring[at] = x, x
	k++
	return (float64(sorted[(k-1)/2]) + float64(sorted[k/2])) / 2
}

func deviation(v []float32) float64 {
	mean, sum := 0.0, 0.0
	for _, x := range v {
		mean += float64(x)
	}
	mean /= float64(len(v))
	for _, x := range v {
		d := float64(x) - mean
		sum += d * d
	}
	return math.Sqrt(sum / float64(len(v)))
}

func dayBin(t int64) (day int64, bin int) {
	const ns = int64(86_400e9)
	day = t / ns
	if t < 0 && day*ns != t {
		day--
	}
	return day, int((t - day*ns) / (ns / facBins) % facBins)
}
