package offline

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/detector/series"
)

// columns says what each column of a file is. It is read from the header and the first row: more would be looking ahead.
type columns struct {
	header                       []string
	time, phase, work, step, key int // -1: the file has none
	values                       []int
	labels                       []string // columns that are repeated only, for the summary
}

func newColumns(header, first []string, o Options) (columns, error) {
	if name, at, again := twice(header); again > 0 {
		return columns{}, fmt.Errorf("columns %d and %d are both named %q: rename one", at, again, name)
	}
	find := func(name string) int {
		if name == "" {
			return -1
		}
		return slices.IndexFunc(header, func(h string) bool { return strings.TrimSpace(h) == name })
	}
	named := cmp.Or(o.Timestamp, "timestamp")
	c := columns{
		header: slices.Clone(header), time: find(named), phase: find("phase"), work: find("workload"), step: find(o.Step), key: find(o.SeriesBy),
	}
	switch {
	case find("anomaly_score") >= 0:
		return c, errors.New("a column anomaly_score: this is an output of pitcrew detect; give the file that it was made from")
	case c.time < 0 && len(header) == 1 && strings.ContainsAny(header[0], ";\t|"):
		return c, fmt.Errorf("one column only, %q: columns are parted by commas", excerpt(header[0]))
	case c.time < 0:
		return c, fmt.Errorf("no column %s among %s: --timestamp names the column that has the time", named, list(header))
	case o.SeriesBy != "" && c.key < 0:
		return c, fmt.Errorf("no column %s, which --series-by names, among %s", o.SeriesBy, list(header))
	}
	if err := c.choose(first, o, find); err != nil {
		return c, err
	}
	for name := range o.Config.Signals {
		if !slices.ContainsFunc(c.values, func(i int) bool { return header[i] == name }) {
			return c, fmt.Errorf("no column of numbers %s, which signals in the --config file names", name)
		}
	}
	for _, name := range c.added() {
		if find(name) >= 0 {
			return c, fmt.Errorf("a column %s, which the output adds: rename it", name)
		}
	}
	return c, nil
}

// choose finds the value columns: those that are named, or those that have a number in the first row, or nothing.
func (c *columns) choose(first []string, o Options, find func(string) int) error {
	for _, name := range o.Values {
		i := find(name)
		switch {
		case i < 0:
			return fmt.Errorf("no column %s, which --value names, among %s", name, list(c.header))
		case i == c.time || i == c.key:
			return fmt.Errorf("column %s, which --value names, has the time or tells series apart", name)
		case i == c.step:
			c.step = -1
		}
		c.values = append(c.values, i)
	}
	if len(o.Values) > 0 {
		slices.Sort(c.values)
		c.values = slices.Compact(c.values)
		return nil
	}
	for i, name := range c.header {
		if i == c.time || i == c.phase || i == c.work || i == c.step || i == c.key {
			continue
		}
		_, named := o.Config.Signals[name]
		if v := cell(first, i); !named && !empty(v) && math.IsNaN(number(v)) && !strings.EqualFold(v, "nan") {
			c.labels = append(c.labels, fmt.Sprintf("%s (first %q)", name, excerpt(v)))
			continue
		}
		c.values = append(c.values, i)
	}
	if len(c.values) == 0 && c.step >= 0 {
		c.values, c.step = []int{c.step}, -1
	}
	if len(c.values) == 0 {
		return fmt.Errorf("no column of numbers beside %s in the first row, of %s: --value names the column to judge", c.header[c.time], list(c.header))
	}
	return nil
}

// list names columns in a message.
func list(header []string) string {
	const most = 12
	names := slices.Clone(header)
	if len(names) > most {
		names = append(names[:most], fmt.Sprintf("and %d more", len(header)-most))
	}
	for i := range names {
		names[i] = excerpt(names[i])
	}
	return strings.Join(names, ", ")
}

// empty says whether a cell says that there is no value.
func empty(s string) bool {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "", "na", "n/a", "null", "none", "nil", "-":
		return true
	}
	return false
}

// added are the columns that the output has beyond the input's.
func (c columns) added() []string {
	var out []string
	for _, v := range c.values {
		p := ""
		if len(c.values) > 1 {
			p = c.header[v] + "_"
		}
		for _, n := range []string{"anomaly_score", "alarm", "expected", "lower", "upper"} {
			out = append(out, p+n)
		}
	}
	return out
}

func cell(row []string, i int) string {
	if i < 0 || i >= len(row) {
		return ""
	}
	return row[i]
}

// number is a cell's value; NaN: it has none.
func number(s string) float64 {
	v, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil {
		return math.NaN()
	}
	return v
}

var layouts = []string{
	time.RFC3339Nano, "2006-01-02 15:04:05.999999999", "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04", "2006-01-02",
}

const timeForms = "RFC 3339, 2006-01-02 15:04:05 (UTC), or seconds since 1970"

// clock reads timestamps; it tries the form of the last one first.
type clock struct{ last int }

// instant reads a timestamp as ns since 1970. Plain numbers are seconds, and milliseconds, microseconds or nanoseconds where they
// are too large for seconds of this age.
func (c *clock) instant(s string) (int64, error) {
	s = strings.TrimSpace(s)
	if v, err := strconv.ParseFloat(s, 64); err == nil {
		return seconds(s, v)
	}
	for i := range layouts {
		n := (c.last + i) % len(layouts)
		t, err := time.Parse(layouts[n], s)
		if err != nil {
			continue
		}
		c.last = n
		if y := t.Year(); y < 1678 || y > 2261 { // what ns since 1970 can tell
			break
		}
		return t.UnixNano(), nil
	}
	return 0, fmt.Errorf("timestamp %q: %s", excerpt(s), timeForms)
}

func seconds(s string, v float64) (int64, error) {
	unit := 1e9
	for a := math.Abs(v); a > farSeconds && unit > 1; a /= 1e3 {
		unit /= 1e3
	}
	if unit == 1 {
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			return n, nil
		}
	}
	if !(math.Abs(v*unit) < math.MaxInt64) {
		return 0, fmt.Errorf("timestamp %q: %s", excerpt(s), timeForms)
	}
	return int64(math.Round(v * unit)), nil
}

// farSeconds lie in the year 2255: a larger number is in a smaller unit.
const farSeconds = 9e9

// phaseNames are what jobs call their phases; others are told apart as they come, see dense.
var phaseNames = map[string]uint8{
	"": 0, "step": 0, "train": 0, "training": 0, "steady": 0,
	"warmup": series.Warmup, "warm-up": series.Warmup, "warm_up": series.Warmup, "setup": series.Warmup, "init": series.Warmup, "compile": series.Warmup,
}

// dense numbers names in the order in which they come; beyond mostNames it tells them apart by a hash, most likely.
type dense map[uint64]uint32

const mostNames = 256

func (d dense) of(name string) uint32 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, name)
	n, ok := d[h.Sum64()]
	switch {
	case ok:
		return n
	case len(d) >= mostNames:
		return mostNames + 1 + uint32(h.Sum64()>>33)
	}
	n = uint32(len(d) + 1)
	d[h.Sum64()] = n
	return n
}

func (d dense) phase(name string) uint8 {
	name = strings.ToLower(strings.TrimSpace(name))
	if p, ok := phaseNames[name]; ok {
		return p
	}
	return uint8(min(d.of(name), 3))
}
