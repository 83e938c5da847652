package job

import (
	"container/list"
	"math"
	"time"

	"github.com/pitcrew/pitcrew/detector/class"
	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/detector/statement"
	"github.com/pitcrew/pitcrew/event"
)

// Options of an engine. The zero value of a limit means its default.
type Options struct {
	Cluster string
	Gateway string // the name under which the engine's findings are published

	MaxJobs  int // attempts of jobs
	MaxRanks int // of all of them together
	// Absent is how long a rank must be silent at least, while its peers go on, to be absent; never less than three rounds. An agent
	// that is being replaced is silent for some seconds.
	Absent time.Duration
	// Forget is after how long of silence an attempt is over.
	Forget time.Duration
	// Classes remember what runs of one workload took; nil: runs are not compared. The engine is its one user.
	Classes *class.Store
}

// Defaults of Options.
const (
	DefaultMaxJobs  = 512
	DefaultMaxRanks = 1 << 16
	DefaultAbsent   = 15 * time.Second
	DefaultForget   = 5 * time.Minute
)

func (o *Options) fill() {
	if o.MaxJobs <= 0 {
		o.MaxJobs = DefaultMaxJobs
	}
	if o.MaxRanks <= 0 {
		o.MaxRanks = DefaultMaxRanks
	}
	if o.Absent <= 0 {
		o.Absent = DefaultAbsent
	}
	if o.Forget <= 0 {
		o.Forget = DefaultForget
	}
}

// Counts of an engine: what stands now, and what happened since it was made.
type Counts struct {
	Jobs, Ranks, Judged int64 // attempts and ranks held now, and attempts of them that are being judged
	Open                int64 // findings

	Samples   int64
	Rounds    int64 // closed
	Partial   int64 // of them, without a value of some rank that was there before
	Findings  int64
	Brief     int64 // findings that were over before they were said
	Malformed int64 // samples that name no rank or step
	Late      int64 // values of a round that was closed
	Unjoined  int64 // values whose step is not known
	Contested int64 // samples of a rank that another pod claims to be
	Evicted   int64 // attempts dropped at a bound
	Refused   int64 // samples of ranks beyond the bound
	Restarts  int64 // attempts begun anew under their old number

	Standing     int64 // findings that were told, or would have been were they not muted, and have not ended
	Muted        int64 // times that one was held back
	Accepted     int64 // of them, whose level is the baseline now
	Unacceptable int64 // acceptances of what has no level
	Spoken       int64 // times that people said something

	Classed      int64 // attempts that are runs of a class now
	Classes      int64 // held now, of the …
	ClassRuns    int64 // … runs that are remembered now
	ClassEvicted int64 // of them, dropped at a bound
	ClassSteps   int64 // that they were taught
	Comparisons  int64 // of two classes
	Slower       int64 // findings open about classes
	Unclear      int64 // times that a job's ranks told of no workload that can be read, or of several
}

type key struct {
	job     string
	attempt int
}

// Engine compares the ranks of all jobs that it is given.
type Engine struct {
	o      Options
	jobs   map[key]*list.Element // of *attempt
	recent *list.List            // the one heard of last in front
	ranks  int
	ticked time.Time
	counts Counts
	out    []finding.Finding

	reports     map[*report]bool // of all that stands
	statements  []statement.Statement
	recheck     bool      // what stands is to be brought to them
	nextEnd     time.Time // of a mute
	heardPeople bool      // Say was called

	classes *classes // nil: runs are not compared
}

// New makes an engine.
func New(o Options) *Engine {
	o.fill()
	e := &Engine{o: o, jobs: map[key]*list.Element{}, recent: list.New(), reports: map[*report]bool{}}
	if o.Classes != nil {
		e.classes = newClasses(&o)
	}
	return e
}

// Counts reports what stands and what happened so far.
func (e *Engine) Counts() Counts {
	c := e.counts
	c.Jobs, c.Ranks, c.Standing = int64(len(e.jobs)), int64(e.ranks), int64(len(e.reports))
	for el := e.recent.Front(); el != nil; el = el.Next() {
		a := el.Value.(*attempt)
		if a.judged() {
			c.Judged++
		}
		c.Open += int64(a.open)
		if a.class.on {
			c.Classed++
		}
	}
	if e.classes != nil {
		n := e.o.Classes.Counts()
		c.Classes, c.ClassRuns, c.ClassEvicted, c.ClassSteps, c.Slower = n.Classes, n.Runs, n.Evicted, n.Observed, int64(len(e.classes.slower))
	}
	return c
}

// Add takes in one step of one rank that arrived now, and gives what is found by it.
func (e *Engine) Add(now time.Time, s Sample) []finding.Finding {
	e.counts.Samples++
	if !s.sound() {
		e.counts.Malformed++
		return e.take()
	}
	if s.Job == "" {
		s.Job = "pod/" + s.Target.PodUID
	}
	k := key{job: s.Job}
	if s.Target.Attempt != nil {
		k.attempt = *s.Target.Attempt
	}
	e.attempt(now, k).add(now, &s)
	return e.take()
}

func (e *Engine) attempt(now time.Time, k key) *attempt {
	el, ok := e.jobs[k]
	if !ok {
		for len(e.jobs) >= e.o.MaxJobs {
			e.counts.Evicted++
			e.drop(now, e.victim(), "too many jobs at once")
		}
		el = e.recent.PushFront(newAttempt(e, k, now))
		e.jobs[k] = el
	}
	e.recent.MoveToFront(el)
	a := el.Value.(*attempt)
	a.heard = now
	return a
}

// victim is whom a bound drops: the attempt heard of least recently of those that are not judged, else of all. So names that
// somebody makes up push out each other first.
func (e *Engine) victim() *list.Element {
	for el := e.recent.Back(); el != nil; el = el.Prev() {
		if !el.Value.(*attempt).judged() {
			return el
		}
	}
	return e.recent.Back()
}

func (e *Engine) drop(now time.Time, el *list.Element, why string) {
	a := e.recent.Remove(el).(*attempt)
	a.end(now, why)
	e.ranks -= len(a.members)
	delete(e.jobs, a.key)
}

// Tick lets time pass: rounds that waited long enough are closed, silent ranks become absent, silent jobs are forgotten, what people
// said takes effect. Call it about once a second.
func (e *Engine) Tick(now time.Time) []finding.Finding {
	e.ticked = now
	for el := e.recent.Back(); el != nil; {
		a, prev := el.Value.(*attempt), el.Prev()
		switch {
		case now.Sub(a.heard) >= e.o.Forget:
			e.drop(now, el, "nothing is heard of the attempt any more")
		default:
			a.tick(now)
		}
		el = prev
	}
	if e.classes != nil {
		e.forgetSlower(now)
	}
	e.listen(now)
	return e.take()
}

func (e *Engine) take() []finding.Finding {
	out := e.out
	e.out = nil
	for i := range out {
		if !out[i].ConditionOnly {
			e.counts.Findings++
		}
	}
	return out
}

func num(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

func jobOf(k key) *event.Job {
	if len(k.job) > 4 && k.job[:4] == "pod/" {
		return nil
	}
	return &event.Job{UID: k.job}
}
