package series

import "math"

// period learns one period of a slow series other than the day and the week: a job every six hours, a batch every hundred
// minutes. Values are averaged over slots of five minutes, or of the interval where that is longer. Each slot the autocorrelation at one more
// lag is taken; the shortest lag that repeats best is a candidate, which predicts each slot by the median of the same slot one, two and
// three periods ago. It is believed once that has explained the series for three periods on end, and dropped when it no longer does.
type period struct {
	from  int64  // ns, where slot 0 begins
	width int64  // ns of a slot; 0: none yet
	open  uint64 // number of the slot that is being filled
	sum   float64

	expected, least, most float64    // of the open slot: median of three periods, and the range of these and their neighbours
	total                 float64    // sum of the last period's slots
	err                   [3]float64 // squared, of the running period: of the candidate, of the mean of one period, of the day's season
	off                   scale      // mean distance from the prediction

	usual  float64    // sum of a period
	lo, hi [2]float64 // how far sums lay off it: in the running stretch and in the one before
	apart  float64    // what all of both have in common, as a mean over the period; 0: they do not agree
	worst  float64    // of the running excursion of that, in scales

	slots         [periodSlots]float32 // means, by number of slot
	in            uint32               // samples in the open slot
	known         uint32               // slots behind it that are known, at most periodSlots
	sums          uint32               // behind usual
	plain, square int32                // sums of the rough values and of their squares
	bestR, r1, r2 float32              // autocorrelation at the best lag, and at the last two

	lag, last  uint16 // the candidate, 0: none; the one that was dropped last
	best, next uint16 // of the lags so far; the lag whose autocorrelation is taken next
	at, part   uint16 // slots of the running period, and of the running stretch

	rough           [periodSlots]int8 // the slots in quarter scales off the mean, for the autocorrelation
	good, bad, held uint8             // periods on end that were explained, and that were not; held: the candidate is believed
}

const (
	periodSlots  = 384
	periodLeast  = 6               // slots
	periodMost   = periodSlots / 3 // three of them are remembered
	periodWidth  = int64(300e9)    // ns, least
	periodRough  = 18              // quarter scales: facClip
	periodR      = 0.3             // least autocorrelation of a candidate
	periodLonger = 0.9             // share of the autocorrelation of a longer lag from which the shorter one is as good
	periodGain   = 0.4             // of the variance that a candidate explains, to be believed …
	periodKeep   = 0.2             // … and to stay so
	periodDay    = 2.0             // times the day's squared error that its own may be
	periodGood   = 3               // periods on end
	periodDrop   = 3
	periodTry    = 2  // periods that a candidate may fail
	periodNear   = 16 // of a period: as much earlier or later is as usual
	periodPart   = 4  // of a period: a stretch
	periodUsual  = 8  // periods, of the usual sum
)

func (p *period) believed() bool { return p.held == 1 }

// predicts says whether there is a candidate and what it needs.
func (p *period) predicts() bool { return p.lag > 0 && p.known >= 3*uint32(p.lag) }

// mend forgets what no slot can have led to: a snapshot whose checksum fits may still hold anything.
func (p *period) mend() {
	lag := func(x uint16) bool { return x == 0 || x >= periodLeast && x <= periodMost }
	if p.known > periodSlots || !lag(p.lag) || !lag(p.best) || p.next < periodLeast || p.next > periodMost+1 || uint32(p.lag)*3 > p.known {
		*p = period{}
	}
}

// take adds a value and says whether it ended a slot that the candidate had predicted.
// mean and sc are the series', season what the day says of this value.
func (p *period) take(t int64, v, every, mean, sc, season float64) (fresh bool) {
	step := int64(clampTo(every*1e9, 1, 1e18))
	if p.width == 0 || step > p.width+p.width/2 || p.width > periodWidth && step < p.width-p.width/3 {
		*p = period{width: max(periodWidth, step), next: periodLeast}
		p.from = t - p.width/2
	}
	slot := (uint64(t) - uint64(p.from)) / uint64(p.width)
	if slot < p.open { // closed already
		return false
	}
	if slot > p.open {
		p.skip(slot, mean, sc)
	}
	p.sum += v
	p.in++
	left := uint64(p.width) - (uint64(t)-uint64(p.from))%uint64(p.width)
	if uint64(step)*3/4 < left {
		return false
	}
	x := p.sum / float64(p.in)
	if fresh = p.predicts(); fresh {
		p.judge(x, season)
	}
	p.push(x, mean, sc)
	return fresh
}

// skip closes slots that time has passed by, as the candidate or the last value has them; after a long silence all is forgotten.
func (p *period) skip(slot uint64, mean, sc float64) {
	if slot-p.open >= periodSlots {
		*p = period{width: p.width, from: p.from, open: slot, next: periodLeast}
		return
	}
	for p.open < slot {
		x := mean
		switch {
		case p.in > 0:
			x = p.sum / float64(p.in)
		case p.lag > 0 && p.known >= uint32(p.lag):
			x = p.back(int(p.lag))
		case p.known > 0:
			x = p.back(1)
		}
		p.push(x, mean, sc)
	}
}

// back is the slot so many before the open one.
func (p *period) back(n int) float64 { return float64(p.slots[(p.open-uint64(n))%periodSlots]) }

// predict sets what the candidate expects of the open slot: the median of three periods, and the range of these and their neighbours.
func (p *period) predict() {
	l := int(p.lag)
	a, b, c := p.back(l), p.back(2*l), p.back(3*l)
	p.expected = max(min(a, b), min(max(a, b), c))
	p.least, p.most = min(a, b, c), max(a, b, c)
	near := max(1, l/periodNear)
	for k := 1; k <= 3; k++ {
		for d := -near; d <= near; d++ {
			if n := k*l + d; n <= int(p.known) {
				x := p.back(n)
				p.least, p.most = min(p.least, x), max(p.most, x)
			}
		}
	}
}

// judge compares the open slot, of mean x, with what the candidate, the mean of one period and the day say of it.
func (p *period) judge(x, season float64) {
	d, m, s := x-p.expected, x-p.total/float64(p.lag), x-season
	p.err[0] += d * d
	p.err[1] += m * m
	p.err[2] += s * s
	p.off.learn(math.Abs(d), 1.0/facMemory)
}

func (p *period) push(x, mean, sc float64) {
	i := p.open % periodSlots
	if p.lag > 0 {
		p.total += x - p.back(int(p.lag))
	}
	p.slots[i] = float32(x)
	was, is := int32(p.rough[i]), int32(clampTo(4*(x-mean)/sc, -periodRough, periodRough)) // before there are so many slots, 0
	p.plain, p.square = p.plain+is-was, p.square+is*is-was*was
	p.rough[i] = int8(is)
	p.known = min(p.known+1, periodSlots)
	p.open++
	p.sum, p.in = 0, 0
	switch {
	case p.lag == 0:
		p.search()
	default:
		p.cycle(sc)
		if p.at++; p.at >= p.lag {
			p.review()
		}
	}
	if p.predicts() {
		p.predict()
	}
}

// cycle compares the sum of the last period with the usual one. A run that is late or early changes it for as long as it is late; one
// that is left out, and one too many, for a whole period: only what two stretches of a period have in common counts.
func (p *period) cycle(sc float64) {
	if !p.predicts() {
		return
	}
	if p.sums == 0 {
		p.usual = p.total
	}
	l, off := float64(p.lag), p.total-p.usual
	p.sums = min(p.sums+1, periodUsual*uint32(p.lag))
	p.usual += clamp(off, l*sc) / float64(max(p.sums, uint32(p.lag)))
	if p.part == 0 {
		p.lo[0], p.hi[0] = off, off
	}
	p.lo[0], p.hi[0] = min(p.lo[0], off), max(p.hi[0], off)
	p.apart = (max(min(p.lo[0], p.lo[1]), 0) + min(max(p.hi[0], p.hi[1]), 0)) / l
	if p.part++; p.part >= max(2, p.lag/periodPart) {
		p.lo[1], p.hi[1], p.part = p.lo[0], p.hi[0], 0
	}
}

// review ends a period: was it explained?
func (p *period) review() {
	gain := periodGain
	if p.believed() {
		gain = periodKeep
	}
	if p.err[0] < (1-gain)*p.err[1] && p.err[0] <= periodDay*p.err[2] {
		p.good, p.bad = min(p.good+1, periodGood), 0
	} else {
		p.good, p.bad = 0, p.bad+1
	}
	if p.good >= periodGood {
		p.held = 1
	}
	p.at, p.err = 0, [3]float64{}
	p.summed() // anew, so that rounding does not add up
	if p.bad >= periodDrop || !p.believed() && p.bad >= periodTry {
		p.drop()
	}
}

// drop forgets the candidate and begins the search anew.
func (p *period) drop() {
	*p = period{
		from: p.from, width: p.width, open: p.open, slots: p.slots, rough: p.rough, known: p.known, plain: p.plain, square: p.square,
		last: p.lag, next: periodLeast,
	}
}

// summed sets the sum of the last period.
func (p *period) summed() {
	p.total = 0
	for i := range int(p.lag) {
		p.total += p.back(i + 1)
	}
}

// search takes the autocorrelation at one more lag; after the longest, the best lag is the candidate.
func (p *period) search() {
	longest := min(p.known/3, periodMost)
	if uint32(p.next) > longest {
		if p.best > 0 {
			p.lag = p.best
			p.summed()
		}
		p.next, p.best, p.bestR, p.r1, p.r2, p.last = periodLeast, 0, 0, 0, 0, 0
		return
	}
	r := p.autocorrelation(int(p.next))
	if l := p.next - 1; p.r1 > p.r2 && p.r1 >= r && p.r1 >= periodR && p.bestR < periodLonger*p.r1 && l != p.last && !p.daily(l) {
		p.best, p.bestR = l, p.r1
	}
	p.r2, p.r1 = p.r1, r
	p.next++
}

// daily says whether a lag is a multiple of the day, which has a season of its own.
func (p *period) daily(lag uint16) bool {
	const day = 86_400e9
	x := float64(lag) * float64(p.width)
	k := math.Round(x / day)
	return k >= 1 && math.Abs(x-k*day) <= max(float64(p.width), 0.02*x)
}

// autocorrelation at a lag, of the rough values: they are whole and small, so that sums of them are exact.
func (p *period) autocorrelation(lag int) float32 {
	n, sum, i := int(p.known), int32(0), int((p.open-uint64(p.known))%periodSlots)
	for left := n - lag; left > 0; {
		j := (i + lag) % periodSlots
		k := min(left, periodSlots-i, periodSlots-j)
		a, b := p.rough[i:i+k], p.rough[j:j+k]
		for l := range a {
			sum += int32(a[l]) * int32(b[l])
		}
		left, i = left-k, (i+k)%periodSlots
	}
	mean := float64(p.plain) / float64(n)
	v := float64(p.square)/float64(n) - mean*mean
	if !(v > 0) {
		return 0
	}
	return float32((float64(sum)/float64(n-lag) - mean*mean) / v)
}

// periodic takes a value into the period, and the features of a candidate.
func (c *context) periodic(t int64, v, every float64) (said, ended bool) {
	m, p := &c.m, &c.period
	lag, expected, off := p.lag, p.expected, v-clampTo(v, p.least, p.most)
	sc := max(m.all.s, leastScale(m.mean))
	said = p.predicts()
	ended = p.take(t, v, every, m.mean, sc, m.expected)
	if p.lag == 0 {
		return false, false
	}
	if p.lag != lag {
		for _, i := range [...]int{featPeriod, featCycle} {
			m.size[i], c.rare[i] = scale{}, rarity{most: 1} // a distance of one scale is none
		}
		return false, false
	}
	if !said {
		return false, false
	}
	m.feature(featPeriod, off, facLeast*sc, 1.0/facMemory, true)
	if ended {
		m.feature(featCycle, p.apart, facLeast*sc, 1.0/facMemory, p.apart == 0)
	}
	if p.believed() {
		m.expected, m.scale = expected, max(p.off.s, facLeast*sc)
	}
	return true, ended
}

// surprises are those of the two features of a candidate, in nats. It teaches them before it is believed. An excursion of the sums lasts for a
// period and teaches once.
func (c *context) surprises(ended bool) (point, cycle float64) {
	point = c.rare[featPeriod].take(math.Abs(c.m.z[featPeriod]))
	if !ended {
		return point, 0
	}
	p, r, x := &c.period, &c.rare[featCycle], math.Abs(c.m.z[featCycle])
	cycle = r.nats(x)
	switch {
	case x > 0:
		p.worst = max(p.worst, x)
	case p.worst > 0:
		r.learn(p.worst)
		p.worst = 0
	default:
		r.learn(0)
	}
	return point, cycle
}
