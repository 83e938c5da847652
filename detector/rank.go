package detector

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

// Sections of training, as the hook's ring numbers them (docs/hook-protocol.md).
const (
	sectionSetup = iota
	sectionStep
	sectionCheckpoint
	sectionEval
	sectionHeld
	sectionOut
	sectionOther
	sections
)

var sectionNames = [sections]string{"setup", "step", "checkpoint", "eval", "held", "out", "other"}

const (
	warmSteps    = 5                // durations before a limit is learnt from them
	warmSections = 3                // times a section was left before its limit is learnt
	sectionFloor = 10 * time.Second // least learnt limit of a checkpoint, evaluation or other section
	outliers     = 3                // durations beyond the limit in a row before they count as the new normal
	rankForget   = 2 * time.Minute  // a rank not heard of for so long is gone with its pod
	sweepEvery   = 10 * time.Second
	afterlife    = 500 * time.Millisecond // of a heartbeat's record past the process
	longAgo      = 1e9                    // seconds; an older age is as old
	abortCode    = 75                     // the hook's exit code for leaving an attempt when told to, or by its deadline
	fencedCode   = 76                     // the hook's exit code after a later attempt has claimed the checkpoint directory
)

// Rank is what the ring of one rank showed at one time. NaN and -1 are unknown.
type Rank struct {
	Target       event.Target // pod, rank, local rank, world size, attempt
	Time         time.Time
	Step         int64
	StepAge      float64   // seconds since the last step ended
	Durations    []float64 // of steps that ended since the sample before, seconds; of the first sample, steps before it
	HeartbeatAge float64   // seconds
	Section      int
}

// Exit says that a rank's process ended, or with Attached that one began.
type Exit struct {
	Target   event.Target
	Time     time.Time
	Attached bool
	Clean    bool
	Told     bool   // killed by its launcher, as that was told to: nobody's fault
	PID      int    // with Start and the boot it tells the process from every other
	Start    string // when the process began, in any spelling; empty: unknown
	Code     int    // -1: unknown
	Signal   int
	Error    string
	Step     int64
	History  bool // so far back that it is no news: the condition alone
}

type rankKey struct {
	pod  string
	rank int
}

// pod is what its ranks have in common.
type pod struct {
	attempt int // the newest of any rank
	seen    time.Time
}

type rank struct {
	dead, hung, stalled, desync string // keys of its conditions
	target                      event.Target
	attempt                     int
	gone                        bool // its process ended
	goneAt                      time.Time
	first                       bool // no sample of this attempt yet
	seen                        time.Time

	step    int64
	stepped int // above 0 once a step was seen to end in this attempt
	steps   sketch
	over    int

	section   int
	since     time.Time // of the section
	sinceSure bool      // its entry was seen
	inSection [sections]*sketch
}

func (e *Engine) rank(t event.Target) (*rank, bool) {
	if t.PodUID == "" || t.Rank == nil {
		e.counts.Malformed++
		return nil, false
	}
	k := rankKey{t.PodUID, *t.Rank}
	r, ok := e.ranks.get(k)
	if !ok {
		r = &rank{first: true, attempt: -1, step: -1, dead: k.key("dead"), hung: k.key("hung"), stalled: k.key("stalled"), desync: k.key("desync")}
		e.ranks.put(k, r)
	}
	attempt := 0
	if t.Attempt != nil {
		attempt = *t.Attempt
	}
	p, ok := e.pods.get(t.PodUID)
	if !ok {
		p = &pod{}
		e.pods.put(t.PodUID, p)
	}
	p.attempt = max(p.attempt, attempt)
	switch {
	case attempt < p.attempt: // one attempt of a pod runs at a time, whatever numbers its ranks have in it
		e.counts.Stale++
		return nil, false
	case attempt > r.attempt:
		r.attempt = attempt
		r.begin()
	}
	r.target, r.seen, p.seen = t, e.now, e.now
	return r, true
}

// begin is a new process in the rank's place. What was learnt of durations stays; the first step is set-up again.
func (r *rank) begin() {
	r.gone, r.first, r.step, r.stepped, r.over = false, true, -1, 0, 0
}

func (k rankKey) key(name string) string {
	return "rank/" + name + " pod/" + k.pod + "/rank/" + strconv.Itoa(k.rank)
}

// Rank judges one sample of a rank.
func (e *Engine) Rank(s Rank) []finding.Finding {
	if s.Step < 0 && s.Section < 0 && math.IsNaN(s.StepAge) && math.IsNaN(s.HeartbeatAge) {
		e.counts.Samples++ // by the second door (docs/training.md), where anybody's name may be given: nothing of now is said, so nothing can be judged
		return nil
	}
	e.tick(s.Time)
	if r, ok := e.rank(s.Target); ok && e.lives(r, s) {
		e.judgeRank(r, s)
	}
	return e.take()
}

// lives reports whether the sample is of a running process. The ring of a dead rank stays readable; a beat well after the end
// means that a new process has taken its place.
func (e *Engine) lives(r *rank, s Rank) bool {
	if have, ok := e.open.get(r.dead); ok && !r.gone && r.first {
		if a := have.Event.Data.Target.Attempt; a != nil && *a == r.attempt {
			r.gone, r.goneAt = true, have.Event.Time
		}
	}
	if r.gone && s.Time.Add(-seconds(s.HeartbeatAge)).After(r.goneAt.Add(afterlife)) {
		r.begin()
	}
	return !r.gone
}

func (e *Engine) judgeRank(r *rank, s Rank) {
	if s.Section < 0 || s.Section >= sections {
		s.Section = sectionOther
	}
	r.enter(s)
	for _, d := range s.Durations {
		e.learnStep(r, d)
		r.stepped++
	}
	if !r.first && s.Step > r.step {
		r.stepped++
		why := event.Evidence{Signal: semconv.TrainStep, Unit: "{step}", Value: num(float64(s.Step)), Baseline: "self"}
		for _, key := range []string{r.dead, r.hung, r.stalled, r.desync} {
			e.end(key, why)
		}
	}
	r.first = false
	r.step = max(r.step, s.Step)

	limit, learnt := e.limit(r, s.Section)
	age := math.Min(s.StepAge, s.Time.Sub(r.since).Seconds())
	late := age > limit
	beat := e.o.HeartbeatLimit.Seconds()
	s.HeartbeatAge = math.Min(s.HeartbeatAge, longAgo) // an event carries no infinity
	switch {
	case late && s.HeartbeatAge > beat:
		e.begin(onset{
			key: r.hung, target: s.Target, cause: event.Cause{Kind: "rank", Name: "hung"}, severity: event.Critical, at: s.Time,
			since: s.Time.Add(-seconds(min(age, s.HeartbeatAge))), // its last sign of life: ages do not step with the clock
			evidence: event.Evidence{
				Signal: semconv.TrainHeartbeatAge, Unit: "s", Value: num(s.HeartbeatAge), Upper: num(beat), WindowS: beat, Baseline: "table",
				Raw: fmt.Sprintf("step %d of section %s is %.2f s old, limit %.2f s", s.Step, sectionNames[s.Section], age, limit),
			},
		})
		return
	case s.HeartbeatAge <= beat:
		e.end(r.hung, event.Evidence{Signal: semconv.TrainHeartbeatAge, Unit: "s", Value: num(s.HeartbeatAge), Upper: num(beat), Baseline: "table"})
	}
	if !late {
		return
	}
	if _, hung := e.open.get(r.hung); hung {
		return
	}
	baseline, expected := "table", (*float64)(nil)
	if learnt > 0 {
		baseline, expected = "self", num(learnt)
	}
	e.begin(onset{
		key: r.stalled, typ: event.Anomaly, target: s.Target, cause: event.Cause{Kind: "rank", Name: "stalled"}, severity: event.Warning, at: s.Time,
		evidence: event.Evidence{
			Signal: semconv.TrainStepAge, Unit: "s", Value: num(age), Expected: expected, Upper: num(limit), WindowS: limit, Baseline: baseline,
			Raw: fmt.Sprintf("step %d, section %s", s.Step, sectionNames[s.Section]),
		},
	})
}

// enter follows the sections. A checkpoint between two steps must not count as the age of the step after it.
func (r *rank) enter(s Rank) {
	switch {
	case r.first || r.since.IsZero():
		r.section, r.sinceSure = s.Section, false
		r.since = s.Time.Add(-seconds(s.StepAge))
	case s.Section != r.section:
		if r.sinceSure && r.section != sectionStep {
			if r.inSection[r.section] == nil {
				r.inSection[r.section] = &sketch{}
			}
			r.inSection[r.section].add(s.Time.Sub(r.since).Seconds())
		}
		r.section, r.since, r.sinceSure = s.Section, s.Time, true
	}
}

// learnStep keeps a stall from becoming the norm: a duration beyond the limit counts only when several come in a row.
func (e *Engine) learnStep(r *rank, duration float64) {
	if limit, learnt := e.limit(r, sectionStep); learnt > 0 && duration > limit {
		if r.over++; r.over < outliers {
			return
		}
	} else {
		r.over = 0
	}
	r.steps.add(duration)
}

// limit is how old a step may get in a section, in seconds, and the p99 from which that was learnt (0: not learnt yet).
func (e *Engine) limit(r *rank, section int) (limit, learnt float64) {
	setup := e.o.SetupLimit.Seconds()
	switch section {
	case sectionHeld, sectionOut:
		return math.Inf(1), 0
	case sectionSetup:
		return setup, 0
	case sectionStep:
		if r.steps.n < warmSteps || r.stepped < 1 {
			return setup, 0
		}
		p := r.steps.quantile(0.99)
		return math.Max(e.o.StallFloor.Seconds(), e.o.StallFactor*p), p
	default:
		s := r.inSection[section]
		if s == nil || s.n < warmSections {
			return setup, 0
		}
		p := s.quantile(0.99)
		return math.Max(sectionFloor.Seconds(), e.o.StallFactor*p), p
	}
}

// Exit judges the end of a rank's process, or takes note of a new one.
func (e *Engine) Exit(x Exit) []finding.Finding {
	e.tick(x.Time)
	if r, ok := e.rank(x.Target); ok {
		if x.Attached {
			if r.gone {
				r.begin()
			}
		} else {
			e.judgeExit(r, x)
		}
	}
	return e.take()
}

func (e *Engine) judgeExit(r *rank, x Exit) {
	if r.gone {
		return
	}
	r.gone, r.goneAt = true, x.Time
	for _, key := range []string{r.hung, r.stalled, r.desync} { // superseded by the exit: neither stands, neither recovered
		e.forget(key)
	}
	if x.Clean || x.Told || x.Code == abortCode || x.Code == fencedCode {
		return
	}
	ev := event.Evidence{Signal: semconv.EventTrainRankExited, Baseline: "table", Raw: exitWords(x)}
	e.begin(onset{
		key: r.dead, target: x.Target, cause: event.Cause{Kind: "rank", Name: "dead"}, severity: event.Fatal, advice: "restart-app",
		evidence: ev, at: x.Time, silent: x.History, id: x.id(e.o.BootID, r),
	})
}

// id names the process and not the time at which its end was seen: an agent that finds the same dead rank again says the same event.
func (x Exit) id(boot string, r *rank) []string {
	process := []string{strconv.Itoa(x.PID), x.Start}
	if x.PID == 0 && x.Start == "" {
		process = []string{strconv.FormatInt(x.Time.UnixNano(), 10)}
	}
	return append([]string{boot, r.dead, strconv.Itoa(r.attempt)}, process...)
}

func exitWords(x Exit) string {
	how := "socket closed without bye"
	switch {
	case x.Signal > 0:
		how = fmt.Sprintf("signal %d", x.Signal)
	case x.Code > 0:
		how = fmt.Sprintf("exit code %d", x.Code)
	}
	if x.Error != "" {
		how += ": " + x.Error
	}
	return fmt.Sprintf("%s after step %d", how, x.Step)
}

// sweep forgets ranks of which nothing was heard for long, with what is open about them.
func (e *Engine) sweep() {
	first := e.swept.IsZero()
	if !first && e.now.Sub(e.swept) < sweepEvery {
		return
	}
	e.swept = e.now
	e.ranks.each(func(k rankKey, r *rank) {
		if e.now.Sub(r.seen) >= rankForget {
			e.ranks.drop(k)
		}
	})
	e.pods.each(func(uid string, p *pod) {
		if e.now.Sub(p.seen) >= rankForget {
			e.pods.drop(uid)
		}
	})
	e.open.each(func(key string, o *finding.Open) {
		if e.fallsQuiet(key, o) {
			return
		}
		t := o.Event.Data.Target
		if k := o.Event.Data.Cause.Kind; k != "rank" && k != "torch" || t.Rank == nil {
			return
		}
		if first { // what was restored counts as heard of now: its rank may not have been read yet
			o.Seen = e.now
		}
		if _, known := e.ranks.m[rankKey{t.PodUID, *t.Rank}]; !known && e.now.Sub(o.Seen) >= rankForget {
			e.forget(key)
		}
	})
}

func seconds(s float64) time.Duration {
	if math.IsNaN(s) || s < 0 {
		return 0
	}
	return time.Duration(min(s, longAgo) * float64(time.Second))
}
