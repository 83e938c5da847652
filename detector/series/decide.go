package series

import (
	"math"
	"math/bits"
)

// What a finding is.
type What uint8

// Shapes of a finding. A deviation opens as Spike or Drift, as nobody knows yet, and is named
// again when it ends or is accepted: by its length, from the onset.
const (
	Nothing  What = iota
	Spike         // over within spikeMost
	Shift         // a level that stayed
	Drift         // only the slow evidence saw it, and it was over within spikeMost
	Stall         // one interval and its value many times the expected
	Flatline      // a series that varied and no longer does
	Novel         // facility profile: unlike anything seen before
)

var whatNames = [...]string{"", "spike", "shift", "drift", "stall", "flatline", "novel"}

func (w What) String() string { return whatNames[w] }

// Severity of a finding before corroboration. Nothing here pages: corroboration makes incidents.
type Severity uint8

// Severities.
const (
	Info    Severity = iota // nobody told of changes: it may be a schedule's
	Warning                 // against what was told or what siblings did
)

func (v Severity) String() string { return [...]string{"info", "warning"}[v] }

// State of a finding.
type State uint8

// States.
const (
	StateOpen State = iota
	StateAccepted
	StateCleared
)

func (v State) String() string { return [...]string{"open", "accepted", "cleared"}[v] }

// Finding is one deviation and what explains it. Values are in the signal's own unit; NaN is unknown.
type Finding struct {
	Series               ID
	What                 What
	Severity             Severity
	State                State
	Onset, Opened, Ended int64   // ns; Ended 0 while open
	Value, Expected      float64 // at opening
	Lower, Upper         float64
	Score                float64 // at opening
	Asked                float64 // false onsets per series-hour
	Ratio                float64 // to the expected level: of the evidence while open, of the level during the finding once it is over; of a stall, of its interval
	Baseline             string  // self | siblings
	Age                  int     // samples behind the baseline
	Phase                uint8
	Workload             uint32
	Better               bool    // not on the side that is bad: never more than information
	Joins                bool    // opened within the refractory time of an earlier one: the same story
	Samples              int     // while open
	Lost                 float64 // s, of a ratio of which more may be bad: the time by which the samples since the onset were longer than expected, until it ended or was accepted
	sum                  float64
	worstFast, worstSlow float32
	crossed              int64   // ns of the last told change while it was open
	back                 float32 // of an accepted one: the baseline before
}

// Baselines of a finding.
const (
	baselineSelf     = "self"
	baselineSiblings = "siblings"
)

// decide opens, keeps and ends the finding of a series. It is called where one is open or may open.
func (e *Engine) decide(id ID, s *state, k uint8, x *Sample, v, ref, r, raw, dt, unit float64, guard bool, score float64) (float64, Change) {
	fast, slow := math.Abs(float64(s.fast)), math.Abs(float64(s.slow))
	zf := fast * float64(s.fastTail.per)
	z := max(zf, slow*float64(s.slowTail.per))
	least := 1 / float64(max(s.fastTail.per, s.slowTail.per))
	stall := s.is(flagRatio) && raw > stallLog && s.bad() != Low && dt > max(float64(s.every)*stallRatio, float64(s.every)+stallSeconds)
	flat := s.quantum > 0 && int(s.equal) >= max(flatSamples, flatTimes*int(s.longest)) &&
		float64(s.equal)*float64(s.every) >= flatSeconds
	if s.what == 0 {
		w := Nothing
		switch {
		case stall && s.until == 0:
			w, score = Stall, max(score, 0.9)
		case guard:
		case z >= 1 && s.most() && !e.early(s):
			w = Spike
			if zf < 1 {
				w = Drift
			}
		case flat:
			w, score = Flatline, max(score, 0.6)
		}
		if (w == Spike || w == Drift) && e.returns(id, s, k) {
			return score, Cleared
		}
		if w != Nothing && (s.until == 0 || z > 1.5 && max(fast, slow) >= floorFast) {
			e.opens(id, s, k, x, v, ref, unit, dt, w, score)
			if f := e.open[id]; w == Stall { // all of it is this one interval; what comes until it ends is as usual
				f.Ratio, f.Lost = math.Exp(min(raw, 20)), dt*(1-math.Exp(-raw))
			}
			return score, Opened
		}
		return score, None
	}
	f := e.open[id]
	f.Samples++
	f.sum += raw
	if s.is(flagRatio) && raw > 0 && s.bad() != Low {
		f.Lost += dt * (1 - math.Exp(-raw))
	}
	score = max(score, AlarmScore)
	if guard {
		return score, None
	}
	if f.Better {
		if now, over := e.turned(s, f); over {
			return score, Cleared
		} else if now {
			return score, None
		}
	}
	// Back in the band: a short mean, as odd and even steps may differ, and below half of the worst that was seen.
	s.recent += float32(closeRate * (r - float64(s.recent)))
	f.worstFast, f.worstSlow = max(f.worstFast, abs32(s.fast)), max(f.worstSlow, abs32(s.slow))
	worst := float64(max(f.worstFast, f.worstSlow))
	ended := math.Abs(float64(s.recent)) < 0.5*max(worst, least)
	switch f.What {
	case Flatline:
		ended = s.equal == 0
	case Stall: // one long interval: whatever would not open a finding of its own is its end
		ended = math.Abs(float64(s.recent)) < max(0.5*worst, least)
	}
	if ended {
		s.good++
	} else {
		s.good = 0
	}
	if int(s.good) >= closeSamples || f.What == Flatline && ended {
		off := k == 0 && f.What != Flatline && math.Abs(s.lately(closeSamples, k)) > offMost
		e.ends(s, f, StateCleared)
		if off { // the baseline was learnt within the fault
			s.n[k], s.old = 0, 0
		}
		return score, Cleared
	}
	// A level is believed once it has lasted for longer than the baseline that it contradicts was known. It is one if the last three
	// values, the last eight and all of them say the same.
	accept := seconds(e.cfg.Accept)
	if at := float64(s.displaced(k)); k == 0 && math.Abs(at-f.sum/float64(f.Samples)) < levelMost && math.Abs(at-s.lately(closeSamples, k)) < levelMost {
		accept = min(accept, max(acceptLeast, float64(s.n[k])*float64(s.every)))
	}
	if f.Severity == Info {
		accept = min(accept, acceptUntold)
	}
	if float64(s.t-max(f.Opened, f.crossed))*1e-9 >= accept && f.What != Flatline && s.n[k] >= ringSize {
		f.back = s.loc[k]
		s.restart(k)
		e.ends(s, f, StateAccepted)
		return score, Accepted
	}
	return score, None
}

// early reports whether an announcement may still come: whoever announces a change may be some steps late. A finding must last for longer
// than that from its onset before it acts, so no action is delayed. If many onsets are asked for, there is no wait. All waits since the last
// announcement or finding together are bounded by twice the time: a fault that comes in bursts has an onset in each.
func (e *Engine) early(s *state) bool {
	if s.flags&(flagTold|flagSibling) != flagTold {
		return false
	}
	wait := e.share * min(waitSamples*s.every, waitSeconds)
	if s.lead >= wait || float32(s.good)*s.every >= 2*wait {
		return false
	}
	s.good++ // at most 2 × waitSamples
	return true
}

// restart takes the last values as the baseline; what is known of odd and even steps holds. Of phases other than the steps there are
// no last values: they are learnt anew.
func (s *state) restart(k uint8) {
	if k != 0 {
		s.n[k] = 0
		return
	}
	par := s.par
	s.start(k)
	s.par, s.n[k] = par, min(s.n[k], 2*warmSamples)
}

// returns says whether a series that left an accepted level is back at the level before: the finding is over, and there is no new one.
func (e *Engine) returns(id ID, s *state, k uint8) bool {
	if !s.is(flagAccept) || k != 0 {
		return false
	}
	f := e.open[id]
	if f.Better && s.t-f.Ended > int64(e.cfg.Accept) { // it was better for so long that this is a loss
		return false
	}
	from := float64(s.loc[k]-f.back) / s.unitOf(k)
	if at := float64(s.displaced(k)); math.Abs(at+from) > max(backLeast, backShare*math.Abs(from)) {
		return false
	}
	s.restart(k)
	f.State, f.Ended = StateCleared, s.t
	s.rest()
	s.set(flagAccept, false)
	e.relimit(s)
	return true
}

// shift remembers on which side a residual lies, where it is beyond half of the threshold; z is in thresholds.
func (s *state) shift(z float32) {
	s.above, s.below = s.above<<1, s.below<<1
	switch {
	case z > 0.5:
		s.above |= 1
	case z < -0.5:
		s.below |= 1
	}
}

// most says whether most of the last eight residuals lie where the evidence points: a few long steps are no level.
func (s *state) most() bool {
	if s.fast+s.slow > 0 {
		return bits.OnesCount8(s.above) >= mostOfRing
	}
	return bits.OnesCount8(s.below) >= mostOfRing
}

// closeRate is the weight of the newest residual in the mean that ends a finding.
const closeRate = 1.0 / 3

func (e *Engine) opens(id ID, s *state, k uint8, x *Sample, v, ref, unit, dt float64, w What, score float64) {
	onset := s.t - int64(float64(s.lead)*1e9)
	switch w {
	case Stall:
		onset = s.t - int64(dt*1e9)
	case Flatline:
		onset = s.t - int64(float64(s.equal)*float64(s.every)*1e9)
	}
	before := e.open[id]
	base := baselineSelf
	if s.is(flagSibling) {
		base = baselineSiblings
	}
	expected, lower, upper := e.band(s, k, ref, unit)
	off := s.fast
	if abs32(s.slow) > abs32(off) {
		off = s.slow
	}
	better := (w == Spike || w == Drift) && s.bad().better(off > 0)
	sev := Info
	if (s.is(flagTold) || s.is(flagSibling)) && !better {
		sev = Warning
	}
	f := &Finding{
		Series: id, What: w, Severity: sev, Onset: onset, Opened: s.t, Value: v, Expected: expected, Lower: lower, Upper: upper,
		Score: score, Asked: e.cfg.Asked, Baseline: base, Age: int(s.n[k]), Phase: s.phase, Workload: x.Workload,
		Better: better, Joins: before != nil && before.Better == better && float64(s.t-before.Ended)*1e-9 < joinSeconds,
	}
	f.Ratio = math.Exp(clamp(float64(off), 20))
	f.worstFast, f.worstSlow = abs32(s.fast), abs32(s.slow)
	if s.is(flagRatio) && s.bad() != Low && k == 0 && (w == Spike || w == Drift) {
		f.Lost = s.lostBefore(w)
	}
	e.open[id] = f
	e.counts.Findings++
	s.what, s.good, s.recent = uint8(w), 0, off
	if !better {
		s.until = float32(refractory(e.cfg.Asked))
	}
}

// lostBefore is about the time lost from the onset to the opening: samples so far were longer by what the last values are, and those of
// a drift by half of it.
func (s *state) lostBefore(w What) float64 {
	n := int(clampTo(math.Round(float64(s.lead)/float64(s.every)), 1, ringSize))
	off := max(0, s.lately(n, 0))
	if w == Drift {
		off /= 2
	}
	return float64(s.lead) * (1 - math.Exp(-off))
}

func (e *Engine) ends(s *state, f *Finding, st State) {
	f.State, f.Ended = st, s.t
	if f.Samples > 0 && f.What != Stall {
		f.Ratio = math.Exp(clamp(f.sum/float64(f.Samples), 20))
	}
	switch {
	case f.What == Flatline || f.What == Stall:
	case st == StateAccepted:
		f.What = Shift
	case float64(f.Ended-f.Onset)*1e-9 >= spikeMost:
		f.What = Shift
	}
	s.what, s.good = 0, 0
	if !f.Better { // what is better makes nothing that is worse more usual, and hides none
		s.fastTail.rec = max(s.fastTail.rec, min(f.worstFast, recordMost))
		s.slowTail.rec = max(s.slowTail.rec, min(f.worstSlow, recordMost))
		s.until = max(s.until, refractoryLeast)
	}
	s.rest()
	s.set(flagAccept, st == StateAccepted)
	e.relimit(s)
}

// rest sets the evidence to none.
func (s *state) rest() {
	s.fast, s.slow = 0, 0
	s.fastTail.pend, s.slowTail.pend = 0, 0
	s.fastTail.peak, s.slowTail.peak, s.block, s.lead, s.recent, s.leaning = 0, 0, 0, 0, 0, 0
}

// refractory is the time in which weak evidence opens nothing new: a share of the asked interval where many onsets are asked
// for; where few are, the threshold is rare enough by itself and a fault right after another must not be missed.
func refractory(asked float64) float64 {
	if asked < 1 {
		return refractoryLeast
	}
	return clampTo(refractoryShare*3600/asked, refractoryLeast, refractoryMost)
}

const (
	refractoryShare = 0.2 // of the asked interval, from an onset on: …
	holdShare       = 0.2 // … and from the first sample on: one onset within it would be more than five times the asked rate
	refractoryLeast = 5.0 // s
	refractoryMost  = 240.0
	spikeMost       = 120.0 // s from the onset: what stays for longer is a level
	joinSeconds     = 600.0 // onsets within it of the last end are told as one story
)

// Finding returns the open or just ended finding of a series; nil: it has none.
func (e *Engine) Finding(id ID) *Finding { return e.open[id] }

// band gives what was expected of the sample and where the thresholds lie.
func (e *Engine) band(s *state, k uint8, ref, unit float64) (expected, lower, upper float64) {
	h := 1 / float64(max(s.fastTail.per, s.slowTail.per))
	c := float64(s.loc[k]) + float64(s.side())*unit
	if s.is(flagRatio) {
		expected = math.Exp(c + ref)
		return expected, expected * math.Exp(-h), expected * math.Exp(h)
	}
	return c, c - h*unit, c + h*unit
}
