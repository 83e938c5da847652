package class

import (
	"math"
	"slices"
)

// By is the key in which two classes differ.
type By uint8

// Keys by which classes are compared.
const (
	Driver By = iota
	Framework
)

func (b By) String() string { return [...]string{"driver", "framework"}[b] }

func (b By) of(k *Key) *string { return [...]*string{&k.Driver, &k.Framework}[b] }

// Difference is a class against another that differs in one key alone.
type Difference struct {
	Key     Key
	By      By
	Against string  // the other's value of that key
	Ratio   float64 // of the levels, step by step; 1.05 is 5 % slower
	Lower   float64 // of the ratio, at 95 %
	Upper   float64
	Runs    int // of this class
	Others  int // of the other
	Score   float64
	Slow    bool // slower than chance and the practical floor allow
}

// The tuning of Compare. Ratios are logarithms.
const (
	compareLeast  = 3     // runs on either side …
	compareSteps  = 50    // … and entries that both know, or nothing is said
	compareFloor  = 0.025 // a class is slow from here on
	betweenPrior  = 0.012 // scale between runs of one class that is assumed before any is seen …
	betweenWeight = 4     // … as if from so many runs
	compareScore  = 4     // standard errors
)

// Compare sets a class against every other that differs from it in one key alone, the slowest against which it is slow first.
// Levels are compared step by step, so that a schedule or a length of run does not count as a difference; the scale is that between
// the runs of both classes.
func (s *Store) Compare(k Key, by By) []Difference {
	k = k.bounded()
	var out []Difference
	for o := range s.classes {
		same := o
		*by.of(&same) = *by.of(&k)
		if o == k || same != k {
			continue
		}
		if d, ok := compare(s.runs(k, ""), s.runs(o, "")); ok {
			d.Key, d.By, d.Against = k, by, *by.of(&o)
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b Difference) int {
		switch {
		case a.Score != b.Score && a.Score > b.Score:
			return -1
		case a.Score != b.Score:
			return 1
		case a.Against < b.Against:
			return -1
		}
		return 1
	})
	return out
}

// compare gives the difference of a from b. The common reference is midway between both sides' profiles, where both have one.
func compare(a, b []*record) (d Difference, ok bool) {
	a, b = a[:min(len(a), maxSiblings)], b[:min(len(b), maxSiblings)]
	if len(a) < compareLeast || len(b) < compareLeast {
		return d, false
	}
	levels := logarithms(append(slices.Clone(a), b...))
	ref, other := profile(levels[:len(a)]), profile(levels[len(a):])
	ref = ref[:min(len(ref), len(other))]
	for i := range ref {
		ref[i] = (ref[i] + other[i]) / 2
	}
	x, y := offsets(levels[:len(a)], ref), offsets(levels[len(a):], ref)
	if len(x) < compareLeast || len(y) < compareLeast {
		return d, false
	}
	mx, my := middle(x), middle(y)
	sum, n := betweenWeight*betweenPrior*betweenPrior, float64(betweenWeight)
	for _, side := range []struct {
		v []float64
		m float64
	}{{x, mx}, {y, my}} {
		for _, v := range side.v {
			sum += (v - side.m) * (v - side.m)
		}
		n += float64(len(side.v) - 1)
	}
	// A median's error is 1.2533 times a mean's.
	e := 1.2533 * math.Sqrt(sum/n*(1/float64(len(x))+1/float64(len(y))))
	r := mx - my
	d.Runs, d.Others, d.Score = len(x), len(y), r/e
	d.Ratio, d.Lower, d.Upper = math.Exp(r), math.Exp(r-1.96*e), math.Exp(r+1.96*e)
	d.Slow = r >= compareFloor && d.Score >= compareScore
	return d, true
}

// logarithms gives the levels of the runs at the coarsest of their resolutions.
func logarithms(rs []*record) (levels [][]float64) {
	fold := uint8(0)
	for _, r := range rs {
		fold = max(fold, r.fold)
	}
	for _, r := range rs {
		v := r.at(fold)
		for i := range v {
			v[i] = math.Log(v[i])
		}
		levels = append(levels, v)
	}
	return levels
}

// profile is the middle of the runs, entry by entry.
func profile(levels [][]float64) []float64 {
	n := 0
	for _, l := range levels {
		n = max(n, len(l))
	}
	out, v := make([]float64, n), make([]float64, 0, len(levels))
	for i := range out {
		v = v[:0]
		for _, l := range levels {
			if i < len(l) && !math.IsNaN(l[i]) {
				v = append(v, l[i])
			}
		}
		out[i] = math.NaN()
		if len(v) > 0 {
			out[i] = middle(v)
		}
	}
	return out
}

// offsets is each run's distance from the profile: the mean of the middle half of its entries' distances, which sees less of the
// rounding of clocks than the median does. Runs that share too few entries with it are left out.
func offsets(levels [][]float64, ref []float64) (out []float64) {
	for _, l := range levels {
		var d []float64
		for i, y := range l[:min(len(l), len(ref))] {
			if !math.IsNaN(y) && !math.IsNaN(ref[i]) {
				d = append(d, y-ref[i])
			}
		}
		if len(d) < compareSteps {
			continue
		}
		slices.Sort(d)
		d = d[len(d)/4 : len(d)-len(d)/4]
		sum := 0.0
		for _, x := range d {
			sum += x
		}
		out = append(out, sum/float64(len(d)))
	}
	return out
}
