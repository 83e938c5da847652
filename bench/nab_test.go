package bench

import (
	"os"
	"path/filepath"
	"testing"
)

func TestEveryStreamIsScoredRowByRow(t *testing.T) {
	dir := os.Getenv("PITCREW_DATA")
	if dir == "" {
		t.Skip("PITCREW_DATA names no folder with recordings")
	}
	out := t.TempDir()
	if err := WriteNAB(dir, out); err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob(filepath.Join(dir, "nab", "data", "*", "*.csv"))
	if err != nil || len(all) == 0 {
		t.Fatalf("no streams: %v", err)
	}
	for _, in := range all {
		rel, _ := filepath.Rel(filepath.Join(dir, "nab", "data"), in)
		a, b := 0, 0
		count := func(n *int) func([]string) error { return func([]string) error { *n++; return nil } }
		if err := readCSV(in, []string{"timestamp"}, count(&a)); err != nil {
			t.Fatal(err)
		}
		if err := readCSV(filepath.Join(out, rel), []string{"anomaly_score"}, count(&b)); err != nil || a != b {
			t.Errorf("%s: %d rows, %d scores, %v", rel, a, b, err)
		}
	}
}

// The published figures of this half, with thresholds fitted on it: Numenta HTM 71.2, CAD OSE 74.1.
func TestTheFacilityProfileFindsTheWindowsOfTheNumentaHalf(t *testing.T) {
	dir := os.Getenv("PITCREW_DATA")
	if dir == "" {
		t.Skip("PITCREW_DATA names no folder with recordings")
	}
	f, err := nabQuality(filepath.Join(dir, "nab"))
	if err != nil {
		t.Fatal(err)
	}
	p := f.Profiles[0]
	if p.Fitted < 73.5 || p.Onsets < 73 || p.Left < 72 || p.FalseRows > 105 {
		t.Errorf("%d streams, %d windows: %+v", f.Streams, f.Windows, p)
	}
}

func TestAStreamOfTheNumentaHalfHasNoMoreOnsetsThanAreAskedFor(t *testing.T) {
	dir := os.Getenv("PITCREW_DATA")
	if dir == "" {
		t.Skip("PITCREW_DATA names no folder with recordings")
	}
	for _, rate := range nabRates {
		a, err := nabAsked(filepath.Join(dir, "nab"), rate)
		if err != nil {
			t.Fatal(err)
		}
		if a.Ratio.High > 2 || a.Above5 > 0 || rate == nabRates[0] && a.Ratio.Low < 0.5 {
			t.Errorf("%+v", a)
		}
	}
}
