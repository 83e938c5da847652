package detectcmd

import (
	"encoding/json"
	"errors"
	"fmt"
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
	Seconds  float64    `json:"duration_s"`
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
	Joins    bool       `json:"joins_earlier,omitempty"`
	PromQL   string     `json:"promql"`
	Samples  []*float64 `json:"samples"`
}

// findings writes each finding once: when it is over, when an accepted one is followed by another, or at the end of the file.
type findings struct {
	w        *json.Encoder
	told     io.Writer
	at       map[*one][]float64 // samples at opening
	accepted map[*one]series.Finding
	count    int
	err      error
}

func newFindings(w, told io.Writer) *findings {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return &findings{w: e, told: told, at: map[*one][]float64{}, accepted: map[*one]series.Finding{}}
}

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
		f.say(when(t), "%-8s %s: %s begins: %.6g, expected %.6g to %.6g (baseline %s, %d samples); onset %s%s",
			x.Severity, s.name, x.What, x.Value, x.Lower, x.Upper, x.Baseline, x.Age, when(x.Onset).Format(time.RFC3339), joins(x))
		return
	}
	verb := map[series.Change]string{series.Cleared: "is over", series.Accepted: "stays and is the new baseline"}[c]
	f.say(when(t), "%-8s %s: %s %s after %s, %.3g times the expected; %.3g GPU-seconds lost per GPU",
		x.Severity, s.name, x.What, verb, time.Duration(x.Ended-x.Onset).Round(time.Millisecond), x.Ratio, x.Lost)
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

func joins(x *series.Finding) string {
	if x.Joins {
		return "; joins the earlier one"
	}
	return ""
}

func (f *findings) say(t time.Time, format string, args ...any) {
	if f.told != nil {
		fmt.Fprintf(f.told, t.Format("2006-01-02T15:04:05.000Z")+" "+format+"\n", args...)
	}
}

// open writes the finding that is open at the end of the file.
func (f *findings) open(s *one) {
	if s.engine == nil {
		return
	}
	f.flush(s)
	if x := s.engine.Finding(s.id); x != nil && x.State == series.StateOpen {
		f.say(when(s.last), "%-8s %s: %s is still open", x.Severity, s.name, x.What)
		f.write(s, x)
	}
}

func (f *findings) write(s *one, x *series.Finding) {
	f.count++
	r := record{
		Series: s.name, What: x.What.String(), Severity: x.Severity.String(), State: x.State.String(), Onset: when(x.Onset), Opened: when(x.Opened),
		Value: known(x.Value), Expected: known(x.Expected), Lower: known(x.Lower), Upper: known(x.Upper), Score: x.Score, Asked: x.Asked,
		Baseline: x.Baseline, Age: x.Age, Lost: x.Lost, Joins: x.Joins, PromQL: x.PromQL(s.column), Ratio: known(x.Ratio),
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
	f.err = errors.Join(f.err, f.w.Encode(r))
}
