package series

import "math"

// The decision of the facility profile. Evidence is in nats, the natural logarithm of one over a probability. The numbers were
// chosen on half of the Numenta benchmark, one set for all streams; docs/detection-formulas.md shows how the result moves with each.
const (
	facWarm       = 150    // samples before rarity is counted
	facSettle     = 50     // samples after it before a series is judged
	facOpen       = 3.0    // nats that open a finding in a series that has had none …
	facRepeat     = 3.0    // … and what each e-fold of the episodes that were as strong adds
	facSoft       = 2.0    // nats below facOpen from which the score rises
	facAlike      = 0.8    // share of the evidence from which an earlier episode was as strong
	facEpisodes   = 20_000 // samples, half-life of an episode in that count
	facRefractory = 100    // samples after the onset of an episode that belong to its story
	facAgain      = 5.0    // nats beyond what was told that are told again within one episode
	facHold       = 12     // samples that a finding stays open
	facBand       = 4      // scales on either side of the expected
	facRange      = 1e37   // values beyond are taken as this
	facFree       = 0.2    // onsets per series-hour, asked, from which on facOpen and facRepeat are no condition; at AskedShipped they are in full
	facHoldShare  = 0.2    // of the asked interval in which there is no second onset, where facOpen is no condition
)

// MostOften is how many samples of the facility profile may have one false onset: asked for more, that is what is asked.
const MostOften = 60

func (e *Engine) facility(id ID, s *state, x Sample, v, dt float64) Verdict {
	c := e.context(id)
	if c == nil {
		return e.unknown(s)
	}
	s.interval(float32(dt))
	c.m.take(x.T, clamp(v, facRange))
	if c.m.n < facWarm {
		return e.unknown(s)
	}
	said, ended := false, false
	if !e.aperiodic {
		said, ended = c.periodic(x.T, clamp(v, facRange), float64(s.every))
	}
	nats := c.evidence(said, ended)
	if c.m.n <= facWarm+facSettle {
		return e.unknown(s)
	}
	if c.often.take(nats) || c.limit == 0 {
		c.limit = e.limit(c, float64(s.every))
	}
	exp, band := c.m.expected, facBand*c.m.scale
	out := Verdict{Known: true, Score: e.novelty(c, nats, float64(s.every)), Expected: exp, Lower: exp - band, Upper: exp + band}
	f := e.open[id]
	switch {
	case s.what != 0:
		f.Samples++
		if c.open--; c.open == 0 {
			f.State, f.Ended, s.what, out.Change = StateCleared, x.T, 0, Cleared
		}
	case out.Score >= AlarmScore:
		c.open = facHold
		s.what = uint8(Novel)
		e.counts.Findings++
		e.open[id] = &Finding{
			Series: id, What: Novel, Severity: Info, Onset: x.T, Opened: x.T, Value: v, Expected: exp, Lower: out.Lower, Upper: out.Upper,
			Score: out.Score, Asked: e.cfg.Asked, Ratio: v / exp, Baseline: baselineSelf, Age: int(c.m.n), Workload: x.Workload,
			Better: s.bad().better(v > exp),
		}
		out.Change = Opened
	}
	out.Alarm = s.what != 0
	return out
}

// context is the costlier memory of a series of the facility profile. It is plain memory, as a snapshot holds it.
type context struct {
	m        memory
	period   period
	rare     [features]rarity
	episodes [episodeBins]float32 // earlier episodes by the nats of their peak, fading
	peak     float64              // nats, of the running episode
	told     float64              // nats, of the last onset
	often    often
	limit    float64 // nats, threshold of the asked rate
	quiet    uint32  // samples left of the running episode
	rest     uint32  // samples left in which an onset must be far worse than the last
	open     uint32  // samples left of the open finding
}

// episodeBins are one nat each: no sum of families is beyond.
const episodeBins = 64

func episodeBin(nats float64) int {
	if !(nats > 0) {
		return 0
	}
	return int(min(nats, episodeBins-1))
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

// evidence counts how rare each feature is, in nats beyond the usual, and adds up families: within one, features see the same
// thing and only the rarest counts; between them they are taken for independent. A period that is believed stands in for what it explains.
// said: there is one, or a candidate; ended: one of its slots is over.
func (c *context) evidence(said, ended bool) float64 {
	var most [families]float64
	believed := said && c.period.believed()
	for i, z := range c.m.z[:featPeriod] {
		nats := c.rare[i].take(math.Abs(z))
		if f := familyOf[i]; !(believed && explained[i]) {
			most[f] = max(most[f], nats-rareUsual)
		}
	}
	if said {
		point, cycle := c.surprises(ended)
		if believed {
			most[familyOf[featPeriod]] = max(most[familyOf[featPeriod]], point-rareOff)
			most[familyOf[featCycle]] = max(most[familyOf[featCycle]], cycle-rareUsual)
		}
	}
	sum := 0.0
	for _, x := range most {
		sum += x
	}
	return sum
}

// novelty scores the evidence; AlarmScore is at the threshold, which is the larger of two. One is the asked rate's, whatever the
// series does. The other is for those who ask for few onsets, and so for ones that matter: what came before tells less, by the
// logarithm of the number of episodes that were as strong, so that a series that often does such things has to do more. An episode
// is told once, at its onset, and again where it becomes far worse.
func (e *Engine) novelty(c *context, nats, every float64) float64 {
	if c.m.n%fadeEvery == 0 {
		for i := range c.episodes {
			c.episodes[i] *= episodeFade
		}
		c.often.fade(episodeFade)
	}
	usual := facOpen + facRepeat*math.Log1p(max(0, c.asStrong(nats)))
	c.remember(nats, nats >= usual)
	over := nats - max(float64(e.share)*usual, c.limit) + facSoft
	if c.rest > 0 {
		c.rest--
		if over < facSoft || nats < c.told+facAgain {
			return 0
		}
	}
	if !(over > 0 && nats > 0) {
		return 0
	}
	if over >= facSoft {
		c.rest, c.told = uint32(e.refractory(every)), nats
	}
	return over / (over + facSoft)
}

// asStrong counts the earlier episodes that were as strong.
func (c *context) asStrong(nats float64) (seen float64) {
	for _, k := range c.episodes[int(facAlike*float64(episodeBin(nats))):] {
		seen += float64(k)
	}
	return seen
}

// remember takes evidence into the episodes by their peaks.
func (c *context) remember(nats float64, unusual bool) {
	if c.quiet > 0 {
		c.quiet--
		if nats > c.peak {
			c.episodes[episodeBin(c.peak)]--
			c.episodes[episodeBin(nats)]++
			c.peak = nats
		}
		return
	}
	if unusual {
		c.episodes[episodeBin(nats)]++
		c.peak, c.quiet = nats, facRefractory
	}
}

// perSample is the asked rate of onsets.
func (e *Engine) perSample(every float64) float64 {
	return clampTo(e.cfg.Asked/3600*every, 1e-12, 1.0/MostOften)
}

// refractory is in samples.
func (e *Engine) refractory(every float64) float64 {
	share := float64(e.share)
	return min(facRefractory, share*facRefractory+(1-share)*facHoldShare/e.perSample(every))
}

// limit is the evidence that as large a share of blocks reaches as makes the asked rate of onsets, each followed by its refractory
// time in which none can be. Before the first blocks are over, what is shipped trusts the floor; who asks for less, the tail alone.
func (e *Engine) limit(c *context, every float64) float64 {
	rate := e.perSample(every)
	free := 1 - rate*e.refractory(every)
	if e.uncalibrated || free < 0.1 || e.share == 1 && c.often.blocks < oftenLeast && e.cfg.Asked >= AskedShipped {
		return oftenNone
	}
	return max(oftenNone, c.often.reach(1-math.Exp(-rate/free*oftenBlock)))
}

const fadeEvery = 256 // samples between two fadings

var episodeFade = float32(math.Exp2(-fadeEvery / float64(facEpisodes)))
