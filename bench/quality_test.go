package bench

import (
	"os"
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/detector/series"
)

func recordings(t *testing.T) []*TrainingRun {
	t.Helper()
	dir := os.Getenv("PITCREW_DATA")
	if dir == "" {
		t.Skip("PITCREW_DATA names no folder with recordings")
	}
	runs, err := LoadTraining(dir)
	if err != nil {
		t.Fatal(err)
	}
	return runs
}

func TestCalibrationKeepsTheAskedRateOnRealRuns(t *testing.T) {
	runs := recordings(t)
	for _, rate := range []float64{30, 8} {
		if f := asked(rate, runs); f.Ratio.Low > 2 || f.Ratio.High < 0.5 || f.Above5 > 0 {
			t.Errorf("asked %g: seen over asked %+v, most of any record %.1f", rate, f.Ratio, f.MostRecord)
		}
	}
	if f := asked(series.AskedShipped, runs); f.Onsets > 0 {
		t.Errorf("%d onsets at the shipped rate", f.Onsets)
	}
}

func TestPeersNameTheSlowWorkerOfRealTracesAndNobodyElse(t *testing.T) {
	recordings(t)
	f, err := PeerQuality(os.Getenv("PITCREW_DATA"))
	if err != nil {
		t.Fatal(err)
	}
	if f.One.N < 300 || f.One.First < 0.99 || f.Several.First < 0.95 || f.Several.All < 0.9 || f.One.Other+f.Several.Other > 8 {
		t.Errorf("one slow %+v, several %+v", f.One, f.Several)
	}
	if f.Loaded[1].All < 0.99 || f.Loaded[1].All <= f.Several.All {
		t.Errorf("with the load of each replica %+v", f.Loaded[1])
	}
	if h := f.Healthy; h.Named > 0 || h.DrawnNamed > 5 {
		t.Errorf("healthy %+v", h)
	}
	if len(f.Imbalanced) != 1 || !strings.Contains(f.Imbalanced[0], "rank 0 imbalance") {
		t.Errorf("AR: %v", f.Imbalanced)
	}
	if len(f.SE) != 0 {
		t.Errorf("SE: %v", f.SE)
	}
	for _, l := range f.Labels {
		if !strings.HasSuffix(l, "else []") || strings.Contains(l, "found []") {
			t.Error(l)
		}
	}
}
