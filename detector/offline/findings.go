package offline

import (
	"cmp"
	"encoding/json"
	"io"
	"math"
	"time"

	"github.com/pitcrew/pitcrew/detector/series"
)

// record is one line of the findings file. Absent numbers are unknown.
type record struct {
	Series   string     `json:"series"`
	What     string     `json:"what"`
	Severity string     `json:"severity"`
	State    string     `json:"state"`
	Onset    time.Time  `json:"onset"`
	Opened   time.Time  `json:"opened"`
	Ended    *time.Time `json:"ended,omitempty"`
	Seconds  float64    `json:"duration_s"` // from the onset to the end; of an open one, to the last value
	Value    *float64   `json:"value"`
	Expected *float64   `json:"expected"`
	Lower    *float64   `json:"lower"`
	Upper    *float64   `json:"upper"`
	Ratio    *float64   `json:"ratio,omitempty"`
	Score    float64    `json:"score"`
	Asked    float64    `json:"asked_per_series_hour"`
	Baseline string     `json:"baseline"`
	Age      int        `json:"baseline_samples"`
	Lost     float64    `json:"gpu_seconds_lost_per_gpu"`
	Better   bool       `json:"better,omitempty"` // on the side that the configuration does not call bad
	Joins    bool       `json:"joins_earlier,omitempty"`
	PromQL   string     `json:"promql"`
	Samples  []*float64 `json:"samples"`
}

// findings writes each finding once: when it is over, when an accepted one is followed by another, or at the end of the file.
type findings struct {
	w        io.Writer
	backtest io.Writer // nil: not asked for
	json     bool      // what the backtest says
	at       map[*one][]float64
	accepted map[*one]series.Finding
	count    map[string]int64 // by kind
	told     [2]int64         // openings by severity
	err      error
}

const whatAbsent = "absent"

func when(ns int64) time.Time { return time.Unix(0, ns).UTC() }

func known(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

func (f *findings) change(s *one, t int64, c series.Change) {
	x := s.engine.Finding(s.id)
	if c == series.Opened {
		f.flush(s)
		f.at[s] = append([]float64(nil), s.recent...)
		f.say(opening(s, t, x))
		return
	}
	f.say(closing(s, t, c, x))
	if c == series.Accepted {
		f.accepted[s] = *x
		return
	}
	delete(f.accepted, s)
	f.write(s, x)
}

// flush writes the finding of a level that was accepted and from which the series did not come back.
func (f *findings) flush(s *one) {
	if x, ok := f.accepted[s]; ok {
		delete(f.accepted, s)
		f.write(s, &x)
	}
}

// open writes what is open at the end of the file.
func (f *findings) open(s *one, now int64) {
	if s.engine == nil {
		return
	}
	f.flush(s)
	if x := s.engine.Finding(s.id); x != nil && x.State == series.StateOpen {
		f.say(said{Time: when(s.last), Series: s.name, Severity: x.Severity.String(), Event: "still open", What: x.What.String(), since: x.Onset})
		f.write(s, x)
	}
	if s.absent {
		f.say(said{Time: when(now), Series: s.name, Severity: series.Info.String(), Event: "still open", What: whatAbsent, since: s.last})
		f.writeAbsent(s, max(now, s.noticed), series.StateOpen)
	}
}

func (f *findings) write(s *one, x *series.Finding) {
	r := record{
		Series: s.name, What: x.What.String(), Severity: x.Severity.String(), State: x.State.String(), Onset: when(x.Onset), Opened: when(x.Opened),
		Value: known(x.Value), Expected: known(x.Expected), Lower: known(x.Lower), Upper: known(x.Upper), Score: x.Score, Asked: x.Asked,
		Baseline: x.Baseline, Age: x.Age, Lost: x.Lost, Better: x.Better, Joins: x.Joins, PromQL: x.PromQL(s.column), Ratio: known(x.Ratio),
	}
	end := s.last
	if x.Ended != 0 {
		t := when(x.Ended)
		r.Ended, end = &t, x.Ended
	}
	r.Seconds = float64(end-x.Onset) * 1e-9
	for _, v := range f.at[s] {
		r.Samples = append(r.Samples, known(v))
	}
	delete(f.at, s)
	s.plot.finding(x.Onset, end, r.What)
	f.encode(r)
}

func (f *findings) encode(r record) {
	f.count[r.What]++
	e := json.NewEncoder(f.w)
	e.SetEscapeHTML(false)
	f.err = cmp.Or(f.err, e.Encode(r))
}

// vanished says that a series is silent.
func (f *findings) vanished(s *one, t int64) {
	s.noticed = t
	f.say(said{
		Time: when(t), Series: s.name, Severity: series.Info.String(), Event: "opened", What: whatAbsent, since: s.last,
		Reason: "no value since " + stamp(when(s.last)) + ", while others go on",
	})
}

// returned says that a silent series has a value again. Where it hung, the stall is the finding.
func (f *findings) returned(s *one, t int64, hung bool) {
	end := max(t, s.last)
	reason := "a value again after " + span(time.Duration(end-s.last))
	if hung {
		reason += ", which it took: a stall"
	}
	f.say(said{
		Time: when(t), Series: s.name, Severity: series.Info.String(), Event: "cleared", What: whatAbsent, since: s.last,
		Reason: reason,
	})
	if !hung {
		f.writeAbsent(s, end, series.StateCleared)
	}
}

// writeAbsent writes the silence of a series until its end, or as far as it is known.
func (f *findings) writeAbsent(s *one, until int64, state series.State) {
	r := record{
		Series: s.name, What: whatAbsent, Severity: series.Info.String(), State: state.String(), Onset: when(s.last), Opened: when(s.noticed),
		Seconds: float64(until-s.last) * 1e-9, Score: series.AlarmScore, Asked: s.engine.Config().Asked, Baseline: "self",
		PromQL: absentPromQL(s.column, s.noticed-s.last),
	}
	if state != series.StateOpen {
		t := when(until)
		r.Ended = &t
	}
	for _, v := range s.recent {
		r.Samples = append(r.Samples, known(v))
	}
	s.plot.finding(s.last, until, whatAbsent)
	f.encode(r)
}
