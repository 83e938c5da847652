package bench

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/pitcrew/pitcrew/detector/peers"
	"github.com/pitcrew/pitcrew/detector/series"
)

// Each test asserts a quality with one part of the detector, and that it does not hold without it. They run on synthetic runs, and
// on the recorded ones where PITCREW_DATA names them.
func onRuns(t *testing.T, judge func(t *testing.T, runs []*TrainingRun)) {
	t.Helper()
	t.Run("synthetic", func(t *testing.T) { judge(t, Synthetic(Seed, 10, 4)) })
	t.Run("recorded", func(t *testing.T) { judge(t, recordings(t)) })
}

func TestWithoutPhasesTheToldRunsAreFullOfFalseOnsets(t *testing.T) {
	onRuns(t, func(t *testing.T, runs []*TrainingRun) {
		with, hours := quiet(runs, Told)
		if float64(with) > 0.1*hours {
			t.Errorf("told: %d onsets in %.1f hours without a fault", with, hours)
		}
		if without, _ := quiet(runs, Untold); float64(without) < 5*hours {
			t.Errorf("untold: %d onsets in %.1f hours: this test proves nothing", without, hours)
		}
		if f := fault(Told, Faults[0], runs, nil); f.Recall.Value < 0.97 || f.AlarmOutside > 0.005 {
			t.Errorf("told: recall %.3f of %s, in alarm outside %.4f", f.Recall.Value, f.Fault, f.AlarmOutside)
		}
	})
}

func TestWithoutSiblingsFivePercentAndTheScheduleAreNotTold(t *testing.T) {
	onRuns(t, func(t *testing.T, runs []*TrainingRun) {
		past := refs(runs)
		var rs []*TrainingRun
		for _, r := range runs {
			if past[r.ID] != nil {
				rs = append(rs, r)
			}
		}
		if r := fault(Siblings, Subtle, rs, past).Recall.Value; r < 0.97 {
			t.Errorf("recall %.3f of %s with siblings", r, Subtle.Name)
		}
		if r := fault(Told, Subtle, rs, nil).Recall.Value; r > 0.5 {
			t.Errorf("recall %.3f without siblings: this test proves nothing", r)
		}
		with, hours := quiet(rs, Siblings)
		if without, _ := quiet(rs, Untold); float64(with) > 0.5*hours || without < 10*with || without == 0 {
			t.Errorf("%d onsets with siblings, %d without, in %.1f hours", with, without, hours)
		}
	})
}

// TestWithoutPeersNoRankIsNamed slows one rank of ten by a fifth while all of them vary by a quarter with what they are given to do:
// only the ratio to its peers shows it. Ranks lie at constant ratios of 0.81 to 1.10.
func TestWithoutPeersNoRankIsNamed(t *testing.T) {
	const ranks, rounds, from = 10, 400, 250
	peersFirst, aloneFirst, trials := 0, 0, 40
	for trial := range trials {
		rng := rand.New(rand.NewPCG(Seed, uint64(trial)))
		slow := rng.IntN(ranks)
		offset := make([]float64, ranks)
		for i := range offset {
			offset[i] = 0.81 + 0.29*rng.Float64()
		}
		g, err := peers.New(ranks)
		if err != nil {
			t.Fatal(err)
		}
		e, err := series.New(series.Config{})
		if err != nil {
			t.Fatal(err)
		}
		for range ranks {
			if _, err := e.Add(series.Ratio); err != nil {
				t.Fatal(err)
			}
		}
		named, alone := -1, -1
		v := make([]float64, ranks)
		load := 0.0
		for round := range rounds {
			load = 0.8*load + 0.1*rng.NormFloat64()
			at := int64(round+1) * 1e9
			for i := range v {
				v[i] = 200 * offset[i] * math.Exp(load+0.01*rng.NormFloat64())
				if i == slow && round >= from {
					v[i] *= 1.2
				}
				if x := e.Observe(series.ID(i), series.Sample{T: at, V: v[i], Told: true, Workload: 1}); x.Change == series.Opened && alone < 0 {
					alone = i
				}
			}
			for _, f := range g.Round(at, v) {
				if f.What == peers.Slow && f.Ended == 0 && named < 0 {
					named = f.Member
				}
			}
		}
		if named == slow {
			peersFirst++
		}
		if alone == slow {
			aloneFirst++
		}
	}
	if float64(peersFirst) < 0.95*float64(trials) {
		t.Errorf("peers name the slow rank first in %d of %d", peersFirst, trials)
	}
	if float64(aloneFirst) > 0.5*float64(trials) {
		t.Errorf("series by themselves name it first in %d of %d: this test proves nothing", aloneFirst, trials)
	}
}
