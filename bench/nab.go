package bench

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/detector/series"
)

// WriteNAB judges each stream below dir/nab/data by the facility profile and writes the scores in the form of the scorer. A
// stream is given to the engine as values and times only: no name, no length, no range.
func WriteNAB(dir, out string) error {
	root := filepath.Join(dir, "nab", "data")
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".csv") {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		return nabFile(path, filepath.Join(out, rel))
	})
}

func nabFile(in, out string) error {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	defer f.Close()
	w := csv.NewWriter(f)
	if err := w.Write([]string{"timestamp", "value", "anomaly_score", "alarm"}); err != nil {
		return err
	}
	err = nabJudge(in, series.AskedShipped, func(c []string, x series.Verdict) error {
		alarm := "0"
		if x.Alarm {
			alarm = "1"
		}
		return w.Write([]string{c[0], c[1], strconv.FormatFloat(x.Score, 'f', 9, 64), alarm})
	})
	if err != nil {
		return err
	}
	w.Flush()
	return w.Error()
}

// nabJudge gives each row of a stream with its verdict, from an engine of its own for that asked rate.
func nabJudge(in string, asked float64, each func(row []string, x series.Verdict) error) error {
	e, err := series.New(series.Config{Profile: series.Facility, Asked: asked})
	if err != nil {
		return err
	}
	id, err := e.Add(series.Auto)
	if err != nil {
		return err
	}
	err = readCSV(in, []string{"timestamp", "value"}, func(c []string) error {
		t, err := time.Parse(nabTime, c[0])
		if err != nil {
			return err
		}
		v, err := strconv.ParseFloat(c[1], 64)
		if err != nil {
			v = math.NaN()
		}
		return each(c, e.Observe(id, series.Sample{T: t.UnixNano(), V: v}))
	})
	if err != nil {
		return fmt.Errorf("%s: %w", in, err)
	}
	return nil
}

const nabTime = "2006-01-02 15:04:05"

// nabFiles gives the labelled windows by the name of a stream, and the streams.
func nabFiles(root string) (labels map[string][][2]string, files []string, err error) {
	b, err := os.ReadFile(filepath.Join(root, "labels", "combined_windows.json"))
	if err != nil {
		return nil, nil, err
	}
	if err := json.Unmarshal(b, &labels); err != nil {
		return nil, nil, fmt.Errorf("windows of the benchmark: %w", err)
	}
	files, err = filepath.Glob(filepath.Join(root, "data", "*", "*.csv"))
	if err != nil || len(files) == 0 {
		return nil, nil, fmt.Errorf("no streams below %s (%v)", root, err)
	}
	slices.Sort(files)
	return labels, files, nil
}

// nabName is what the labels call a stream.
func nabName(file string) string {
	return filepath.Base(filepath.Dir(file)) + "/" + filepath.Base(file)
}
