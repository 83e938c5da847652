package xidcmd

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/detector/verdict"
	"github.com/pitcrew/pitcrew/receivers/xidreceiver/kernel"
)

// clock follows the time that the lines of a log tell: of a record, of dmesg in
// each of its formats, of journalctl's short ones, of syslog. Only differences
// matter, so each log may have an epoch of its own.
type clock struct{ at time.Duration }

// read takes a line's time; a line that tells none is as old as the one before
// it, and small steps back are disorder. It reports true where the time falls by
// more than a burst can span: the log goes on with another boot.
func (c *clock) read(line []byte) (anew bool) {
	at, ok := c.when(line)
	if !ok {
		return false
	}
	anew = at < c.at-verdict.Gap
	if anew || at > c.at {
		c.at = at
	}
	return anew
}

func (c *clock) when(line []byte) (time.Duration, bool) {
	if r, ok := kernel.ParseRecord(line); ok {
		return time.Duration(r.Usec) * time.Microsecond, true
	}
	line = bytes.TrimLeft(line[:min(len(line), 160)], " ")
	if len(line) > 0 && line[0] != '[' {
		// A daemon's own time goes on through a boot, the kernel's behind it does not.
		if at, ok := wall(strings.Fields(string(line))); ok {
			return at, true
		}
	}
	_, text, _ := bytes.Cut(line, []byte("["))
	text, _, ok := bytes.Cut(text, []byte("]"))
	if !ok {
		return 0, false
	}
	return c.bracketed(strings.TrimSpace(string(text)))
}

// bracketed reads what dmesg has in brackets: "12345.678901", "+0.000012" since
// the line before, "Mon Jan  2 15:04:05 2006", "Jan 2 15:04".
func (c *clock) bracketed(text string) (time.Duration, bool) {
	if s, err := strconv.ParseFloat(text, 64); err == nil && s >= 0 && s < 1e9 {
		at := time.Duration(s * float64(time.Second))
		if text[0] == '+' {
			at += c.at
		}
		return at, true
	}
	return parsed(text, "Mon Jan _2 15:04:05 2006", "Jan_2 15:04")
}

// Times of daemons and of dmesg --time-format iso, by the words that they take.
var layouts = [][]string{
	1: {"2006-01-02T15:04:05Z07:00", "2006-01-02T15:04:05Z0700", "2006-01-02T15:04:05"},
	2: {"2006-01-02 15:04:05"},
	3: {"Jan 2 15:04:05"},
}

// wall finds a time among the words before the kernel's own.
func wall(words []string) (time.Duration, bool) {
	if len(words) == 0 {
		return 0, false
	}
	if s, err := strconv.ParseFloat(words[0], 64); err == nil && s > 1e8 && s < 9e9 { // seconds since 1970
		return time.Duration(s * float64(time.Second)), true
	}
	for i := range words[:min(len(words), 6)] {
		for n := 1; n < len(layouts) && i+n <= len(words); n++ {
			if at, ok := parsed(strings.Trim(strings.Join(words[i:i+n], " "), "[]:"), layouts[n]...); ok {
				return at, true
			}
		}
	}
	return 0, false
}

func parsed(text string, layouts ...string) (time.Duration, bool) {
	for _, layout := range layouts {
		t, err := time.Parse(layout, text)
		if err != nil {
			continue
		}
		if t.Year() == 0 { // none was told; any leap year will do
			t = t.AddDate(2000, 0, 0)
		}
		return time.Duration(t.UnixNano()), true
	}
	return 0, false
}
