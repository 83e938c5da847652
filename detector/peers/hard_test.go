package peers

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// sim plays rounds of a role: each member's offset, noise, shared imbalance and fault.
type sim struct {
	rng     *rand.Rand
	offsets []float64
	noise   float64
	factor  func(round, member int) float64 // nil: none
	load    float64                         // scale of what a member is given to do, which its time follows
	gone    float64                         // share of values that are missing
}

func (s *sim) round(r int) (v, load []float64) {
	v, load = make([]float64, len(s.offsets)), make([]float64, len(s.offsets))
	for i, o := range s.offsets {
		l := math.Exp(s.load * s.rng.NormFloat64())
		load[i] = 4096 * l
		v[i] = 10 * o * l * math.Exp(s.noise*s.rng.NormFloat64())
		if s.factor != nil {
			v[i] *= s.factor(r, i)
		}
		if s.rng.Float64() < s.gone {
			v[i] = math.NaN()
		}
	}
	return v, load
}

func even(n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = 1
	}
	return out
}

// from gives a factor to the first k members in rounds [start, end).
func from(k int, factor float64, start, end int) func(int, int) float64 {
	return func(round, member int) float64 {
		if member < k && round >= start && round < end {
			return factor
		}
		return 1
	}
}

func (s *sim) play(t testing.TB, rounds int, loaded bool) []Finding {
	t.Helper()
	g := group(t, len(s.offsets))
	var out []Finding
	for r := range rounds {
		v, load := s.round(r)
		if !loaded {
			load = nil
		}
		out = append(out, g.RoundLoad(int64(r), v, load)...)
	}
	return out
}

func named(f []Finding) (members []int) {
	for _, x := range f {
		if x.Ended == 0 && (x.What == Slow || x.What == Imbalance) {
			members = append(members, x.Member)
		}
	}
	slices.Sort(members)
	return members
}

func TestTwoMembersAreNoPeers(t *testing.T) {
	for n := range least {
		if _, err := New(n); err == nil {
			t.Errorf("a group of %d is no group of peers", n)
		}
	}
}

func TestHalfOfTheRoleOnSlowerHardwareIsNobodysFault(t *testing.T) {
	s := sim{rng: rand.New(rand.NewPCG(1, 2)), offsets: []float64{1, 1.4, 1, 1.4, 1, 1.4, 1, 1.4, 1, 1.4}, noise: 0.02}
	if f := s.play(t, 2000, false); len(f) != 0 {
		t.Errorf("found %+v", f)
	}
	g := group(t, 10)
	for r := range 24 {
		v, _ := s.round(r)
		g.Round(int64(r), v)
	}
	if n := g.noise.scale; n < 0.015 || n > 0.03 {
		t.Errorf("noise of 0.02 is taken for %.3f", n)
	}
}

func TestFourOfTenSlowDoNotHideBehindTheMiddleThatTheyPullUp(t *testing.T) {
	n := 0
	for seed := range uint64(50) {
		s := sim{rng: rand.New(rand.NewPCG(seed, 9)), offsets: even(10), noise: 0.04, factor: from(4, 1.18, 30, 99)}
		n += len(named(s.play(t, 42, false)))
	}
	if n < 195 {
		t.Errorf("%d of 200 named within twelve rounds", n)
	}
}

func TestAFaultBelowTheThresholdDoesNotRaiseIt(t *testing.T) {
	s := sim{rng: rand.New(rand.NewPCG(1, 2)), offsets: even(16), noise: 0.06, factor: from(1, 1.1, 200, 9999)}
	g := group(t, 16)
	before := 0.0
	for r := range 600 {
		if r == 200 {
			before = g.noise.tail[2].threshold(16, 12)
		}
		v, _ := s.round(r)
		g.Round(int64(r), v)
	}
	if after := g.noise.tail[2].threshold(16, 12); before <= 0 || after > 1.25*before {
		t.Errorf("threshold %.3f before, %.3f after 400 rounds", before, after)
	}
}

func TestASlowMemberIsNamedInsideTwelveRoundsOfANoiseThatHidesItInEachRound(t *testing.T) {
	hits := 0
	for seed := range uint64(200) {
		s := sim{rng: rand.New(rand.NewPCG(seed, 9)), offsets: even(32), noise: 0.1, factor: from(1, 1.3, 20, 99)}
		if f := s.play(t, 32, false); len(f) > 0 && f[0].Member == 0 && f[0].Onset >= 16 && f[0].Onset <= 24 {
			hits++
		}
	}
	if hits < 190 {
		t.Errorf("%d of 200", hits)
	}
	s := sim{rng: rand.New(rand.NewPCG(5, 9)), offsets: even(32), noise: 0.13}
	if f := s.play(t, 5000, false); len(f) > 1 {
		t.Errorf("%d findings in 160,000 healthy values: %+v", len(f), f)
	}
}

func TestASpikeOfOneRoundIsNoFinding(t *testing.T) {
	s := sim{rng: rand.New(rand.NewPCG(3, 9)), offsets: even(8), noise: 0.005, factor: from(1, 5, 50, 51)}
	if f := s.play(t, 100, false); len(f) != 0 {
		t.Errorf("found %+v", f)
	}
}

func TestAnOnsetIsTheFirstSlowRoundAndTheEndFollowsRecovery(t *testing.T) {
	s := sim{rng: rand.New(rand.NewPCG(4, 9)), offsets: healthy, noise: 0.005, factor: from(2, 1.3, 40, 80)}
	f := s.play(t, 120, false)
	if len(f) != 4 {
		t.Fatalf("findings %+v", f)
	}
	for i, x := range f {
		if x.What != Slow || x.Onset != 40 || x.Count != 9 || math.Abs(x.Peers/10-1) > 0.1 {
			t.Errorf("finding %+v", x)
		}
		if i < 2 && (math.Abs(x.Ratio-1.3) > 0.15 || x.Suspect == 0 || x.Suspect > 2) || i >= 2 && (x.Ended < 81 || x.Ended > 86) {
			t.Errorf("finding %d: %+v", i, x)
		}
	}
}

func TestSuspectsAreNumberedBehindThoseThatAreOpen(t *testing.T) {
	s := sim{rng: rand.New(rand.NewPCG(4, 9)), offsets: even(10), noise: 0.005, factor: func(r, m int) float64 {
		return map[bool]float64{true: 1.3, false: 1}[m == 3 && r >= 30 || m == 7 && r >= 40]
	}}
	f := s.play(t, 60, false)
	if len(f) != 2 || f[0].Member != 3 || f[0].Suspect != 1 || f[1].Member != 7 || f[1].Suspect != 2 {
		t.Errorf("findings %+v", f)
	}
}

func TestBetweenFourAndSixOfTenPeersAbstain(t *testing.T) {
	for _, noise := range []float64{0.005, 0.03} {
		for _, k := range []int{5, 6} {
			s := sim{rng: rand.New(rand.NewPCG(uint64(k), 9)), offsets: even(10), noise: noise, factor: from(k, 1.4, 60, 120)}
			if f := s.play(t, 300, false); len(named(f)) != 0 {
				t.Errorf("%d of 10 slow, noise %g: %+v", k, noise, f)
			}
		}
	}
}

func TestHalfOfARoleThatStaysSlowIsLearntAndTheNextIsFound(t *testing.T) {
	half, next := from(5, 1.4, 60, 9999), from(1, 1.3, 500, 9999)
	s := sim{rng: rand.New(rand.NewPCG(5, 9)), offsets: even(10), noise: 0.01, factor: func(r, m int) float64 { return half(r, m) * next(r, 9-m) }}
	if f := s.play(t, 560, false); !slices.Equal(named(f), []int{9}) {
		t.Errorf("%+v", f)
	}
}

func TestMoreThanSixOfTenAreTheJobAlsoWhenTheyRecover(t *testing.T) {
	for _, noise := range []float64{0.005, 0.03} {
		for k := 7; k <= 10; k++ {
			s := sim{rng: rand.New(rand.NewPCG(uint64(k), 9)), offsets: even(10), noise: noise, factor: from(k, 1.4, 60, 80)}
			f := s.play(t, 300, false)
			if len(f) != 2 || f[0].What != Job || f[0].Member != -1 || f[0].Onset != 60 || f[0].Ended != 0 || math.Abs(f[0].Ratio-1.4) > 0.1 || f[1].What != Job || f[1].Ended < 80 || f[1].Ended > 84 {
				t.Errorf("%d of 10 slow, noise %g: %+v", k, noise, f)
			}
		}
	}
}

func TestOtherWorkIsNoJobEventWhereItIsToldAndANewLevelWhereItIsNot(t *testing.T) {
	for _, told := range []bool{false, true} {
		s := sim{rng: rand.New(rand.NewPCG(8, 9)), offsets: healthy, noise: 0.01, factor: from(10, 1.5, 50, 9999)}
		g := group(t, 10)
		var f []Finding
		for r := range 300 {
			if told && r == 50 {
				g.Workload()
			}
			v, _ := s.round(r)
			f = append(f, g.Round(int64(r), v)...)
		}
		if told && len(f) != 0 {
			t.Errorf("told: %+v", f)
		}
		if !told && (len(f) != 2 || f[0].What != Job || f[1].What != Job || f[1].Ended == 0) {
			t.Errorf("not told: %+v", f)
		}
	}
}

func TestMissingValuesHideNobodyAndNameNobody(t *testing.T) {
	quiet := sim{rng: rand.New(rand.NewPCG(2, 9)), offsets: healthy, noise: 0.02, gone: 0.05}
	if f := named(quiet.play(t, 3000, false)); len(f) != 0 {
		t.Errorf("named %v", f)
	}
	slow := sim{rng: rand.New(rand.NewPCG(2, 9)), offsets: even(40), noise: 0.02, gone: 0.03, factor: from(3, 1.3, 60, 9999)}
	if f := named(slow.play(t, 100, false)); !slices.Equal(f, []int{0, 1, 2}) {
		t.Errorf("named %v", f)
	}
	// A member that is absent does not hold the others' rounds up.
	g := group(t, 5)
	s := sim{rng: rand.New(rand.NewPCG(2, 9)), offsets: even(5), noise: 0.01, factor: from(1, 1.5, 60, 9999)}
	var got []Finding
	for r := range 90 {
		v, _ := s.round(r)
		if r >= 40 {
			v[4] = math.NaN()
		}
		got = append(got, g.Round(int64(r), v)...)
	}
	if !slices.Equal(named(got), []int{0}) || g.Held() == 0 || g.Held() > absentAfter {
		t.Errorf("held %d, findings %+v", g.Held(), got)
	}
}

func TestAnAttemptIsLearntAnewAndItsSlowRankIsTheOldOnesNoMore(t *testing.T) {
	s := sim{rng: rand.New(rand.NewPCG(6, 9)), offsets: even(8), noise: 0.01, factor: from(1, 1.4, 40, 60)}
	g := group(t, 8)
	var before, after []Finding
	for r := range 60 {
		v, _ := s.round(r)
		before = append(before, g.Round(int64(r), v)...)
	}
	g.Attempt()
	for r := 60; r < 200; r++ {
		v, _ := s.round(r)
		after = append(after, g.Round(int64(r), v)...)
	}
	if !slices.Equal(named(before), []int{0}) || len(after) != 0 {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

func TestTheLoadOfAMemberIsNotItsFault(t *testing.T) {
	imbalance := func(k int, factor float64) sim {
		return sim{rng: rand.New(rand.NewPCG(7, 9)), offsets: even(16), noise: 0.01, load: 0.15, factor: from(k, factor, 60, 9999)}
	}
	s := imbalance(0, 1)
	if f := s.play(t, 3000, true); len(f) != 0 {
		t.Errorf("healthy, with the load: %+v", f)
	}
	s = imbalance(2, 1.17)
	if f := named(s.play(t, 72, true)); !slices.Equal(f, []int{0, 1}) {
		t.Errorf("with the load: %v", f)
	}
	s = imbalance(2, 1.17)
	if f := named(s.play(t, 72, false)); len(f) == 2 {
		t.Error("without the load they are found as soon: this test proves nothing")
	}
	// A load that is itself slow, or not a number, names nobody and does not hide a fault of another member.
	g := group(t, 16)
	s = imbalance(0, 1)
	s.load = 0.4
	for r := range 400 {
		v, load := s.round(r)
		if r >= 100 {
			load[3] *= 2
			load[4], load[5], load[6] = math.NaN(), math.Inf(1), -1
		}
		if r >= 300 {
			v[9] *= 1.3
		}
		f := named(g.RoundLoad(int64(r), v, load))
		if len(f) > 0 && (r < 300 || r > 306 || !slices.Equal(f, []int{9})) || r == 399 && !g.of[9].open {
			t.Errorf("round %d: %v", r, f)
		}
	}
}

func TestAReplicaAtFaultTeachesNothingOfLoads(t *testing.T) {
	s := sim{rng: rand.New(rand.NewPCG(7, 9)), offsets: even(16), noise: 0.01, load: 0.15}
	g := group(t, 16)
	for r := range 200 {
		v, load := s.round(r)
		load[3] *= 2.35 // its stage next door is slow, not its work more
		g.RoundLoad(int64(r), v, load)
	}
	if b := g.load.slope(); math.Abs(b-1) > 0.1 {
		t.Errorf("slope %.2f, want 1", b)
	}
}

func TestTheOrderOfMembersAndTheUnitDoNotMatter(t *testing.T) {
	mirrored := func(unit float64, turn bool) (f []Finding) {
		s := sim{rng: rand.New(rand.NewPCG(2, 9)), offsets: healthy, noise: 0.02, factor: from(2, 1.3, 60, 90)}
		g := group(t, 10)
		for r := range 150 {
			v, _ := s.round(r)
			for i := range v {
				v[i] *= unit
			}
			if turn {
				slices.Reverse(v)
			}
			f = append(f, g.Round(int64(r), v)...)
		}
		return f
	}
	a, b := mirrored(1, false), mirrored(1e6, true)
	if len(a) != len(b) || len(a) != 4 {
		t.Fatalf("%+v\n%+v", a, b)
	}
	for i := range a {
		if a[i].Member != 9-b[i].Member || a[i].Onset != b[i].Onset || a[i].Ended != b[i].Ended || math.Abs(a[i].Ratio-b[i].Ratio) > 1e-6 {
			t.Errorf("%+v\n%+v", a[i], b[i])
		}
	}
}

func TestARoundAllocatesNothing(t *testing.T) {
	s := sim{rng: rand.New(rand.NewPCG(2, 9)), offsets: even(64), noise: 0.05, factor: from(9, 1.5, 100, 9999)}
	g := group(t, 64)
	var rounds [][2][]float64
	for r := range 300 {
		v, load := s.round(r)
		rounds = append(rounds, [2][]float64{v, load})
		if r < 150 {
			g.RoundLoad(int64(r), v, load)
		}
	}
	r := 150
	if n := testing.AllocsPerRun(140, func() { g.RoundLoad(int64(r), rounds[r][0], rounds[r][1]); r++ }); n != 0 {
		t.Errorf("%v allocations a round, with nine members open", n)
	}
}

func TestWhateverTheNoiseFewHealthyMembersAreNamed(t *testing.T) {
	for name, draw := range map[string]func(*rand.Rand, *float64) float64{
		"normal": func(r *rand.Rand, _ *float64) float64 { return r.NormFloat64() },
		"skewed": func(r *rand.Rand, _ *float64) float64 { return (math.Exp(0.6*r.NormFloat64()) - math.Exp(0.18)) / 0.79 },
		"t with three degrees of freedom": func(r *rand.Rand, _ *float64) float64 {
			a, b, c := r.NormFloat64(), r.NormFloat64(), r.NormFloat64()
			return r.NormFloat64() / math.Sqrt(a*a+b*b+c*c)
		},
		"correlated by 0.9 from round to round": func(r *rand.Rand, was *float64) float64 {
			*was = 0.9**was + math.Sqrt(0.19)*r.NormFloat64()
			return *was
		},
	} {
		for _, n := range []int{8, 64} {
			rng := rand.New(rand.NewPCG(uint64(n), 5))
			g, was, v, found := group(t, n), make([]float64, n), make([]float64, n), 0
			for r := range 80000 / n {
				for i := range v {
					v[i] = math.Exp(0.08 * draw(rng, &was[i]))
				}
				found += len(named(g.Round(int64(r), v)))
			}
			if found > 2 {
				t.Errorf("%s noise, %d members: %d of 80,000 values", name, n, found)
			}
		}
	}
}
