package series

import (
	"fmt"
	"math"
	"time"
)

// ID is the dense number of a series: resolve labels to it once, and walk a batch in its order.
type ID uint32

// Sample is one value of a series.
type Sample struct {
	T        int64   // ns
	V        float64 // NaN and infinities are counted and change nothing
	Phase    uint8   // Warmup, or 0…3; only compared
	Told     bool    // Phase and Workload come from someone who knows
	Workload uint32  // changes when the job announces other work: batch, sequence, window
	Ref      float32 // what siblings showed at this step; 0: unknown
}

// Warmup is the phase of a job that sets itself up: values are unknown, whatever they are.
const Warmup uint8 = 255

// Verdict is what is said of one sample.
type Verdict struct {
	Score                  float64 // 0…1; AlarmScore and above is beyond the threshold
	Expected, Lower, Upper float64 // with Config.Bands; NaN while unknown
	Known                  bool    // false: not judged, which is not the same as normal
	Alarm                  bool    // a finding is open
	Change                 Change  // of the finding by this very sample
}

// AlarmScore is the score at the threshold of the asked rate.
const AlarmScore = 0.5

// Change is what a sample did to a series' finding.
type Change uint8

// Changes.
const (
	None Change = iota
	Opened
	Cleared  // back in the band; of an accepted one: back at the level before, with no new finding
	Accepted // the level stayed and is the new baseline
)

// Counts of what was not judged.
type Counts struct {
	Samples, Unknown, NotANumber, Late, Gaps, Resets, Evicted, Findings int64
}

// Engine judges many series. It is used by one goroutine at a time.
type Engine struct {
	cfg      Config
	share    float32 // of the practical floors
	hold     float32 // s from the first sample without weak findings
	rate     float32 // onsets per second that each evidence may have
	far      float32 // mean excesses from the tail's quantile to the threshold, for blocks of a second
	states   []state
	ctx      []*context // facility profile, by id
	contexts int        // of them that are not nil
	open     map[ID]*Finding
	counts   Counts

	aperiodic    bool // learns no period: for tests of what that is worth
	uncalibrated bool // thresholds from the scale as if noise were independent and normal: for tests of what the tail models are worth
}

// New makes an engine.
func New(cfg Config) (*Engine, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, share: float32(cfg.floorShare()), open: map[ID]*Finding{}}
	e.rate = float32(cfg.Asked / 3600 / 2)
	if cfg.Asked >= 1 { // both evidences mostly rise together, and the time in which none may is made up for
		e.rate = float32(cfg.Asked / 3600 / (1 - holdShare) / (1 - refractoryShare))
		e.hold = float32(clampTo(holdShare*3600/cfg.Asked, refractoryLeast, refractoryMost))
	}
	e.far = float32(min(math.Log(tailShare/float64(e.rate)), farMost))
	return e, nil
}

// farMost is beyond what any series is long enough for; a rate may be so small that it is none in single precision.
const farMost = 100

// Add makes room for a series. At the bound it fails: the caller, who knows which was seen least recently, resets one.
func (e *Engine) Add(k Kind) (ID, error) {
	if len(e.states) >= e.cfg.MaxSeries {
		return 0, fmt.Errorf("%d series are the bound: reset one that is no longer seen, or raise max_series", e.cfg.MaxSeries)
	}
	if k == Auto {
		k = e.cfg.Kind
	}
	e.states = append(e.states, state{signal: uint8(k)})
	return ID(len(e.states) - 1), nil
}

// Reset makes the number free for another series.
func (e *Engine) Reset(id ID, k Kind) {
	if k == Auto {
		k = e.cfg.Kind
	}
	e.states[id] = state{signal: uint8(k)}
	delete(e.open, id)
	if int(id) < len(e.ctx) && e.ctx[id] != nil {
		e.ctx[id] = nil
		e.contexts--
	}
	e.counts.Evicted++
}

// Len is the number of series.
func (e *Engine) Len() int { return len(e.states) }

// Counts reports what happened so far.
func (e *Engine) Counts() Counts { return e.counts }

// Config is what the engine runs with, defaults filled in.
func (e *Engine) Config() Config { return e.cfg }

var nan = math.NaN()

func (e *Engine) unknown(s *state) Verdict {
	e.counts.Unknown++
	return Verdict{Expected: nan, Lower: nan, Upper: nan, Alarm: s.what != 0}
}

// Observe judges one sample.
func (e *Engine) Observe(id ID, x Sample) (out Verdict) {
	s := &e.states[id]
	e.counts.Samples++
	if x.V-x.V != 0 { // not a number, or infinite
		e.counts.NotANumber++
		if phase := min(x.Phase, phases-1); x.Phase != Warmup && phase != s.phase { // the phase is told, the value is not
			s.phase, s.since = phase, 0
		}
		return e.unknown(s)
	}
	dt := float64(0)
	if s.is(flagSeen) {
		if x.T <= s.t {
			e.counts.Late++
			return e.unknown(s)
		}
		dt = float64(x.T-s.t) * 1e-9
	}
	s.t = x.T
	v := x.V
	if s.kind() == Counter {
		var ok bool
		if v, ok = e.counted(s, v, dt); !ok {
			return e.unknown(s)
		}
	} else {
		d := math.Abs(v - s.prev)
		s.prev = v
		if f := float32(d); s.equal > 0 || !(f >= s.quantum) || s.quantum == 0 {
			s.changed(d)
		}
	}
	if e.cfg.Profile == Facility {
		return e.facility(id, s, x, v, dt)
	}
	e.training(id, s, &x, v, dt, &out)
	return out
}

// counted turns a counter into its rate.
func (e *Engine) counted(s *state, v, dt float64) (rate float64, ok bool) {
	prev := s.prev
	s.prev = v
	s.set(flagSeen, true)
	switch {
	case dt <= 0: // the first, or times whose difference overflows
		return 0, false
	case v < prev:
		e.counts.Resets++
		return 0, false
	}
	return (v - prev) / dt, true
}

// changed keeps what is known of the raw values, the least change and runs of equal ones. It is called where either may be news.
func (s *state) changed(by float64) {
	switch {
	case !s.is(flagSeen):
		s.set(flagSeen, true)
	case by == 0:
		if s.equal < math.MaxUint16 {
			s.equal++
		}
	default:
		if s.equal > 0 {
			s.longest = max(s.longest, uint8(min(s.equal, math.MaxUint8)))
			s.equal = 0
		}
		if f := float32(by); f > 0 && (s.quantum == 0 || f < s.quantum) {
			s.quantum = f
		}
	}
}

// Absent says whether a series is overdue at now: three of its own intervals, and a second, have passed in silence. It changes
// nothing; the caller knows whether its target was read at all and whether the job is between two attempts.
func (e *Engine) Absent(id ID, now int64) bool {
	s := &e.states[id]
	if !s.is(flagSeen) || s.every <= 0 {
		return false
	}
	return float64(now-s.t)*1e-9 > max(1, absentPeriods*float64(s.every))
}

// seconds of a duration, as the samples count them.
func seconds(d time.Duration) float64 { return d.Seconds() }
