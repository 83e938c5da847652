package detectcmd

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/pitcrew/pitcrew/detector/series"
)

// firstSamples of a series are unknown whatever they are: their interval chooses the profile.
const firstSamples = 8

// shown is how many values a finding carries as the samples around it.
const shown = 60

// one is a series of the file.
type one struct {
	name   string
	column string
	kind   series.Kind
	engine *series.Engine
	id     series.ID
	first  []series.Sample // until the profile is chosen
	recent []float64
	steps  int // rows of the main phase so far
	past   *series.Reference
	phases dense
	works  dense
	plot   *chartSeries
	last   int64
}

type run struct {
	o        Options
	in       *csv.Reader
	out      *csv.Writer
	found    *findings
	cols     columns
	engines  map[series.Profile]*series.Engine
	series   map[string]*one
	siblings map[string]*series.Reference
	plot     *chart
	pending  []string // first row
}

func newRun(o Options, in io.Reader, out, found io.Writer) (*run, error) {
	r := &run{
		o: o, in: csv.NewReader(in), out: csv.NewWriter(out), engines: map[series.Profile]*series.Engine{}, series: map[string]*one{}, plot: &chart{on: o.Plot != ""},
	}
	r.in.FieldsPerRecord = -1
	header, err := r.in.Read()
	if err != nil {
		return nil, noHeader(err)
	}
	first, err := r.in.Read()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	r.pending = first
	if r.cols, err = newColumns(header, first, o); err != nil {
		return nil, err
	}
	r.found = newFindings(found, o.Backtest)
	if o.Siblings != "" {
		if r.siblings, err = readSiblings(o.Siblings, o); err != nil {
			return nil, fmt.Errorf("--siblings %w", err)
		}
	}
	for _, p := range []series.Profile{series.Training, series.Facility} {
		e, err := series.New(series.Config{Profile: p, Asked: o.Config.Asked, Bands: true})
		if err != nil {
			return nil, err
		}
		r.engines[p] = e
	}
	return r, r.out.Write(append(slices.Clone(header), r.cols.added()...))
}

func noHeader(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("empty file: no header")
	}
	return err
}

func (r *run) all(ctx context.Context) error {
	for row := r.pending; row != nil; {
		if err := r.row(row); err != nil {
			line, _ := r.in.FieldPos(0)
			return fmt.Errorf("line %d: %w", line, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		var err error
		row, err = r.in.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	r.out.Flush()
	for _, name := range sortedNames(r.series) {
		r.found.open(r.series[name])
	}
	return errors.Join(r.out.Error(), r.found.err)
}

func (r *run) row(row []string) error {
	t, err := instant(cell(row, r.cols.time))
	if err != nil {
		return err
	}
	out := slices.Clone(row)
	for len(out) < len(r.cols.header) {
		out = append(out, "")
	}
	for _, c := range r.cols.values {
		s := r.of(cell(row, r.cols.key), c)
		out = append(out, s.judge(r, t, row, number(cell(row, c)))...)
	}
	return r.out.Write(out)
}

func (r *run) of(key string, c int) *one {
	column := r.cols.header[c]
	id := key + "\x00" + column
	if s, ok := r.series[id]; ok {
		return s
	}
	kind := kinds[r.o.Config.Kind]
	if k := kinds[r.o.Config.Signals[column].Kind]; k != series.Auto {
		kind = k
	}
	name := column
	if key != "" {
		name = key
		if len(r.cols.values) > 1 {
			name += "/" + column
		}
	}
	s := &one{name: name, column: column, kind: kind, past: r.siblings[id], phases: dense{}, works: dense{}, plot: r.plot.series(name)}
	if s.past == nil {
		s.past = r.siblings["\x00"+column]
	}
	if r.o.Config.Profile != "" {
		s.use(r, r.o.Config.Profile)
	}
	r.series[id] = s
	return s
}

func (s *one) use(r *run, p series.Profile) {
	s.engine = r.engines[p]
	s.id, _ = s.engine.Add(s.kind)
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

func (s *one) judge(r *run, t int64, row []string, v float64) []string {
	x := s.sample(r, t, row, v)
	if len(s.recent) == shown {
		s.recent = append(s.recent[:0], s.recent[1:]...)
	}
	s.recent = append(s.recent, v)
	unknown := series.Verdict{Expected: math.NaN(), Lower: math.NaN(), Upper: math.NaN()}
	got := unknown
	switch {
	case s.engine != nil:
		got = s.engine.Observe(s.id, x)
	default:
		s.first = append(s.first, x)
		if len(s.first) == firstSamples {
			s.use(r, series.ProfileFor(middleInterval(s.first)))
			for _, x := range s.first {
				got = s.engine.Observe(s.id, x)
			}
			got, s.first = unknown, nil
		}
	}
	if got.Change != series.None {
		r.found.change(s, t, got.Change)
	}
	s.plot.add(t, v, got)
	s.last = t
	return []string{fixed(got.Score), bit(got.Alarm), short(got.Expected), short(got.Lower), short(got.Upper)}
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

func sortedNames(m map[string]*one) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
