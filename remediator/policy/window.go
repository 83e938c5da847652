package policy

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // a blackout in Europe/Berlin must mean the same in an image without zone files

	"github.com/invopop/jsonschema"
)

// Window is a recurring stretch of time in a zone: "Fri 18:00-Mon 06:00 Europe/Berlin" every week, "22:00-06:00 UTC" every day.
// Its begin belongs to it, its end does not.
type Window struct {
	text       string
	weekly     bool
	begin, end int // minutes into the week (from Sunday 00:00) or the day
	zone       *time.Location
}

const (
	day  = 24 * 60
	week = 7 * day
)

var (
	windowForm = regexp.MustCompile(`^(?:(Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?(\d\d):(\d\d)-(?:(Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?(\d\d):(\d\d)(?: (\S+))?$`)
	weekdays   = map[string]int{"Sun": 0, "Mon": 1, "Tue": 2, "Wed": 3, "Thu": 4, "Fri": 5, "Sat": 6}
)

// ParseWindow reads a window. A zone must be named: a blackout in whatever zone a pod happens to run is a surprise.
func ParseWindow(s string) (Window, error) {
	bad := func(why string) (Window, error) {
		return Window{}, fmt.Errorf("%q is not a window: %s; write it like \"Fri 18:00-Mon 06:00 Europe/Berlin\" or \"22:00-06:00 UTC\"", s, why)
	}
	m := windowForm.FindStringSubmatch(strings.TrimSpace(s))
	switch {
	case m == nil:
		return bad("not in that form")
	case m[7] == "":
		return bad("it names no time zone")
	case (m[1] == "") != (m[4] == ""):
		return bad("both ends need a weekday, or neither")
	}
	zone, err := time.LoadLocation(m[7])
	if err != nil || m[7] == "Local" {
		return bad("unknown time zone " + m[7])
	}
	w := Window{text: s, weekly: m[1] != "", zone: zone}
	var ok1, ok2 bool
	w.begin, ok1 = minutes(m[1], m[2], m[3])
	w.end, ok2 = minutes(m[4], m[5], m[6])
	switch {
	case !ok1 || !ok2:
		return bad("hours go to 23 (24:00 as an end), minutes to 59")
	case w.begin == w.end:
		return bad("it is empty")
	}
	return w, nil
}

func minutes(weekday, hh, mm string) (int, bool) {
	h, _ := strconv.Atoi(hh)
	m, _ := strconv.Atoi(mm)
	return weekdays[weekday]*day + h*60 + m, m < 60 && (h < 24 || h == 24 && m == 0)
}

// Contains reports whether t lies in the window, and when the window it lies in ends.
func (w Window) Contains(t time.Time) (until time.Time, ok bool) {
	if w.zone == nil {
		return time.Time{}, false
	}
	span := day
	l := t.In(w.zone)
	at := l.Hour()*60 + l.Minute()
	if w.weekly {
		span = week
		at += int(l.Weekday()) * day
	}
	// Both ends count from the begin, so that a window over midnight or over Sunday needs no case of its own.
	length := ((w.end-w.begin)%span + span) % span
	into := ((at-w.begin)%span + span) % span
	if length == 0 {
		length = span
	}
	if into >= length {
		return time.Time{}, false
	}
	// The end is a wall time; a change to or from summer time inside the window moves the instant, not the wall time.
	y, mo, d := l.Date()
	return time.Date(y, mo, d, l.Hour(), l.Minute()+length-into, 0, 0, w.zone), true
}

// String is the window as it was written.
func (w Window) String() string { return w.text }

// MarshalText writes it as it was written.
func (w Window) MarshalText() ([]byte, error) { return []byte(w.text), nil }

// UnmarshalText reads it as ParseWindow does.
func (w *Window) UnmarshalText(b []byte) (err error) {
	*w, err = ParseWindow(string(b))
	return err
}

// JSONSchema describes the spelling.
func (Window) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Pattern: strings.ReplaceAll(windowForm.String(), "(?: (\\S+))?$", " (\\S+)$")}
}
