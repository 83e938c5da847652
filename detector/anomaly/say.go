package anomaly

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

// report is what is told of one finding or compound finding, from its onset to its end.
type report struct {
	about    *entity
	signal   string // without "anomaly/"
	key      string
	onset    int64
	member   *member
	compound *compound
	severity event.Severity

	said     event.Severity // with which it was published; empty: it was not
	changed  bool           // since its condition was last set
	at       int64          // when that was
	dropped  bool           // beyond the budget of information
	held     bool           // muted
	ack      string
	accepted string
	ended    int64
}

type closing uint8

const (
	closedCleared   closing = iota
	closedAccepted          // its level is the baseline now
	closedForgotten         // nothing more will be heard of it
)

// The budget of findings that are information only, of one node; beyond it they are counted. Compound findings have none.
const (
	infoBurst   = 32.0
	infoPerHour = 64.0
	renewEvery  = 30 * time.Second // the condition of a compound finding, with what it cost so far
	kind        = "anomaly"
)

func (e *Engine) report(en *entity, signal string, onset int64) *report {
	r := &report{about: en, signal: signal, onset: onset, severity: event.Info, changed: true, key: kind + "/" + signal + " " + en.key.subject()}
	e.reports = append(e.reports, r)
	e.recheck, e.changed = true, true
	return r
}

// speak publishes what is new, tells what changed, and renews what costs.
func (e *Engine) speak() {
	e.listen()
	e.infoTokens = min(infoBurst, e.infoTokens+float64(e.now-e.infoAt)*1e-9*infoPerHour/3600)
	e.infoAt = e.now
	for _, r := range e.reports {
		if r.held || r.dropped {
			continue
		}
		worse := r.said != r.severity && r.severity.AtLeast(r.said) && r.ack == ""
		switch {
		case r.said == "" && r.compound == nil && e.infoTokens < 1:
			r.dropped = true
			e.counts.Suppressed++
		case r.said == "" || worse:
			if r.compound == nil {
				e.infoTokens--
			}
			r.said = r.severity
			e.tell(r, r.event(e), true, false)
		case r.changed || r.compound != nil && e.now-r.at >= int64(renewEvery):
			e.tell(r, r.event(e), true, true)
		}
	}
}

func (e *Engine) tell(r *report, ev event.Event, active, conditionOnly bool) {
	r.changed, r.at = false, e.now
	e.changed = true
	e.out = append(e.out, finding.Finding{Event: ev, Key: r.key, BootID: e.o.BootID, Active: active, ConditionOnly: conditionOnly})
}

// close ends a report. Only what came back is a recovery.
func (e *Engine) close(r *report, how closing) {
	e.reports = slices.DeleteFunc(e.reports, func(x *report) bool { return x == r })
	e.changed = true
	if r.said == "" {
		return
	}
	r.ended = e.now
	ev := r.event(e)
	state := event.StateCleared
	if how != closedCleared {
		state = event.StateAccepted
	}
	if how != closedForgotten {
		ev.Data.Evidence.State = state
	}
	if how != closedCleared {
		e.tell(r, ev, false, true)
		return
	}
	ev.ID = event.NewID(ev.Source, "recovery", ev.ID)
	ev.Type, ev.Time, ev.Data.Severity = event.Recovery, e.at(e.now), event.Info
	e.tell(r, ev, false, false)
}

// event is what is said of a report now.
func (r *report) event(e *Engine) event.Event {
	src := event.Source(e.o.Cluster, e.o.Node, "detector")
	id := []string{e.o.BootID, r.key, strconv.FormatInt(e.at(r.onset).UnixNano(), 10)}
	if r.severity == event.Critical { // it became worse: another event of one condition
		id = append(id, string(r.severity))
	}
	t := r.target()
	t.Cluster, t.Node = e.o.Cluster, e.o.Node
	at := e.at(r.onset)
	ev := event.Event{
		ID: event.NewID(src, id...), Source: src, Type: event.Anomaly, Time: e.at(e.now),
		Data: event.Data{Target: t, Cause: event.Cause{Kind: kind, Name: r.signal}, Severity: r.severity, Onset: at, Count: 1},
	}
	ev.Data.Evidence = r.evidence(e)
	return ev
}

// target names the GPU and the rank on it, as far as either is known.
func (r *report) target() event.Target {
	en := r.about
	t := en.target
	if en.rank != nil {
		pci := t.PCI
		t = en.rank.target
		t.GPU, t.PCI = en.key.id, pci
	}
	return t
}

func number(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

func (r *report) evidence(e *Engine) event.Evidence {
	m := r.member
	if r.compound != nil {
		m = r.compound.lead
	}
	s := m.signal()
	end := e.now
	if r.ended != 0 {
		end = r.ended
	}
	x := event.Evidence{
		Signal: s.Metric, Unit: s.Unit, Value: number(m.value), Expected: number(m.expected), Lower: number(m.lower), Upper: number(m.upper),
		Score: number(m.score), Baseline: m.baseline, State: m.state, Shape: m.shape, Phase: m.phase, Ratio: number(m.ratio()), BaselineSamples: m.age,
		BaselineS: m.ageS, DurationS: math.Round(float64(end-r.onset)*1e-6) * 1e-3, PromQL: m.promql, Samples: m.samples,
		LostGPUSeconds: m.lost, WindowS: nearWindow.Seconds(),
	}
	if !m.certain && !m.absent {
		x.Asked = e.o.Asked
	}
	if s.Value != "" {
		x.Signal += "{" + s.Value + "}"
	}
	x.Raw = m.words()
	if c := r.compound; c != nil {
		x.State = c.state
		if pace := e.paceOf(r.about); pace != nil {
			x.LostGPUSeconds = pace.lost
		}
		var with []string
		for _, w := range c.witnesses {
			if w == c.lead {
				continue
			}
			x.Signals = append(x.Signals, w.witness(e))
			with = append(with, w.words())
		}
		x.Raw = c.pattern.about
		if c.pattern.about == "" {
			x.Raw = r.signal
		}
		x.Raw += ": " + strings.Join(append([]string{m.words()}, with...), "; ")
	}
	for _, told := range []string{r.ack, r.accepted} {
		if told != "" {
			x.Told = append(x.Told, told)
		}
	}
	return x
}

func (m *member) witness(e *Engine) event.Witness {
	s := m.signal()
	w := event.Witness{Signal: s.Metric, Onset: e.at(m.onset), State: m.state, Score: m.score, Value: number(m.value), Expected: number(m.expected), Unit: s.Unit}
	if s.Value != "" {
		w.Signal += "{" + s.Value + "}"
	}
	return w
}

// words say a finding in one line.
func (m *member) words() string {
	s := m.signal()
	unit := ""
	if s.Unit != "1" && !strings.HasPrefix(s.Unit, "{") {
		unit = " " + s.Unit
	}
	switch {
	case m.absent:
		return s.Name + " is no longer said"
	case m.certain && s.Bad == Low:
		return fmt.Sprintf("%s %.4g%s, limit %.4g", s.Name, m.value, unit, m.lower)
	case m.certain:
		return fmt.Sprintf("%s %.4g%s, limit %.4g", s.Name, m.value, unit, m.upper)
	}
	return fmt.Sprintf("%s %.4g%s, expected %.4g to %.4g", s.Name, m.value, unit, m.lower, m.upper)
}
