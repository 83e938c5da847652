package anomaly

import (
	"cmp"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/detector/series"
	"github.com/pitcrew/pitcrew/event"
)

const (
	ringSize    = 24  // last values of a series, to be shown around a finding
	knownLeast  = 24  // samples of a series before its silence means anything
	silence     = 3.0 // of its own intervals, and silentLeast: it is absent
	silentLeast = 3.0
	everyRate   = 0.05
	backRow     = 8 // values within the band that was expected, and backLeast …
	backLeast   = 10 * time.Second
	levelRate   = 1.0 / 8
)

type value struct {
	t   int64
	v   float64 // as judged: of a counter its rate
	raw float64
}

// track is one series: what is kept of it beside the core state of the series engine.
type track struct {
	ent     *entity
	m       *member // its finding, while it has one
	t       int64   // of the last sample, ns
	since   int64   // of the first
	n       uint32
	every   float32 // interval, s
	sid     series.ID
	mark    uint32
	row     row
	profile uint8
	run     int8 // of certain values in a row
	known   bool // its last sample was judged
	at      uint8
	ring    [ringSize]value
}

// slot gives the series of an entity's row, which is made when it is the first.
func (e *Engine) slot(en *entity, r row) (uint32, bool) {
	if s := en.slots[r]; s != 0 {
		return s - 1, true
	}
	if len(e.tracks)-len(e.free) >= e.o.MaxSeries {
		if !e.evict() || e.ents.of(en.key) != en {
			return 0, false
		}
	}
	tr := &track{ent: en, row: r}
	var slot uint32
	if n := len(e.free); n > 0 {
		slot, e.free = e.free[n-1], e.free[:n-1]
		e.tracks[slot] = tr
	} else {
		slot = uint32(len(e.tracks))
		e.tracks = append(e.tracks, tr)
	}
	en.slots[r] = slot + 1
	return slot, true
}

func (e *Engine) release(slot uint32) {
	tr := e.tracks[slot]
	if tr.profile != unchosen {
		e.engines[tr.profile].Reset(tr.sid, Catalogue[tr.row].Kind)
		e.freed[tr.profile] = append(e.freed[tr.profile], tr.sid)
	}
	e.tracks[slot] = nil
	e.free = append(e.free, slot)
}

// enter gives the series its place in a series engine.
func (tr *track) enter(e *Engine, profile int) bool {
	k := Catalogue[tr.row].Kind
	if n := len(e.freed[profile]); n > 0 {
		tr.sid = e.freed[profile][n-1]
		e.freed[profile] = e.freed[profile][:n-1]
		e.engines[profile].Reset(tr.sid, k)
	} else {
		id, err := e.engines[profile].Add(k)
		if err != nil {
			e.counts.Refused++
			return false
		}
		tr.sid = id
	}
	tr.profile = uint8(profile)
	e.engines[profile].SetBad(tr.sid, Catalogue[tr.row].Bad)
	return true
}

// take remembers a value and gives what is judged of it; known is false for the first of a counter, and after its reset.
func (tr *track) take(s *Signal, t int64, v, dt float64) (val float64, known bool) {
	val, known = v, true
	if s.Kind == series.Counter {
		last := tr.ring[(tr.at+ringSize-1)%ringSize].raw
		known = tr.n > 0 && v >= last && dt > 0
		if val = 0; known {
			val = (v - last) / dt
		}
	}
	switch {
	case tr.n == 0:
		tr.since = t
	case tr.every == 0:
		tr.every = float32(dt)
	default:
		tr.every += float32(everyRate * (min(dt, 2*float64(tr.every)) - float64(tr.every)))
	}
	tr.ring[tr.at] = value{t, val, v}
	tr.at = (tr.at + 1) % ringSize
	tr.n++
	tr.t = t
	newest := &tr.ent.newest[classOf(s)]
	*newest = max(*newest, t)
	return val, known
}

// classOf parts the values that come with the steps from those that come with the clock.
func classOf(s *Signal) int {
	if s.gate == perStep {
		return 1
	}
	return 0
}

// recent gives the last values, oldest first.
func (tr *track) recent(most int) []value {
	n := min(int(tr.n), ringSize, most)
	out := make([]value, n)
	for i := range n {
		out[i] = tr.ring[(int(tr.at)-n+i+ringSize)%ringSize]
	}
	return out
}

// middle is the median of the last values.
func (tr *track) middle(most int) float64 {
	vs := tr.recent(most)
	slices.SortFunc(vs, func(a, b value) int { return cmp.Compare(a.v, b.v) })
	return vs[len(vs)/2].v
}

func (tr *track) middleInterval() time.Duration {
	var d []int64
	last := int64(0)
	for i, x := range tr.recent(firstOnes) {
		if i > 0 {
			d = append(d, x.t-last)
		}
		last = x.t
	}
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return time.Duration(d[len(d)/2])
}

// shown are the values around an onset.
func (tr *track) shown(onset int64) []event.Sample {
	vs := tr.recent(ringSize)
	out := make([]event.Sample, 0, len(vs))
	for _, x := range vs {
		out = append(out, event.Sample{S: float64(x.t-onset) * 1e-9, V: x.v})
	}
	return out
}

// absences finds the series that fell silent while others of their entity go on, and those that came back.
func (e *Engine) absences() {
	if e.now < e.quiet {
		return
	}
	for _, tr := range e.tracks {
		if tr == nil || tr.n < knownLeast || tr.m != nil && !tr.m.absent {
			continue
		}
		s := &Catalogue[tr.row]
		if s.gate == perEvent || s.sparse || e.now < tr.ent.quiet {
			continue
		}
		if s.gate == perStep && (tr.ent.section != sectionStep && tr.ent.section >= 0 || tr.ent.warm < warmSteps) {
			continue
		}
		silent := float64(tr.ent.newest[classOf(s)]-tr.t) * 1e-9
		if silent > max(silentLeast, silence*float64(tr.every)) && tr.m == nil {
			e.absent(tr, s, silent)
		}
	}
}
