package offline

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/detector/series"
)

// said is one line of the backtest: what an operator would have been told, and when.
type said struct {
	Time     time.Time `json:"time"` // the row's that made it known
	Severity string    `json:"severity"`
	Series   string    `json:"series"`
	Event    string    `json:"event"` // opened | cleared | accepted | still open
	What     string    `json:"what"`  // as far as it was known then
	Reason   string    `json:"reason"`
	Onset    time.Time `json:"onset"`
	Seconds  float64   `json:"duration_s"` // from the onset to the time
	Value    *float64  `json:"value,omitempty"`
	Expected *float64  `json:"expected,omitempty"`
	Lower    *float64  `json:"lower,omitempty"`
	Upper    *float64  `json:"upper,omitempty"`
	Ratio    *float64  `json:"ratio,omitempty"`
	Lost     float64   `json:"gpu_seconds_lost_per_gpu,omitempty"`

	since int64
}

func stamp(t time.Time) string { return t.Format("2006-01-02T15:04:05.000Z") }

// deviation is what is said of a finding whose shape is not known yet.
const deviation = "deviation"

func opening(s *one, t int64, x *series.Finding) said {
	out := said{
		Time: when(t), Severity: x.Severity.String(), Series: s.name, Event: "opened", What: x.What.String(), since: x.Onset,
		Value: known(x.Value), Expected: known(x.Expected), Lower: known(x.Lower), Upper: known(x.Upper),
	}
	side := "high"
	if x.Value < x.Expected {
		side = "low"
	}
	if x.What == series.Spike || x.What == series.Drift { // it is named when it ends
		out.What = deviation
	}
	ground := fmt.Sprintf("%s, %d values", x.Baseline, x.Age)
	switch x.What {
	case series.Flatline:
		out.Reason = fmt.Sprintf("%.6g and no change since %s, where it used to vary (%s)", x.Value, stamp(when(x.Onset)), ground)
	case series.Stall:
		out.Reason = fmt.Sprintf("one interval of %s, %.3g times the expected (%s)", span(time.Duration(t-x.Onset)), x.Ratio, ground)
	case series.Novel:
		out.Reason = fmt.Sprintf("%s: %.6g where %.6g to %.6g is usual, or its course is like nothing before (%s)", side, x.Value, x.Lower, x.Upper, ground)
	default:
		out.Reason = fmt.Sprintf("%s: %.6g where %.6g to %.6g was expected (%s); began %s", side, x.Value, x.Lower, x.Upper, ground, stamp(when(x.Onset)))
	}
	if x.Joins {
		out.Reason += "; soon after the one before: the same story, most likely"
	}
	return out
}

func closing(s *one, t int64, c series.Change, x *series.Finding) said {
	out := said{
		Time: when(t), Severity: x.Severity.String(), Series: s.name, Event: "cleared", What: x.What.String(), since: x.Onset, Ratio: known(x.Ratio), Lost: x.Lost,
	}
	lasted := span(time.Duration(x.Ended - x.Onset))
	out.Reason = "back to usual after " + lasted
	if c == series.Accepted {
		out.Event, out.Reason = "accepted", "the level has stayed for "+lasted+" and is the new baseline"
	}
	if out.Ratio != nil && x.What != series.Flatline && x.What != series.Novel {
		out.Reason += fmt.Sprintf("; %.3g times the expected", x.Ratio)
	}
	if x.Lost > 0 {
		out.Reason += fmt.Sprintf(", %.3g s lost on each GPU that waited", x.Lost)
	}
	return out
}

func (f *findings) say(x said) {
	if f.backtest == nil {
		return
	}
	if x.Event == "opened" {
		if x.Severity == series.Info.String() {
			f.told[series.Info]++
		} else {
			f.told[series.Warning]++
		}
	}
	x.Onset = when(x.since)
	x.Seconds = max(0, x.Time.Sub(x.Onset).Seconds())
	if x.Event == "still open" {
		x.Reason = "at the end of the file, after " + span(time.Duration(x.Seconds*1e9))
	}
	if f.json {
		e := json.NewEncoder(f.backtest)
		e.SetEscapeHTML(false)
		f.err = cmp.Or(f.err, e.Encode(x))
		return
	}
	_, err := fmt.Fprintf(f.backtest, "%s  %-7s  %-10s  %s: %s: %s\n", stamp(x.Time), x.Severity, x.Event, x.Series, x.What, x.Reason)
	f.err = cmp.Or(f.err, err)
}

// end closes the backtest with a sum, which says what the severities mean to who is on call.
func (f *findings) end() {
	if f.backtest == nil || f.json {
		return
	}
	sum := []string{fmt.Sprintf("%s of warning and %s of info", plural(f.told[series.Warning], "opening", "openings"), plural(f.told[series.Info], "opening", "openings"))}
	if f.told == [2]int64{} {
		sum[0] = "nothing would have been told"
	} else {
		sum = append(sum, "by itself neither wakes anyone: on a node, one signal is information until another bears it out")
	}
	_, err := fmt.Fprintf(f.backtest, "%s\n", strings.Join(sum, "; "))
	f.err = cmp.Or(f.err, err)
}
