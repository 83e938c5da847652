package detector

import (
	"strconv"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/detector/verdict"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/rules"
)

// Options of an engine. The zero value of a limit means its default.
type Options struct {
	Cluster, Node, BootID string
	Rules                 *rules.Tables // nil: every code is unknown

	StallFloor     time.Duration // least limit of a step's age, default 1.5 s
	StallFactor    float64       // limit = factor × p99 of durations, default 5
	SetupLimit     time.Duration // while nothing is known, default 10 min
	HeartbeatLimit time.Duration // default 1 s: five beats of 200 ms
	MaxSeries      int           // ranks, GPU series and open findings each, default 4096
}

// Defaults of Options.
const (
	DefaultStallFloor     = 1500 * time.Millisecond
	DefaultStallFactor    = 5
	DefaultSetupLimit     = 10 * time.Minute
	DefaultHeartbeatLimit = time.Second
	DefaultMaxSeries      = 4096
)

func (o *Options) fill() {
	def(&o.Rules, &rules.Tables{})
	def(&o.StallFloor, DefaultStallFloor)
	def(&o.StallFactor, DefaultStallFactor)
	def(&o.SetupLimit, DefaultSetupLimit)
	def(&o.HeartbeatLimit, DefaultHeartbeatLimit)
	def(&o.MaxSeries, DefaultMaxSeries)
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Counts of what the engine did without saying so in a finding.
type Counts struct {
	Samples    int64 // values and lines judged
	Findings   int64
	History    int64 // kernel lines of before, not published
	Echoes     int64 // kernel lines and Xids of DCGM that only follow from another, or say what was said
	Trifles    int64 // kernel lines without a code that the table calls info
	Suppressed int64 // lines that did not fit into a burst full of worse ones
	Malformed  int64 // records without what identifies them
	Stale      int64 // samples of a superseded attempt
	Evicted    int64 // series or findings dropped at the bound
}

// Engine judges one node.
type Engine struct {
	o        Options
	now      time.Time // the latest time of any sample
	swept    time.Time
	open     *lru[string, *finding.Open]
	ranks    *lru[rankKey, *rank]
	pods     *lru[string, *pod]
	gangs    *lru[gangKey, map[int]Collective]
	series   *lru[string, *gpuSeries]
	gpus     *lru[string, *gpu]
	carriers *lru[string, *carrier]
	touched  []*carrier // in this batch
	risen    []rise
	bursts   *verdict.Bursts
	first    lineOfRecord // of the kernel log's record at hand
	xids     *lru[string, *xids]
	blind    bool // the kernel log cannot be read
	held     []Sighting
	status   time.Time // of the last status of a GPU; unlike now it goes back when the clock is set back
	makers   *lru[string, *gpuCount]
	batch    int64 // counts them; the first is 1
	counts   Counts
	out      []finding.Finding
}

// New makes an engine.
func New(o Options) *Engine {
	o.fill()
	e := &Engine{o: o, batch: 1}
	evicted := func() { e.counts.Evicted++ }
	e.open = newLRU[string, *finding.Open](o.MaxSeries, evicted)
	e.ranks = newLRU[rankKey, *rank](o.MaxSeries, evicted)
	e.pods = newLRU[string, *pod](o.MaxSeries, evicted)
	e.gangs = newLRU[gangKey, map[int]Collective](min(o.MaxSeries, maxGangs), evicted)
	e.series = newLRU[string, *gpuSeries](o.MaxSeries, evicted)
	e.gpus = newLRU[string, *gpu](o.MaxSeries, evicted)
	e.makers = newLRU[string, *gpuCount](maxMakers, evicted)
	e.carriers = newLRU[string, *carrier](min(o.MaxSeries, maxCarriers), evicted)
	e.bursts = verdict.NewBursts(o.Rules, nil)
	e.xids = newLRU[string, *xids](o.MaxSeries, evicted)
	return e
}

// Counts reports what happened so far.
func (e *Engine) Counts() Counts { return e.counts }

// take hands out what a call found.
func (e *Engine) take() []finding.Finding {
	out := e.out
	e.out = nil
	e.counts.Findings += int64(len(out))
	return out
}

func (e *Engine) tick(t time.Time) {
	e.counts.Samples++
	if t.After(e.now) {
		e.now = t
	}
}

// maxLine bounds the line that an event carries, in bytes: an event that is too large for the bus would be lost.
const maxLine = 8 << 10

// onset is a condition that begins.
type onset struct {
	key      string
	typ      event.Type
	target   event.Target
	cause    event.Cause
	severity event.Severity
	advice   string
	evidence event.Evidence
	at       time.Time // when it happened; part of the id
	since    time.Time // what it had begun by then; zero: with it
	source   string    // component; default detector
	id       []string  // identifies the occurrence; default: boot id, key and onset
	count    int
	silent   bool // known already: the condition only
	maker    string
}

// begin opens a finding unless its key is open. It reports whether it did.
func (e *Engine) begin(o onset) bool {
	if have, ok := e.open.get(o.key); ok {
		have.Seen = e.now
		return false
	}
	f := e.finding(o)
	e.open.put(o.key, &finding.Open{Key: o.key, BootID: e.o.BootID, Seen: e.now, Maker: o.maker, Event: f.Event})
	e.out = append(e.out, f)
	return true
}

func (e *Engine) finding(o onset) finding.Finding {
	def(&o.typ, event.Fault)
	def(&o.source, "detector")
	if o.since.IsZero() || o.since.After(o.at) {
		o.since = o.at
	}
	o.target.Cluster, o.target.Node = e.o.Cluster, e.o.Node
	o.evidence.Raw = cut(o.evidence.Raw, maxLine)
	src := event.Source(e.o.Cluster, e.o.Node, o.source)
	if o.id == nil {
		o.id = []string{e.o.BootID, o.key, strconv.FormatInt(o.at.UnixNano(), 10)}
	}
	return finding.Finding{
		Key: o.key, BootID: e.o.BootID, Active: true, ConditionOnly: o.silent,
		Event: event.Event{
			ID: event.NewID(src, o.id...), Source: src, Type: o.typ, Time: o.at,
			Data: event.Data{
				Target: o.target, Cause: o.cause, Severity: o.severity, Advice: o.advice, Evidence: o.evidence, Onset: o.since, Count: max(o.count, 1),
			},
		},
	}
}

// end closes a finding with a recovery. why is what was seen; it stands as the recovery's evidence.
func (e *Engine) end(key string, why event.Evidence) bool {
	have, ok := e.open.get(key)
	if !ok {
		return false
	}
	e.open.drop(key)
	r := have.Event
	r.ID = event.NewID(r.Source, "recovery", r.ID)
	r.Type, r.Time, r.Subject = event.Recovery, e.now, ""
	r.Data.Severity, r.Data.Advice, r.Data.Evidence, r.Data.Count = event.Info, "", why, 1
	e.out = append(e.out, finding.Finding{Event: r, Key: key, BootID: e.o.BootID})
	return true
}

// forget closes a finding of which nothing more will be heard, without calling that a recovery.
func (e *Engine) forget(key string) {
	if have, ok := e.open.get(key); ok {
		e.open.drop(key)
		e.out = append(e.out, finding.Finding{Event: have.Event, Key: key, BootID: e.o.BootID, ConditionOnly: true})
	}
}

// Snapshot lists the open findings that a new engine could not find again by itself, oldest first. Codes of the kernel log are
// not among them: their receiver reads the log again, and says them as history.
func (e *Engine) Snapshot() []finding.Open {
	out := []finding.Open{}
	log := event.Source(e.o.Cluster, e.o.Node, fromLog)
	e.open.each(func(_ string, o *finding.Open) {
		if kind := o.Event.Data.Cause.Kind; (kind == "xid" || kind == "sxid") && o.Event.Source == log {
			return
		}
		if o.Raw == nil {
			o.Raw, _ = event.Encode(o.Event)
		}
		out = append(out, *o)
	})
	return out
}

// Restore takes up what an earlier engine left open in this boot, so that a fault which lasts across a new agent stays one
// finding. It gives their conditions back to be set again: the earlier engine may have ended before it could. What cannot be
// read, or is of another boot, is left out.
func (e *Engine) Restore(open []finding.Open) []finding.Finding {
	for _, o := range open {
		ev, err := event.Decode(o.Raw)
		if err != nil || o.BootID != e.o.BootID || o.Key == "" {
			continue
		}
		o.Event = ev
		e.open.put(o.Key, &o)
		if code, err := strconv.Atoi(ev.Data.Cause.Code); err == nil && ev.Data.Cause.Kind == "xid" {
			e.remember(ev, code)
		}
		e.out = append(e.out, finding.Finding{Event: ev, Key: o.Key, BootID: o.BootID, Active: true, ConditionOnly: true})
	}
	return e.take()
}

// remember has a restored Xid stand for the lines that would repeat it.
func (e *Engine) remember(ev event.Event, code int) {
	t := ev.Data.Target
	e.xidsOf(t).note(code, ev.Data.Onset)
	at := verdict.Stamp{At: time.Duration(ev.Data.Onset.UnixNano()), Boot: e.o.BootID, History: true, Published: true}
	e.bursts.Add(&verdict.Line{Kind: verdict.Xid, Code: code, PCI: t.PCI, MIG: t.MIG, CodeOnly: true}, 1, at)
}

func num(v float64) *float64 { return &v }
