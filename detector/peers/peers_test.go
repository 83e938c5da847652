package peers

import (
	"math"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
)

func noisy(rng *rand.Rand, offsets []float64, slow map[int]float64) []float64 {
	v := make([]float64, len(offsets))
	for i, o := range offsets {
		v[i] = 10 * o * math.Exp(0.01*rng.NormFloat64())
		if f, ok := slow[i]; ok {
			v[i] *= f
		}
	}
	return v
}

var healthy = []float64{0.81, 0.9, 0.95, 1, 1, 1, 1.02, 1.05, 1.08, 1.1}

func opened(g *Group, rounds int, from int, slow map[int]float64) (names []int, jobs int) {
	rng := rand.New(rand.NewPCG(5, 5))
	for r := range rounds {
		s := slow
		if r < from {
			s = nil
		}
		for _, f := range g.Round(int64(r+1), noisy(rng, healthy, s)) {
			if f.What == Job && f.Ended == 0 {
				jobs++
			}
			if f.Ended == 0 && f.Member >= 0 {
				names = append(names, f.Member)
			}
		}
	}
	return names, jobs
}

func group(t testing.TB, n int) *Group {
	t.Helper()
	g, err := New(n)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestConstantOffsetsAreNobodysFault(t *testing.T) {
	if names, jobs := opened(group(t, 10), 2000, 0, nil); len(names) != 0 || jobs != 0 {
		t.Errorf("found %v, %d jobs", names, jobs)
	}
}

func TestTheSlowAreNamedUpToFourOfTenAndBeyondSixItIsTheJob(t *testing.T) {
	for n, want := range map[int][]int{1: {3}, 2: {3, 4}, 4: {3, 4, 5, 6}, 5: nil, 8: nil} {
		slow := map[int]float64{}
		for i := range n {
			slow[3+i%10] = 1.4
			if n == 8 {
				slow[i] = 1.4
			}
		}
		names, _ := opened(group(t, 10), 120, 60, slow)
		slices.Sort(names)
		if !slices.Equal(names, want) {
			t.Errorf("%d slow: named %v, want %v", n, names, want)
		}
	}
}

func TestARankThatIsSlowFromTheStartIsNamedOnce(t *testing.T) {
	names, _ := opened(group(t, 10), 200, 0, map[int]float64{6: 2.3})
	if !slices.Equal(names, []int{6}) {
		t.Errorf("named %v, want 6 once", names)
	}
}

func TestAMissingRankIsAbsentAfterThreeRoundsAndNotWhileTheAttemptChanges(t *testing.T) {
	g := group(t, 10)
	rng := rand.New(rand.NewPCG(1, 1))
	var got []Finding
	for r := range 40 {
		v := noisy(rng, healthy, nil)
		if r >= 20 && r < 30 {
			v[2] = math.NaN()
		}
		got = append(got, g.Round(int64(r), v)...)
	}
	if len(got) != 2 || got[0].What != Absent || got[0].Member != 2 || got[0].Onset != 20 || got[1].Ended != 30 {
		t.Errorf("findings %+v", got)
	}
	g.Attempt()
	v := noisy(rng, healthy, nil)
	v[2] = math.NaN()
	for r := range 5 {
		if f := g.Round(int64(100+r), v); len(f) != 0 {
			t.Errorf("a rank that has not come yet is found: %+v", f)
		}
	}
}

func FuzzRound(f *testing.F) {
	f.Add(uint64(1), 5.0, math.NaN(), math.Inf(1), -1.0)
	f.Fuzz(func(t *testing.T, seed uint64, a, b, c, d float64) {
		g := group(t, 6)
		rng := rand.New(rand.NewPCG(seed, 1))
		all := []float64{a, b, c, d, 1, 2, 0}
		for r := range 200 {
			v, load := make([]float64, 6), make([]float64, 6)
			for i := range v {
				v[i], load[i] = all[rng.IntN(len(all))], all[rng.IntN(len(all))]
			}
			switch rng.IntN(30) {
			case 0:
				g.Attempt()
			case 1:
				g.Workload()
			}
			if seed%2 == 0 {
				load = nil
			}
			for _, f := range g.RoundLoad(int64(r), v, load) {
				if f.Member >= 6 || math.IsNaN(f.Score) || math.IsNaN(f.Ratio) || f.Suspect > 6 {
					t.Fatalf("finding %+v", f)
				}
			}
		}
	})
}

func BenchmarkRoundOf64RanksAnd20Signals(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	gs := make([]*Group, 20)
	for i := range gs {
		gs[i] = group(b, 64)
	}
	offsets := make([]float64, 64)
	for i := range offsets {
		offsets[i] = 1
	}
	rounds := make([][]float64, 16)
	for i := range rounds {
		rounds[i] = noisy(rng, offsets, nil)
	}
	b.ReportAllocs()
	start := processor(b)
	for i := 0; b.Loop(); i++ {
		for _, g := range gs {
			g.Round(int64(i), rounds[i&15])
		}
	}
	b.ReportMetric(float64(processor(b)-start)/float64(b.N), "processor-ns/op") // the clock also counts what others run
}

// processor is the time that this process has had of all processors, in ns.
func processor(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Skip(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
