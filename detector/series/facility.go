package series

import "math"

// The tuning of the facility profile, in samples. Sources: the shape of the score (a feature against its own fading record) is
// that of notes on the Numenta benchmark; the numbers were chosen on half of it, one set for all streams, see docs/detection.md.
const (
	facWarm       = 150    // before a series is judged
	facSettle     = 50     // after it, in which the records are only made
	facMemory     = 2500   // of location and scales
	facWindow     = 24     // of the level and of the spread
	facBins       = 48     // of the day
	facDay        = 0.2    // weight of a value in its bin of the day
	facSeason     = 2      // days before the season is believed
	facHalfLife   = 15_000 // of the records
	facRefractory = 120    // after a new record, others are the same story
	facExcess     = 0.1    // of a logarithm beyond the record that opens a finding
	facOpen       = 12     // that a finding stays open
	facBand       = 4      // scales on either side of the expected
	facMost       = 1e6    // of a logarithm's excess
	facRange      = 1e100  // values beyond are taken as this
	facCap        = 4      // scales that one sample may teach a scale
)

// features of a sample: distance from the mean, from the value before, of the window's level, from the season, of the spread.
const features = 5

var (
	facLeast  = [features]float64{3, 3, 2.5, 3, 2.5} // no record is below
	facWeight = [features]float64{1.5, 1, 1, 1, 1.5}
	facFade   = math.Exp2(-1.0 / facHalfLife)
)

// context is the costlier memory of a series of the facility profile: season, window, and the record of each feature.
type context struct {
	n       uint32
	mean    float64
	scale   float64
	diff    float64
	window  [facWindow]float32
	bins    [facBins]float32
	seen    [facBins]uint16
	binDay  [facBins]int32
	level   float64 // scale of the level's distance
	resid   float64 // scale of the distance from the season
	spread  float64 // mean log spread of the window
	spreadS float64
	prev    float64
	record  [features]float64
	quiet   uint32 // samples left without a new story
	open    uint32 // samples left of the open finding
}

func (e *Engine) facility(id ID, s *state, x Sample, v, dt float64) Verdict {
	c := e.context(id)
	if c == nil {
		return e.unknown(s)
	}
	e.interval(s, dt)
	z, exp, scale := c.take(x.T, clamp(v, facRange))
	if c.n < facWarm {
		return e.unknown(s)
	}
	out := Verdict{Known: true, Score: c.score(z), Expected: exp, Lower: exp - facBand*scale, Upper: exp + facBand*scale}
	f := e.open[id]
	switch {
	case s.what != 0:
		f.Samples++
		if c.open--; c.open == 0 {
			f.State, f.Ended, s.what, out.Change = StateCleared, x.T, 0, Cleared
		}
	case out.Score >= AlarmScore:
		c.open = facOpen
		s.what = uint8(Novel)
		e.counts.Findings++
		e.open[id] = &Finding{
			Series: id, What: Novel, Severity: Info, Onset: x.T, Opened: x.T, Value: v, Expected: exp, Lower: out.Lower, Upper: out.Upper,
			Score: out.Score, Asked: e.cfg.Asked, Ratio: v / exp, Baseline: baselineSelf, Age: int(c.n), Workload: x.Workload,
		}
		out.Change = Opened
	}
	out.Alarm = s.what != 0
	return out
}

// context gives a series its costlier memory while the pool has room; nil: it has none, and the series stays unknown.
func (e *Engine) context(id ID) *context {
	for len(e.ctx) <= int(id) {
		e.ctx = append(e.ctx, nil)
	}
	if e.ctx[id] == nil && e.contexts < e.cfg.MaxContext {
		e.ctx[id] = &context{}
		e.contexts++
	}
	return e.ctx[id]
}

// take updates the memory with a value and gives its features, from what was known before it.
func (c *context) take(t int64, v float64) (z [features]float64, expected, scale float64) {
	n := float64(c.n)
	a := max(1/(n+1), 1.0/facMemory)
	if c.n == 0 {
		c.mean, c.prev = v, v
	}
	sc := max(c.scale, 1e-9+1e-6*math.Abs(c.mean))
	d := v - c.mean
	dv := v - c.prev
	c.prev = v
	day, bin := dayBin(t)
	// Level and spread of the window.
	c.window[c.n%facWindow] = float32(clamp(v, math.MaxFloat32))
	lvl, sd := c.stats()
	z[0] = math.Abs(d) / sc
	z[1] = math.Abs(dv) / max(c.diff, 0.05*sc)
	ld := lvl - c.mean
	z[2] = math.Abs(ld) / max(c.level, 0.05*sc)
	expected, scale = c.mean, sc
	rd := d
	believed := c.seen[bin] >= facSeason
	if believed {
		rd = v - float64(c.bins[bin])
		expected = float64(c.bins[bin])
		scale = max(c.resid, 0.05*sc)
		z[3] = math.Abs(rd) / scale
	}
	ls := math.Log(sd + 0.02*sc)
	z[4] = math.Abs(ls-c.spread) / max(c.spreadS, 0.05)
	// Learn.
	c.n++
	h := 3 * sc * 1.5
	if c.n < 20 {
		h = math.Inf(1)
	}
	c.mean += a * clamp(d, h)
	learn(&c.scale, math.Abs(d), a, c.n)
	learn(&c.diff, math.Abs(dv), a, c.n)
	if c.n > facWindow {
		learn(&c.level, math.Abs(ld), a, c.n-facWindow)
		c.spread += max(1/(n+1-facWindow), a) * clamp(ls-c.spread, 3*max(c.spreadS, 0.3))
		learn(&c.spreadS, math.Abs(ls-c.spread), a, c.n-facWindow)
	}
	if believed {
		learn(&c.resid, math.Abs(rd), a, c.n/2)
	}
	if c.seen[bin] == 0 {
		c.bins[bin], c.seen[bin], c.binDay[bin] = float32(clamp(v, math.MaxFloat32)), 1, int32(day)
	} else {
		c.bins[bin] += float32(facDay * (v - float64(c.bins[bin])))
		if c.binDay[bin] != int32(day) {
			c.binDay[bin] = int32(day)
			c.seen[bin]++
		}
	}
	return z, expected, scale
}

func learn(s *float64, x, a float64, n uint32) {
	if n < 20 {
		*s += (x - *s) / float64(n)
		return
	}
	*s += max(a, 1/float64(n)) * (min(x, facCap**s) - *s)
}

func (c *context) stats() (mean, sd float64) {
	k := min(int(c.n)+1, facWindow)
	for i := range k {
		mean += float64(c.window[i])
	}
	mean /= float64(k)
	for i := range k {
		d := float64(c.window[i]) - mean
		sd += d * d
	}
	return mean, math.Sqrt(sd / float64(k))
}

func dayBin(t int64) (day int64, bin int) {
	const ns = int64(86_400e9)
	day = t / ns
	if t < 0 && day*ns != t {
		day--
	}
	return day, int((t - day*ns) / (ns / facBins) % facBins)
}

// score compares each feature with its record, which fades; the largest excess is the score.
func (c *context) score(z [features]float64) float64 {
	best := 0.0
	for i, x := range z {
		r := max(c.record[i]*facFade, facLeast[i])
		if c.n > facWarm+facSettle {
			if l := facWeight[i] * math.Log(x/r); l > best {
				best = min(l, facMost)
			}
		}
		c.record[i] = max(r, x)
	}
	if c.quiet > 0 {
		c.quiet--
		return 0
	}
	if best <= 0 {
		return 0
	}
	if best >= facExcess {
		c.quiet = facRefractory
	}
	return best / (best + facExcess) // AlarmScore at facExcess
}
