// Package bench measures the quality of the detector on real recordings: it injects faults with fixed seeds, replays, counts, and
// writes one report. It holds no data; the folder is given.
package bench

import (
	"compress/gzip"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// Row is one line of a training log.
type Row struct {
	Step int
	Eval bool
	MS   float64 // NaN: not written
}

// TrainingRun is one recorded run.
type TrainingRun struct {
	ID, Record string
	Rows       []Row
	Workload   []uint32 // per row, where told; see tell
	Changes    []int    // rows at which the workload changes
}

const warmupSteps = 12 // of every run: compilation and kernel warm-up

// LoadTraining reads training-steps below dir.
func LoadTraining(dir string) ([]*TrainingRun, error) {
	record := map[string]string{}
	err := readCSV(filepath.Join(dir, "training-steps", "runs.csv"), []string{"run", "record"}, func(c []string) error {
		record[c[0]] = c[1]
		return nil
	})
	if err != nil {
		return nil, err
	}
	var runs []*TrainingRun
	byID := map[string]*TrainingRun{}
	err = readCSV(filepath.Join(dir, "training-steps", "steps.csv.gz"), []string{"run", "step", "kind", "dt_ms"}, func(c []string) error {
		r := byID[c[0]]
		if r == nil {
			r = &TrainingRun{ID: c[0], Record: record[c[0]]}
			byID[c[0]] = r
			runs = append(runs, r)
		}
		step, err := strconv.Atoi(c[1])
		if err != nil {
			return err
		}
		row := Row{Step: step, Eval: c[2] == "v", MS: math.NaN()}
		if c[3] != "" {
			if row.MS, err = strconv.ParseFloat(c[3], 64); err != nil {
				return err
			}
		}
		r.Rows = append(r.Rows, row)
		return nil
	})
	if err != nil {
		return nil, err
	}
	tell(runs)
	return runs, nil
}

// readCSV calls row with the named columns of each line of a file, which may be gzipped.
func readCSV(path string, columns []string, row func([]string) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var in io.Reader = f
	if filepath.Ext(path) == ".gz" {
		if in, err = gzip.NewReader(f); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	r := csv.NewReader(in)
	r.ReuseRecord = true
	head, err := r.Read()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	at := make([]int, len(columns))
	for i, c := range columns {
		if at[i] = slices.Index(head, c); at[i] < 0 {
			return fmt.Errorf("%s: no column %q", path, c)
		}
	}
	out := make([]string, len(columns))
	for n := 2; ; n++ {
		rec, err := r.Read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for i, j := range at {
			out[i] = rec[j]
		}
		if err := row(out); err != nil {
			return fmt.Errorf("%s: line %d: %w", path, n, err)
		}
	}
}

// tell marks the schedule's changes, as a hook that knows the schedule would: where the median over the runs of one record moves
// by changeLeast between the tellWindow steps before and after. Of a record with a single run, its own changes are taken.
func tell(runs []*TrainingRun) {
	byRecord := map[string][]*TrainingRun{}
	for _, r := range runs {
		byRecord[r.Record] = append(byRecord[r.Record], r)
	}
	for _, rs := range byRecord {
		changes := changesOf(medianSteps(rs))
		for _, r := range rs {
			changes := refine(r, changes)
			r.Workload = make([]uint32, len(r.Rows))
			w, next := uint32(1), 0
			for i, row := range r.Rows {
				for next < len(changes) && row.Step >= changes[next] {
					w++
					next++
					r.Changes = append(r.Changes, i)
				}
				r.Workload[i] = w
			}
		}
	}
}

const (
	changeLeast = 0.04
	tellWindow  = 40
)

// medianSteps gives, by step, the median over the runs of a pair of steps' mean logarithm.
func medianSteps(rs []*TrainingRun) []float64 {
	n := 0
	for _, r := range rs {
		n = max(n, r.Rows[len(r.Rows)-1].Step+1)
	}
	all := make([][]float64, n)
	for _, r := range rs {
		last := math.NaN()
		for _, row := range r.Rows {
			if row.Eval || math.IsNaN(row.MS) || row.MS <= 0 {
				continue
			}
			y := math.Log(row.MS)
			if !math.IsNaN(last) {
				all[row.Step] = append(all[row.Step], (y+last)/2)
			}
			last = y
		}
	}
	out := make([]float64, n)
	for i, v := range all {
		out[i] = median(v)
	}
	return out
}

func changesOf(m []float64) []int {
	gain := make([]float64, len(m))
	for i := warmupSteps + tellWindow; i+tellWindow < len(m); i++ {
		gain[i] = math.Abs(median(m[i+1:i+tellWindow]) - median(m[i-tellWindow:i]))
	}
	var out []int
	for i := range m {
		if gain[i] < changeLeast {
			continue
		}
		lo, hi := max(0, i-tellWindow), min(len(m), i+tellWindow+1)
		if slices.Max(gain[lo:hi]) > gain[i] || len(out) > 0 && i-out[len(out)-1] <= tellWindow {
			continue
		}
		// The step at which the middle between both levels is crossed for good.
		a, b := median(m[i-tellWindow:i]), median(m[i+1:min(len(m), i+tellWindow)])
		at := i
		for j := max(0, i-tellWindow/2); j < min(len(m)-2, i+tellWindow/2); j++ {
			if near(m[j], b, a) && near(m[j+1], b, a) && near(m[j+2], b, a) {
				at = j
				break
			}
		}
		out = append(out, at)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// refine moves each change by up to refineSteps to the step at which this very run crosses the middle between both levels: runs
// of one record change a few steps apart, and a hook knows its own run.
func refine(r *TrainingRun, changes []int) []int {
	m := medianSteps([]*TrainingRun{r})
	out := make([]int, 0, len(changes))
	for _, c := range changes {
		if c < tellWindow || c+tellWindow > len(m) {
			out = append(out, c)
			continue
		}
		a, b := median(m[c-tellWindow:c-refineSteps]), median(m[c+refineSteps:c+tellWindow])
		at := c
		for j := c - refineSteps; j < c+refineSteps; j++ {
			if near(m[j], b, a) && near(m[j+1], b, a) && near(m[j+2], b, a) {
				at = j
				break
			}
		}
		out = append(out, at)
	}
	return out
}

const refineSteps = 12

func near(x, to, from float64) bool { return math.Abs(x-to) < math.Abs(x-from) }

func median(v []float64) float64 {
	w := make([]float64, 0, len(v))
	for _, x := range v {
		if !math.IsNaN(x) {
			w = append(w, x)
		}
	}
	if len(w) == 0 {
		return math.NaN()
	}
	slices.Sort(w)
	return (w[(len(w)-1)/2] + w[len(w)/2]) / 2
}
