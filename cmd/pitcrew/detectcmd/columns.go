package detectcmd

import (
	"errors"
	"fmt"
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
}

func newColumns(header, first []string, o Options) (columns, error) {
	find := func(name string) int {
		if name == "" {
			return -1
		}
		return slices.Index(header, name)
	}
	c := columns{
		header: slices.Clone(header), time: find("timestamp"), phase: find("phase"), work: find("workload"), step: find(o.Step), key: find(o.SeriesBy),
	}
	if c.time < 0 {
		return c, errors.New("no column timestamp")
	}
	if o.SeriesBy != "" && c.key < 0 {
		return c, fmt.Errorf("no column %s, which --series-by names", o.SeriesBy)
	}
	for i := range header {
		if i == c.time || i == c.phase || i == c.work || i == c.step || i == c.key {
			continue
		}
		if i < len(first) && first[i] != "" && math.IsNaN(number(first[i])) && !strings.EqualFold(first[i], "nan") {
			continue // a label
		}
		c.values = append(c.values, i)
	}
	if len(c.values) == 0 && c.step >= 0 {
		c.values, c.step = []int{c.step}, -1
	}
	if len(c.values) == 0 {
		return c, errors.New("no column of numbers beside timestamp")
	}
	for name := range o.Config.Signals {
		if !slices.ContainsFunc(c.values, func(i int) bool { return header[i] == name }) {
			return c, fmt.Errorf("no column of numbers %s, which signals in the --config file names", name)
		}
	}
	return c, nil
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

var layouts = []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999", "2006-01-02T15:04:05.999999999", "2006-01-02 15:04", "2006-01-02"}

// instant reads a timestamp as ns since 1970. Plain numbers are seconds, and milliseconds, microseconds or nanoseconds where they
// are too large for seconds of this age.
func instant(s string) (int64, error) {
	s = strings.TrimSpace(s)
	if v, err := strconv.ParseFloat(s, 64); err == nil && !math.IsNaN(v) && !math.IsInf(v, 0) {
		unit := 1e9
		for a := math.Abs(v); a > 1e11 && unit > 1; a /= 1e3 {
			unit /= 1e3
		}
		if unit == 1 {
			if n, err := strconv.ParseInt(s, 10, 64); err == nil {
				return n, nil
			}
		}
		return int64(math.Round(v * unit)), nil
	}
	for _, l := range layouts {
		if t, err := time.Parse(l, s); err == nil {
			return t.UnixNano(), nil
		}
	}
	return 0, fmt.Errorf("timestamp %q: RFC 3339, 2006-01-02 15:04:05, or seconds since 1970", s)
}

// phaseNames are what jobs call their phases; others are told apart as they come, see dense.
var phaseNames = map[string]uint8{
	"": 0, "step": 0, "train": 0, "training": 0, "steady": 0,
	"warmup": series.Warmup, "warm-up": series.Warmup, "warm_up": series.Warmup, "setup": series.Warmup, "init": series.Warmup, "compile": series.Warmup,
}

// dense numbers names in the order in which they come.
type dense map[string]uint32

func (d dense) of(name string) uint32 {
	n, ok := d[name]
	if !ok {
		n = uint32(len(d) + 1)
		d[name] = n
	}
	return n
}

func (d dense) phase(name string) uint8 {
	name = strings.ToLower(strings.TrimSpace(name))
	if p, ok := phaseNames[name]; ok {
		return p
	}
	return uint8(min(d.of(name), 3))
}
