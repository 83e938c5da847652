package offline

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/detector/series"
)

// reason is why a value was not judged though it stood there, or a whole row.
type reason uint8

const (
	none reason = iota
	noTime
	tooLong
	noRoom
	missing
	noNumber
	notFinite
	repeated
	late
	ahead
	reasons
)

var reasonNames = [reasons]struct{ one, many, remedy string }{
	noTime:    {"unreadable timestamp", "unreadable timestamps", timeForms},
	tooLong:   {"row with more cells than the header", "rows with more cells than the header", "name every column in the first line, and quote cells that hold a comma"},
	noRoom:    {"value of a series too many", "values of series too many", fmt.Sprintf("at most %d series of %d bytes of name: does --series-by name the right column?", maxSeries, maxName)},
	missing:   {"empty value", "empty values", "fill the value column"},
	noNumber:  {"value that is no number", "values that are no numbers", "write numbers with a decimal point and without a unit"},
	notFinite: {"NaN or infinity", "NaN or infinities", "write numbers"},
	repeated:  {"repeated timestamp", "repeated timestamps", "rows of more than one series need --series-by COLUMN"},
	ahead:     {"timestamp far ahead of the rows after it", "timestamps far ahead of the rows after them", "was a clock wrong? the row was passed over"},
	late:      {"timestamp before an earlier row's", "timestamps before an earlier row's", "sort the rows of each series by time"},
}

// doubt is how often a reason came, and where first.
type doubt struct {
	count int64
	line  int
	cell  string
}

// tally counts what a run saw.
type tally struct {
	rows, values, judged int64
	doubts               [reasons]doubt
	found                map[string]int64 // findings by kind
	labels               []string         // columns that are not judged, and why
	short                int64            // rows with fewer cells than the header
	shortLine            int
}

func (t *tally) doubt(why reason, line int, cell string) {
	d := &t.doubts[why]
	if d.count == 0 {
		d.line, d.cell = line, excerpt(cell)
	}
	d.count++
}

// excerpt of a cell for a message.
func excerpt(s string) string {
	const most = 40
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// bad is how many values and rows were not judged for a reason other than that the series is being learnt.
func (t *tally) bad() (n int64) {
	for _, d := range t.doubts {
		n += d.count
	}
	return n + t.short
}

// nothing says why no value of a file could be taken.
func (t *tally) nothing() error {
	worst := none
	for r := range reasons {
		if t.doubts[r].count > t.doubts[worst].count {
			worst = r
		}
	}
	d := t.doubts[worst]
	return fmt.Errorf("no value can be judged: %s, the first in line %d (%q): %s", plural(d.count, reasonNames[worst].one, reasonNames[worst].many), d.line, d.cell, reasonNames[worst].remedy)
}

func (t *tally) listed() string {
	var parts []string
	for r, d := range t.doubts {
		if d.count > 0 {
			s := fmt.Sprintf("%s (line %d", plural(d.count, reasonNames[r].one, reasonNames[r].many), d.line)
			if d.cell != "" {
				s += fmt.Sprintf(": %q", d.cell)
			}
			parts = append(parts, s+")")
		}
	}
	if t.short > 0 {
		parts = append(parts, fmt.Sprintf("%s (line %d)", plural(t.short, "row with fewer cells than the header", "rows with fewer cells than the header"), t.shortLine))
	}
	return strings.Join(parts, ", ")
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return thousands(n) + " " + many
}

func thousands(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// report writes the closing summary: lines that a person reads and a log keeps.
func (r *run) report(w io.Writer) {
	t := &r.tally
	fmt.Fprintf(w, "%s: %s, %s; %s; %s; %s\n", r.o.In, plural(t.rows, "row", "rows"), plural(int64(len(r.list)), "series", "series"), r.profiles(), t.findings(), t.unknown())
	if t.bad() > 0 {
		fmt.Fprintf(w, "%s: not judged: %s\n", r.o.In, t.listed())
	}
	if len(t.labels) > 0 {
		fmt.Fprintf(w, "%s: columns repeated and not judged: %s\n", r.o.In, strings.Join(t.labels, ", "))
	}
	if t.judged == 0 {
		fmt.Fprintf(w, "%s: too short to judge anything: a series is learnt from its first %d values (training) or %d (facility)\n", r.o.In, learnTraining, learnFacility)
	}
}

func (t *tally) findings() string {
	if len(t.found) == 0 {
		return "no findings"
	}
	var kinds []string
	var all int64
	for k := range t.found {
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	for i, k := range kinds {
		all += t.found[k]
		kinds[i] = fmt.Sprintf("%s %s", thousands(t.found[k]), k)
	}
	return fmt.Sprintf("%s (%s)", plural(all, "finding", "findings"), strings.Join(kinds, ", "))
}

func (t *tally) unknown() string {
	if t.values == 0 {
		return "no values"
	}
	return fmt.Sprintf("%.3g %% of %s unknown", 100*float64(t.values-t.judged)/float64(t.values), plural(t.values, "value", "values"))
}

// profiles says what judged how many series and why.
func (r *run) profiles() string {
	by := map[series.Profile][]*one{}
	undecided := 0
	for _, s := range r.list {
		if s.engine == nil {
			undecided++
			continue
		}
		by[s.profile] = append(by[s.profile], s)
	}
	var parts []string
	for _, p := range []series.Profile{series.Training, series.Facility} {
		all := by[p]
		if len(all) == 0 {
			continue
		}
		why := "asked for"
		if r.o.Config.Profile == "" {
			least, most := all[0].every, all[0].every
			for _, s := range all {
				least, most = min(least, s.every), max(most, s.every)
			}
			why = "interval " + span(least)
			if span(most) != span(least) {
				why += " to " + span(most)
			}
			why += map[series.Profile]string{series.Training: ", below a minute", series.Facility: ", a minute or more"}[p]
		}
		parts = append(parts, fmt.Sprintf("profile %s for %d (%s)", p, len(all), why))
	}
	if undecided > 0 {
		parts = append(parts, fmt.Sprintf("no profile for %d (below %d values)", undecided, firstSamples))
	}
	return strings.Join(parts, ", ")
}

// span prints a duration with three digits.
func span(d time.Duration) string {
	for _, u := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= u {
			return d.Round(max(1, u/1000)).String()
		}
	}
	return d.String()
}
