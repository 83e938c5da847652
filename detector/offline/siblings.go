package offline

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/pitcrew/pitcrew/detector/series"
)

// maxSteps of a sibling that are remembered.
const maxSteps = 1 << 20

// readSiblings makes a reference of each series from the CSV files of a folder. The run itself and what is written of it are none, where
// they lie in it.
func readSiblings(dir string, o Options) (map[string]*series.Reference, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.csv"))
	if err != nil {
		return nil, err
	}
	files = slices.DeleteFunc(files, func(f string) bool { return sameFile(f, o.In) || sameFile(f, o.Out) })
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: no CSV files of past runs", dir)
	}
	slices.Sort(files)
	runs := map[string][][]float64{}
	for _, f := range files {
		if err := readSibling(f, o, runs); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
	}
	out := map[string]*series.Reference{}
	for name, r := range runs {
		out[name] = series.NewReference(r)
	}
	return out, nil
}

func readSibling(path string, o Options, into map[string][][]float64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	in, err := newRows(f, func() error { return nil })
	if err != nil {
		return err
	}
	cols, err := newColumns(in.header, in.first(), o)
	if err != nil {
		return err
	}
	phases := dense{}
	values := map[string][]float64{}
	for {
		row, _, err := in.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if p := phases.phase(cell(row, cols.phase)); p != 0 && p != series.Warmup {
			continue
		}
		for _, c := range cols.values {
			id := cell(row, cols.key) + "\x00" + in.header[c]
			step := len(values[id])
			if n := number(cell(row, cols.step)); cols.step >= 0 && n >= 0 && n < maxSteps {
				step = int(n)
			}
			for len(values[id]) <= step && step < maxSteps {
				values[id] = append(values[id], math.NaN())
			}
			if v := number(cell(row, c)); step < maxSteps && !math.IsInf(v, 0) {
				values[id][step] = v
			}
		}
	}
	for id, v := range values {
		into[id] = append(into[id], v)
	}
	return nil
}
