package page

import (
	"time"

	"github.com/pitcrew/pitcrew/remediator/incident"
)

// phase is one line of the waterfall: a part of the time from the fault to the end.
type phase struct {
	Name, Text  string
	Start, Took float64 // seconds; Start is since the fault
	X, W        float64 // of its bar, in chartW
	Class       string
	Share       int // percent of the whole
	lasts       time.Duration
}

// waterfall accounts for every second from the fault to the close, or until now. The phases join without a gap and without an overlap.
type waterfall struct {
	Phases  []phase
	Whole   float64 // seconds
	Running bool
	Skewed  bool // times of the record go backwards: a clock was set or is wrong
}

// phaseWords say what the time before each state was spent on.
var phaseWords = map[incident.State]string{
	incident.Detected:     "opened",
	incident.Correlated:   "found the job",
	incident.Planned:      "chose a rule",
	incident.Approved:     "was allowed",
	incident.Cordoned:     "cordoned",
	incident.Checkpointed: "saved",
	incident.Placed:       "chose a node",
	incident.Restarted:    "restarted",
	incident.Resumed:      "ranks loaded",
	incident.Verified:     "ranks stepped",
	incident.Closed:       "closed",
	incident.Grouped:      "grouped",
}

// minGap is below what a record's own times differ by rounding.
const minGap = time.Millisecond

func newWaterfall(i *incident.Incident, now time.Time) *waterfall {
	w := &waterfall{Running: i.Open()}
	begin := i.Began()
	end := now
	if !i.Open() {
		end = i.ClosedAt
	}
	at := begin
	add := func(until time.Time, p phase) {
		if until.Before(at) {
			w.Skewed = w.Skewed || at.Sub(until) > minGap
			until = at
		}
		p.Start, p.lasts = at.Sub(begin).Seconds(), until.Sub(at)
		p.Took = p.lasts.Seconds()
		w.Phases = append(w.Phases, p)
		at = until
	}
	if i.Opened.Sub(at) > 0 {
		add(i.Opened, phase{Name: "detected", Text: "from the fault, as its source dates it, until the incident was opened", Class: "detect"})
	}
	for _, n := range i.Notes {
		if n.TookS <= 0 {
			continue
		}
		if began := n.At.Add(-time.Duration(n.TookS * float64(time.Second))); began.Sub(at) > minGap {
			add(began, phase{Name: "not recorded", Text: "the record of this time was cut", Class: "unknown"})
		}
		name := phaseWords[n.State]
		if name == "" {
			name = string(n.State)
		}
		add(n.At, phase{Name: name, Text: n.Text, Class: "step"})
	}
	if end.Sub(at) > minGap {
		p := phase{Name: "since then", Text: i.Waiting, Class: "now"}
		if i.Waiting != "" {
			p.Name = "waits"
		}
		if !i.Open() {
			p.Class = "unknown"
		}
		add(end, p)
	}
	w.Skewed = w.Skewed || end.Before(begin)
	w.Whole = at.Sub(begin).Seconds()
	for k := range w.Phases {
		p := &w.Phases[k]
		if w.Whole > 0 {
			p.X, p.W = p.Start/w.Whole*chartW, max(2, p.Took/w.Whole*chartW)
			p.X = min(p.X, chartW-p.W)
			p.Share = int(p.Took/w.Whole*100 + 0.5)
		}
	}
	return w
}
