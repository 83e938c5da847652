package series

import (
	"fmt"
	"math"
	"time"
)

// Kind is how values of a signal are read.
type Kind uint8

// Kinds of signal.
const (
	Auto    Kind = iota // Ratio while every value of the warm-up is positive, else Level
	Ratio               // positive, judged by its logarithm: latencies, step times
	Level               // judged as it is: utilisation, power
	Counter             // grows; judged by its rate, a fall is a reset
)

// Profile names one of the two tunings of the one engine.
type Profile string

// Profiles. Training is for intervals below a minute: phases, no season. Facility is for a minute and above: season and rarity.
const (
	Training Profile = "training"
	Facility Profile = "facility"
)

// ProfileFor chooses by the observed interval.
func ProfileFor(interval time.Duration) Profile {
	if interval >= time.Minute {
		return Facility
	}
	return Training
}

// Config of an engine. The zero value of a field means its default.
type Config struct {
	Profile    Profile
	Asked      float64       // false onsets per series-hour, default AskedShipped
	Kind       Kind          // of every series that is added without one
	Accept     time.Duration // a level that stays so long, or longer than the baseline was known, is the new baseline; default 1 min, 8 s where nothing was told
	Bands      bool          // give expected, lower and upper with every verdict; findings have them always
	MaxSeries  int           // default 1 << 20
	MaxContext int           // facility contexts (season, rarity, period), 9 KB each; default 4096
}

// AskedShipped is the shipped rate of false onsets per series-hour of one uncorroborated series. docs/detection-formulas.md has the
// arithmetic from it to the budget of incidents.
const AskedShipped = 0.05

func (c *Config) fill() error {
	if c.Profile == "" {
		c.Profile = Training
	}
	if c.Profile != Training && c.Profile != Facility {
		return fmt.Errorf("profile %q: training or facility", c.Profile)
	}
	if c.Asked == 0 {
		c.Asked = AskedShipped
	}
	if !(c.Asked > 0) || c.Asked > maxAsked {
		return fmt.Errorf("asked rate %g: above 0 and at most %d onsets per series-hour", c.Asked, maxAsked)
	}
	if c.Accept <= 0 {
		c.Accept = time.Minute
	}
	if c.MaxSeries <= 0 {
		c.MaxSeries = 1 << 20
	}
	if c.MaxContext <= 0 {
		c.MaxContext = 4096
	}
	return nil
}

const maxAsked = 600

// The tuning of the training profile. Residuals are relative: 0.1 is ten percent.
const (
	warmSamples   = 24            // of a new series before it is judged
	relearn       = 10            // samples after a told change of workload before it is judged again
	guardSamples  = 3             // after a change of phase, neither judged nor learnt: pipelines refill
	guardSibling  = 2 * lateSteps // after a step at which siblings changed their work
	ringSize      = 8             // samples whose median starts a baseline
	clip          = 0.3           // of one residual in the evidence
	fastSeconds   = 2.0           // time constant of the fast evidence …
	fastLeast     = 8             // … and the least samples it spans
	slowSeconds   = 8.0
	slowLeast     = 16
	baseSeconds   = 25.0  // time constant of the baseline
	baseSibling   = 120.0 // … against siblings, whose profile has the trends
	baseLeast     = 60
	scaleFloor    = 0.005 // of the level
	farthest      = 1e30  // values that are no ratios and lie beyond are taken as this
	huber         = 3     // scales that one sample may pull by
	blockSeconds  = 2.0   // of the tail model
	blockLeast    = 8     // samples
	leanLeast     = 0.03  // between both evidences: something began
	onsetLeast    = 0.02  // evidence below this, or what the series often shows, has not begun to rise
	leanEach      = 0.08
	leanRow       = 5 // samples in a row
	carryMost     = 2.0
	carryRow      = 3
	carryLeast    = 0.08 // a displacement of so much, and of carryScales, is a fault that crosses a told change
	carryScales   = 2.0
	backLeast     = 0.05 // off the level before an accepted one, and backShare of the way to it: it is back
	backShare     = 0.25
	offMost       = 0.06  // off the baseline at the end of a finding: it is learnt anew
	acceptLeast   = 16.0  // s until a level is accepted …
	acceptUntold  = 8.0   // … and of one that nobody told of: it is information, and what follows must not hide behind it
	levelMost     = 0.025 // between the last values and all of a finding: it is a level
	sameLevel     = 0.04
	waitSamples   = 24   // after the onset: so late may a change be announced, …
	waitSeconds   = 5.0  // … at most, a third of the time that a finding must last to act
	sameShare     = 0.25 // … or of the displacement: the level stayed the same
	lateSamples   = 32   // of a new workload: so late may its level come. What begins within them passes for it, so they are few
	mostOfRing    = 5    // of eight samples
	closeSamples  = 3    // in a row within the band that end a finding
	gapIntervals  = 5    // and gapSeconds: a longer silence restarts the evidence
	gapSeconds    = 60.0
	stallRatio    = 3.0 // a value and an interval that many times the expected …
	stallSeconds  = 1.5 // … and at least so much longer are a stall
	flatSamples   = 120 // equal values in a row, and flatTimes the longest such run before
	flatTimes     = 20
	flatSeconds   = 30.0
	floorFast     = 0.085 // practical floor of a finding at rates of floorRate and below
	floorSlow     = 0.07
	floorSibling  = 0.018 // slow evidence against a step-aligned profile
	noiseScales   = 5.0
	floorRate     = 0.1 // onsets per series-hour: from here to floorFree the floor falls to nothing
	floorFree     = 4.0
	absentPeriods = 3
)

var stallLog = math.Log(stallRatio)

// floors are the least effects that open a finding: an operator who asks for few onsets asks for ones that matter.
func (c *Config) floorShare() float64 {
	if c.Profile == Facility {
		return clampTo(math.Log(facFree/c.Asked)/math.Log(facFree/AskedShipped), 0, 1)
	}
	return math.Min(1, math.Max(0, math.Log(floorFree/c.Asked)/math.Log(floorFree/floorRate)))
}
