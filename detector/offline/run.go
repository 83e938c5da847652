package offline

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/detector/series"
)

const (
	firstSamples = 8       // of a series are unknown whatever they are: their interval chooses the profile
	shown        = 60      // values that a finding carries as the samples around it
	maxSeries    = 1 << 14 // of one file, some 8 KB each
	maxName      = 256     // bytes of what --series-by names

	learnTraining = 24  // values of a series that are unknown, at the least: the engine's
	learnFacility = 200 // the same, exactly
)

// one is a series of the file.
type one struct {
	name    string
	column  string
	kind    series.Kind
	bad     series.Direction
	engine  *series.Engine
	id      series.ID
	profile series.Profile
	every   time.Duration   // middle interval of its first values
	first   []series.Sample // until the profile is chosen
	recent  []float64
	steps   int // rows of the main phase so far
	past    *series.Reference
	phases  dense
	works   dense
	plot    *chartSeries
	seen    bool  // has a value
	last    int64 // ns, of its last value
	alarm   bool
	absence
	pace pace // of the row's first series, for all of them
}

type run struct {
	o        Options
	in       *rows
	out      *csv.Writer
	found    *findings
	cols     columns
	clock    clock
	engines  map[series.Profile]*series.Engine
	series   map[string][]*one // by what --series-by names; in the order of the value columns
	list     []*one            // in the order in which they came
	siblings map[string]*series.Reference
	plot     *chart
	tally    tally
	silent   silence
	line     []string // of the output, reused
	at       int      // line of the input
	now      int64    // ns, of the last row that has a time
}

func newRun(o Options, in io.Reader, out, found io.Writer) (*run, error) {
	r := &run{
		o: o, out: csv.NewWriter(out), engines: map[series.Profile]*series.Engine{}, series: map[string][]*one{}, plot: &chart{on: o.Plot != ""},
		tally: tally{found: map[string]int64{}},
	}
	idle := func() error { return nil }
	if o.Out == "-" {
		idle = func() error { r.out.Flush(); return r.out.Error() }
	}
	var err error
	if r.in, err = newRows(in, idle); err != nil {
		return nil, err
	}
	if r.cols, err = newColumns(r.in.header, r.in.first(), o); err != nil {
		return nil, err
	}
	if r.in.first() == nil {
		return nil, errors.New("no rows below the header: nothing to judge")
	}
	r.tally.labels = r.cols.labels
	r.found = &findings{w: found, backtest: o.Backtest, json: o.JSON, at: map[*one][]float64{}, accepted: map[*one]series.Finding{}, count: r.tally.found}
	if o.Siblings != "" {
		if r.siblings, err = readSiblings(o.Siblings, o); err != nil {
			return nil, fmt.Errorf("--siblings %w", err)
		}
	}
	for _, p := range []series.Profile{series.Training, series.Facility} {
		e, err := series.New(series.Config{Profile: p, Asked: o.Config.Asked, Bands: true, MaxSeries: maxSeries, MaxContext: maxSeries})
		if err != nil {
			return nil, err
		}
		r.engines[p] = e
	}
	return r, r.out.Write(append(slices.Clone(r.in.header), r.cols.added()...))
}

func (r *run) all(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		row, line, err := r.in.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		r.at = line
		if err := errors.Join(r.row(row), r.found.err); err != nil {
			return err
		}
	}
	r.out.Flush()
	for i := 0; i < len(r.list); i += len(r.cols.values) { // no row spoke against what is held
		r.release(r.list[i : i+len(r.cols.values)])
	}
	for _, s := range r.list {
		r.found.open(s, r.now)
	}
	r.found.end()
	if err := errors.Join(r.out.Error(), r.found.err); err != nil {
		return err
	}
	if !slices.ContainsFunc(r.list, func(s *one) bool { return s.seen }) {
		return r.tally.nothing()
	}
	if n := r.tally.bad(); r.o.Strict && n > 0 {
		return fmt.Errorf("--strict: %s", r.tally.listed())
	}
	return nil
}

// row judges what can be judged of a row and repeats all of it.
func (r *run) row(row []string) error {
	r.tally.rows++
	width := len(r.cols.header)
	r.line = append(r.line[:0], row[:min(len(row), width)]...)
	if len(row) < width {
		if r.tally.short++; r.tally.short == 1 {
			r.tally.shortLine = r.at
		}
		for len(r.line) < width {
			r.line = append(r.line, "")
		}
	}
	var extra []string
	if len(row) > width && slices.ContainsFunc(row[width:], func(s string) bool { return s != "" }) {
		extra = row[width:]
	}
	key := cell(row, r.cols.key)
	t, err := r.clock.instant(cell(row, r.cols.time))
	switch {
	case extra != nil: // which cell is which cannot be told
		r.tally.doubt(tooLong, r.at, extra[0])
		r.pass(nil)
	case err != nil:
		r.tally.doubt(noTime, r.at, cell(row, r.cols.time))
		r.pass(r.series[key])
	default:
		all := r.of(key)
		if all == nil {
			r.tally.doubt(noRoom, r.at, key)
			r.pass(nil)
			break
		}
		if r.hold(all, t, row) {
			r.pass(all)
			break
		}
		r.take(all, t, row)
	}
	r.line = append(r.line, extra...)
	return r.out.Write(r.line)
}

// take judges a row of the series.
func (r *run) take(all []*one, t int64, row []string) {
	for i, c := range r.cols.values {
		r.judge(all[i], t, row, c)
	}
	if r.cols.phase < 0 || all[0].phases.phase(cell(row, r.cols.phase)) == 0 {
		r.silent.look(r, all[0], t)
	}
	r.now = t
}

// pass writes that a row is not judged; a finding that is open stays so.
func (r *run) pass(all []*one) {
	r.tally.values += int64(len(r.cols.values))
	for i := range r.cols.values {
		alarm := all != nil && (all[i].alarm || all[i].absent)
		r.line = append(r.line, fixed(0), bit(alarm), "", "", "")
	}
}

// of gives the series that a row is of, one for each value column; nil: there are too many.
func (r *run) of(key string) []*one {
	if all, ok := r.series[key]; ok {
		return all
	}
	if len(r.list)+len(r.cols.values) > maxSeries || len(key) > maxName {
		return nil
	}
	key = strings.Clone(key) // else it keeps its row
	var all []*one
	for _, c := range r.cols.values {
		s := r.begin(key, r.cols.header[c])
		all = append(all, s)
	}
	r.series[key], r.list = all, append(r.list, all...)
	return all
}

func (r *run) begin(key, column string) *one {
	kind := kinds[r.o.Config.Kind]
	if k := kinds[r.o.Config.Signals[column].Kind]; k != series.Auto {
		kind = k
	}
	bad := sides[cmp.Or(r.o.Config.Signals[column].Bad, r.o.Config.Bad)]
	name := column
	if key != "" {
		name = key
		if len(r.cols.values) > 1 {
			name += "/" + column
		}
	}
	s := &one{name: name, column: column, kind: kind, bad: bad, past: r.siblings[key+"\x00"+column], phases: dense{}, works: dense{}, plot: r.plot.series(strings.TrimSpace(r.o.SeriesBy+" "+name), column)}
	s.absence = absence{place: -1, began: r.at}
	if s.past == nil {
		s.past = r.siblings["\x00"+column]
	}
	if r.o.Config.Profile != "" {
		s.use(r, r.o.Config.Profile)
	}
	return s
}

func (s *one) use(r *run, p series.Profile) {
	s.engine, s.profile = r.engines[p], p
	s.id, _ = s.engine.Add(s.kind) // of tells that there is room
	s.engine.SetBad(s.id, s.bad)
}

// sample reads what a row says of the series beside its value.
func (s *one) sample(r *run, t int64, row []string, v float64) series.Sample {
	x := series.Sample{T: t, V: v, Told: r.cols.phase >= 0 || r.cols.work >= 0}
	if r.cols.phase >= 0 {
		x.Phase = s.phases.phase(cell(row, r.cols.phase))
	}
	if r.cols.work >= 0 {
		x.Workload = s.works.of(cell(row, r.cols.work))
	}
	step := s.steps
	if n := number(cell(row, r.cols.step)); r.cols.step >= 0 && n >= 0 && n < math.MaxInt32 {
		step = int(n)
	}
	if main := x.Phase == 0 || x.Phase == series.Warmup; main {
		s.steps++
		if s.past != nil && x.Phase == 0 {
			x.Ref, x.Workload = s.past.At(step), s.past.Work(step)
		}
	}
	return x
}

// sound says why the engine will pass over a value.
func (s *one) sound(t int64, text string, v float64) reason {
	switch {
	case empty(text):
		return missing
	case math.IsInf(v, 0) || math.IsNaN(v) && strings.EqualFold(strings.TrimSpace(text), "nan"):
		return notFinite
	case math.IsNaN(v):
		return noNumber
	case s.seen && t == s.last:
		return repeated
	case s.seen && t < s.last:
		return late
	}
	return none
}

func (r *run) judge(s *one, t int64, row []string, c int) {
	text := cell(row, c)
	v := number(text)
	x := s.sample(r, t, row, v)
	why := s.sound(t, text, v)
	switch why {
	case none:
		s.heard(r, t)
	case repeated, late:
		r.tally.doubt(why, r.at, cell(row, r.cols.time))
	default:
		r.tally.doubt(why, r.at, text)
	}
	if len(s.recent) == shown {
		s.recent = append(s.recent[:0], s.recent[1:]...)
	}
	s.recent = append(s.recent, v)
	got := series.Verdict{Expected: math.NaN(), Lower: math.NaN(), Upper: math.NaN()}
	switch {
	case s.engine != nil:
		got = s.engine.Observe(s.id, x)
	case why == none && x.Phase != series.Warmup: // whose intervals say nothing of the job's
		s.first = append(s.first, x)
		if len(s.first) == firstSamples {
			s.settle(r)
		}
	}
	if why == none {
		s.back(r, t, got.Change)
		s.seen, s.last = true, t
	}
	s.alarm = got.Alarm
	if got.Change != series.None {
		r.found.change(s, t, got.Change)
	}
	r.tally.values++
	if got.Known {
		r.tally.judged++
	}
	if why != repeated && why != late {
		s.plot.add(t, v, got, x)
	}
	r.line = append(r.line, fixed(got.Score), bit(s.alarm || s.absent), short(got.Expected), short(got.Lower), short(got.Upper))
}

// settle chooses the profile by the first values, and learns them.
func (s *one) settle(r *run) {
	s.every = middleInterval(s.first)
	s.use(r, series.ProfileFor(s.every))
	for _, x := range s.first {
		s.engine.Observe(s.id, x)
	}
	s.first = nil
}

func middleInterval(xs []series.Sample) time.Duration {
	var d []int64
	for i := 1; i < len(xs); i++ {
		d = append(d, xs[i].T-xs[i-1].T)
	}
	slices.Sort(d)
	return time.Duration(d[len(d)/2])
}

func fixed(v float64) string { return strconv.FormatFloat(v, 'f', 6, 64) }

func short(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return ""
	}
	return strconv.FormatFloat(v, 'g', 6, 64)
}

func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
