package anomaly

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
	"unsafe"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/detector/series"
	"github.com/pitcrew/pitcrew/detector/statement"
)

// Options of an engine. Zero fields take the defaults.
type Options struct {
	Cluster, Node, BootID string

	Asked       float64 // false onsets per series-hour, default series.AskedShipped
	MaxSeries   int     // default 4096
	MaxContexts int     // of the facility profile, default 64
}

func (o *Options) fill() {
	o.MaxSeries = cmp.Or(o.MaxSeries, 4096)
	o.MaxContexts = cmp.Or(o.MaxContexts, 64)
	o.Asked = cmp.Or(o.Asked, series.AskedShipped)
}

const (
	maxBatch   = 1 << 16          // samples of one batch; beyond it they are counted and dropped
	ahead      = 10 * time.Second // of the node's clock: a sample that claims more is of another clock
	stepBack   = 10 * time.Second // and more, with the node's own clock: that was set back
	stepAhead  = time.Minute      // … or ahead, or the node slept
	settle     = 30 * time.Second // after a start, a clock's step or a new attempt nothing is called absent
	sweepEvery = time.Second
	thin       = 900 * time.Millisecond
	firstOnes  = 8 // samples of a series whose interval chooses its profile
)

// Counts of what an engine did. Gauges are of the moment.
type Counts struct {
	Samples, Unknown, Malformed, NotANumber, Late, Refused, Evicted, Stale int64
	ClockSteps, Muted, Suppressed                                          int64
	Series, UnknownSeries, Judgeable, Entities, Open, Bytes                int64 // gauges; Judgeable: series if every signal were said
}

// SignalCounts are of one signal of the catalogue.
type SignalCounts struct {
	Signal string
	Onsets int64   // of findings, in either direction
	Asked  float64 // onsets that the asked rate would make by chance in the time that was judged
}

type sample struct {
	slot uint32
	t    int64
	v    float64
}

// Engine judges one node.
type Engine struct {
	o     Options
	now   int64 // the latest sample's time, on a clock that never goes back; ns
	shift int64 // from the node's clock to that one
	wall  time.Time
	quiet int64 // until then nothing is absent

	engines [profiles]*series.Engine
	freed   [profiles][]series.ID
	ents    population
	gpuRank map[string]*entity // GPU → the rank that runs on it
	tracks  []*track           // by slot; nil: free
	free    []uint32
	batch   []sample
	swept   int64
	full    int64     // no room before then: everything held is alive
	heard   []*entity // in this batch
	turned  bool      // someone was turned away in this batch

	reports     []*report // open, in order of their opening
	statements  []statement.Statement
	recheck     bool
	heardPeople bool      // Say was called
	touched     []*entity // whose findings changed in this batch
	infoTokens  float64
	infoAt      int64
	changed     bool // since the last Snapshot, in what is open

	counts Counts
	onsets [rowsMost]int64
	judged [rowsMost]float64 // series-seconds
	out    []finding.Finding
}

const (
	unchosen = iota
	training
	facility
	profiles
)

// New makes an engine.
func New(o Options) (*Engine, error) {
	o.fill()
	ents, err := newPopulation(o.MaxSeries)
	if err != nil {
		return nil, fmt.Errorf("anomalies: %w", err)
	}
	e := &Engine{o: o, ents: ents, gpuRank: map[string]*entity{}, infoTokens: infoBurst}
	return e, e.fresh()
}

// fresh gives the engine empty series engines.
func (e *Engine) fresh() (err error) {
	for i, p := range map[int]series.Profile{training: series.Training, facility: series.Facility} {
		e.engines[i], err = series.New(series.Config{Profile: p, Asked: e.o.Asked, MaxSeries: e.o.MaxSeries, MaxContext: e.o.MaxContexts})
		if err != nil {
			return fmt.Errorf("anomalies: %w", err)
		}
		e.freed[i] = nil
	}
	return nil
}

// Put takes in one value of a metric that Lookup knows. It is judged by End. t is Unix time in ns by the node's clock.
func (e *Engine) Put(m *Metric, l Labels, t int64, v float64) {
	k, ok := l.key(m.About)
	if !ok || t <= 0 {
		e.counts.Malformed++
		return
	}
	if len(e.batch)+len(m.rows) > maxBatch {
		e.counts.Refused++
		return
	}
	var en *entity
	for _, r := range m.rows {
		s := &Catalogue[r]
		if s.Attr != "" && s.Value != l.Value {
			continue
		}
		if en == nil {
			if en = e.entity(k, &l); en == nil {
				return
			}
		}
		if s.role != noRole {
			en.tell(s.role, v)
		}
		if s.Name == "" {
			continue
		}
		slot, ok := e.slot(en, r)
		if !ok {
			e.counts.Refused++
			continue
		}
		if s.gate == perEvent {
			if !en.fresh {
				continue
			}
			en.fresh = false
		}
		if s.About == Rank && s.gate == stepping && t+e.shift-e.tracks[slot].t < int64(thin) && t+e.shift > e.tracks[slot].t {
			continue // a ring's state is read ten times a second and changes more rarely
		}
		e.batch = append(e.batch, sample{slot, t, v})
	}
}

// End judges what was put in since the last End, at the node's time now, and gives what changed.
func (e *Engine) End(now time.Time) []finding.Finding {
	e.wall = now
	e.clock()
	for _, en := range e.heard {
		en.seen, en.heard = e.now, false
	}
	e.heard = e.heard[:0]
	slices.SortStableFunc(e.batch, func(a, b sample) int {
		return cmp.Or(cmp.Compare(a.slot, b.slot), cmp.Compare(a.t, b.t))
	})
	for _, x := range e.batch {
		if tr := e.tracks[x.slot]; tr != nil {
			e.feed(tr, x.t, x.v)
		}
	}
	e.batch = e.batch[:0]
	if e.now-e.swept >= int64(sweepEvery) {
		e.swept = e.now
		e.absences()
		e.sweep()
	}
	e.compounds()
	e.speak()
	out := e.out
	e.out = nil
	slices.SortStableFunc(out, func(a, b finding.Finding) int { return cmp.Compare(a.Key, b.Key) }) // the same after a restart
	return out
}

// clock puts the batch on the engine's clock, which never goes back. Where the node's own clock agrees with samples that lie
// before those of earlier batches, that clock was set back; where it does not, they are late.
func (e *Engine) clock() {
	wall := e.wall.UnixNano()
	kept, newest := e.batch[:0], int64(0)
	for _, x := range e.batch {
		if x.t > wall+int64(ahead) {
			e.counts.Malformed++
			continue
		}
		newest = max(newest, x.t)
		kept = append(kept, x)
	}
	e.batch = kept
	if newest == 0 && e.turned { // time goes on for those who were turned away
		newest = wall
	}
	if e.turned = false; newest == 0 {
		return
	}
	first := e.now == 0
	at := newest + e.shift
	if honest := wall-newest < int64(stepBack); !first && honest {
		switch d := at - e.now; {
		case d < -int64(stepBack):
			e.shift += -d + int64(time.Millisecond)
			e.counts.ClockSteps++
			e.quiet = e.now + int64(settle)
		case d > int64(stepAhead):
			e.counts.ClockSteps++
			e.quiet = at + int64(settle)
			for en := range e.ents.all { // nobody was silent for that long
				en.seen += d
			}
		}
	}
	if first {
		e.quiet = at + int64(settle)
	}
	for i := range e.batch {
		e.batch[i].t += e.shift
	}
	e.now = max(e.now, newest+e.shift)
}

// at is a time of the engine's clock on the node's.
func (e *Engine) at(t int64) time.Time { return time.Unix(0, t-e.shift).UTC() }

// feed judges one value.
func (e *Engine) feed(tr *track, t int64, v float64) {
	s := &Catalogue[tr.row]
	e.counts.Samples++
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		e.counts.NotANumber++
		return
	case tr.n > 0 && t <= tr.t:
		e.counts.Late++
		return
	}
	dt := float64(t-tr.t) * 1e-9
	val, known := tr.take(s, t, v, dt)
	phase, told := tr.ent.phaseOf(s, e.now)
	work := tr.ent.workload()
	if s.About > Rank {
		phase, told, work = e.shared()
	}
	switch {
	case s.gate == perStep && s.Family == Pace && s.Bad == High:
		tr.ent.stepped(t, v)
	case s.role == roleWork:
		tr.ent.worked(v * e.took(tr.ent, t))
	}
	tr.back(e, s, val)
	switch {
	case s.Certain != 0:
		e.certain(tr, s, t, val, phase)
		return
	case tr.profile == unchosen:
		e.choose(tr, phase, told, work)
		return
	}
	e.observe(tr, s, series.Sample{T: t, V: v, Phase: phase, Told: told, Workload: work}, val, dt, known)
}

// took is how long the step that ended at t took; 0: unknown. Rates of a step may come some steps after its duration.
func (e *Engine) took(en *entity, t int64) float64 {
	if slot := en.slots[rowStepTime]; slot != 0 {
		for _, x := range e.tracks[slot-1].ring {
			if x.t == t {
				return x.v
			}
		}
	}
	return 0
}

func (e *Engine) observe(tr *track, s *Signal, x series.Sample, val, dt float64, known bool) {
	se := e.engines[tr.profile]
	if s.gate == perStep && tr.mark != tr.ent.mark && x.Phase != series.Warmup { // the loop was elsewhere since the last step
		tr.mark = tr.ent.mark
		se.Observe(tr.sid, series.Sample{T: x.T, V: math.NaN(), Phase: tr.ent.elsewhere, Told: x.Told})
	}
	v := se.Observe(tr.sid, x)
	if tr.known = v.Known; v.Known {
		e.judged[tr.row] += min(dt, 60)
	} else {
		e.counts.Unknown++
	}
	switch v.Change {
	case series.Opened:
		e.opened(tr, s, se.Finding(tr.sid), x)
	case series.Cleared:
		e.cleared(tr, x.T)
	case series.Accepted:
		e.accepted(tr, x.T)
	}
	if tr.m != nil && known {
		e.follow(tr, x.T, val, v.Score)
	}
}

// choose gives a series its profile when its interval is known. The samples until then are unknown either way.
func (e *Engine) choose(tr *track, phase uint8, told bool, work uint32) {
	e.counts.Unknown++
	if tr.n < firstOnes {
		return
	}
	p := training
	if series.ProfileFor(tr.middleInterval()) == series.Facility {
		p = facility
	}
	if !tr.enter(e, p) {
		return
	}
	for _, x := range tr.recent(firstOnes) {
		e.engines[p].Observe(tr.sid, series.Sample{T: x.t, V: x.raw, Phase: phase, Told: told, Workload: work})
	}
}

// Counts reports what happened so far.
func (e *Engine) Counts() Counts {
	c := e.counts
	for _, tr := range e.tracks {
		if tr == nil {
			continue
		}
		c.Series++
		if !tr.known && Catalogue[tr.row].Certain == 0 {
			c.UnknownSeries++
		}
	}
	for en := range e.ents.all {
		if en.key.about <= Rank {
			c.Judgeable += signalsOf[en.key.about]
			continue
		}
		for _, slot := range en.slots { // which counters a port has is the adapter's matter
			if slot != 0 {
				c.Judgeable++
			}
		}
	}
	c.Entities, c.Open = int64(e.ents.len()), int64(len(e.reports))
	c.Bytes = c.Series*int64(unsafe.Sizeof(track{})) + c.Entities*int64(unsafe.Sizeof(entity{}))
	for _, se := range e.engines[training:] {
		c.Bytes += int64(se.Len()) * int64(series.StateSize)
	}
	return c
}

var signalsOf = func() (n [Port + 1]int64) {
	for _, s := range Catalogue {
		if s.Name != "" {
			n[s.About]++
		}
	}
	return n
}()

// Signals reports onsets seen and asked for, by signal.
func (e *Engine) Signals() []SignalCounts {
	out := make([]SignalCounts, 0, len(Catalogue))
	for i := range Catalogue {
		if s := &Catalogue[i]; s.Name != "" && s.Certain == 0 && (e.judged[i] > 0 || e.onsets[i] > 0) {
			out = append(out, SignalCounts{s.Name, e.onsets[i], e.o.Asked * e.judged[i] / 3600})
		}
	}
	return out
}
