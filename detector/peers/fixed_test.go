package peers

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestALogarithmIsOffByLessThanTwoUnits(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	v := []float64{math.SmallestNonzeroFloat64, math.MaxFloat64, 1, math.Nextafter(1, 0), 0x1p-1022, math.Nextafter(0x1p-1022, 0), 2, 0.5}
	for range 100000 {
		v = append(v, math.Exp(700*(2*rng.Float64()-1)), 1+rng.NormFloat64()/100)
	}
	y := make([]fixed, len(v))
	if have := logarithms(y, v); have != len(v) {
		t.Errorf("%d of %d", have, len(v))
	}
	for i, x := range v {
		if off := y[i].float() - math.Log(x); math.Abs(off) > 2./unit {
			t.Fatalf("ln %g is off by %g", x, off)
		}
	}
	v = []float64{0, math.Copysign(0, -1), -1, -math.SmallestNonzeroFloat64, math.Inf(1), math.Inf(-1), math.NaN(), -math.NaN()}
	if have := logarithms(y, v); have != 0 || slices.ContainsFunc(y[:len(v)], func(x fixed) bool { return x != missing }) {
		t.Errorf("%d numbers in %v: %v", have, v, y[:len(v)])
	}
}

func TestTheMiddleIsThatOfSortedValuesWhateverTheGuess(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		s := make([]fixed, 2+rng.IntN(90))
		spread := 1 + rng.IntN(200)
		for i := range s {
			s[i] = fixed(rng.IntN(spread) - spread/2)
		}
		sorted := slices.Sorted(slices.Values(s))
		m := middleOf(s, fixed(rng.IntN(2*spread)-spread))
		for i, y := range sorted {
			rest := slices.Delete(slices.Clone(sorted), i, i+1)
			want := (rest[(len(rest)-1)/2] + rest[len(rest)/2]) / 2
			if got := m.without(y); got != want {
				t.Fatalf("%v without %d: %d, want %d", sorted, y, got, want)
			}
		}
		if want := (sorted[(len(s)-1)/2] + sorted[len(s)/2]) / 2; m.mid != want {
			t.Fatalf("%v: %d, want %d", sorted, m.mid, want)
		}
	}
}

// What a settled member learns by the quick loop is what it would learn by the one for all others.
func TestTheQuickLoopsLearnWhatTheLongOnesDo(t *testing.T) {
	a, b := group(t, 16), group(t, 16)
	s := sim{rng: rand.New(rand.NewPCG(1, 3)), offsets: append(slices.Clone(healthy), even(6)...), noise: 0.03, factor: from(2, 1.3, 200, 260)}
	for r := range 400 {
		v, _ := s.round(r)
		for i := range b.m {
			b.m[i].marks |= young
		}
		x, y := a.Round(int64(r), v), b.Round(int64(r), v)
		if !slices.Equal(x, y) || a.noise != b.noise {
			t.Fatalf("round %d: %+v, %+v", r, x, y)
		}
		for i := range a.m {
			m := b.m[i]
			m.marks = a.m[i].marks
			if a.m[i] != m {
				t.Fatalf("round %d, member %d: %+v, %+v", r, i, a.m[i], m)
			}
		}
	}
	if a.marked {
		t.Error("nobody has settled: this test proves nothing")
	}
}

func TestAMemberThatIsNotHeardKeepsItsWindows(t *testing.T) {
	r, rng := newRuns(1), rand.New(rand.NewPCG(1, 4))
	var own []int32
	for n := range 500 {
		r.at = uint(n + 1)
		if rng.IntN(3) == 0 {
			r.turn(0)
		} else {
			x := int32(rng.IntN(1 << 28))
			own = append(own, x)
			r.back(0)[0] = r.back(1)[0] + x
		}
		for k, l := range lengths {
			sum := int64(0)
			for _, x := range own[max(0, len(own)-l):] {
				sum += int64(x)
			}
			if sum < math.MaxInt32 && r.sum(0, l) != fixed(sum) {
				t.Fatalf("round %d, window %d: %d, want %d", n, k, r.sum(0, l), sum)
			}
		}
		for ago := range min(len(own), history-1) {
			if got := r.distance(0, ago); got != fixed(own[len(own)-1-ago]).float() {
				t.Fatalf("round %d, %d ago: %g", n, ago, got)
			}
		}
	}
}
