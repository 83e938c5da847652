package class

import "math"

// sketch is a distribution of positive values with a relative error of at most sketchError in any quantile: logarithmic buckets
// with gamma = (1+e)/(1-e), and beyond maxBins of them the lowest are one (DDSketch: Masson, Rim, Lee, "DDSketch: A fast and
// fully-mergeable quantile sketch with relative-error guarantees", VLDB 2019). Merging adds buckets, so order does not matter.
type sketch struct {
	total uint64
	low   int32 // index of bins[0]
	bins  []uint32
}

const (
	sketchError = 0.01
	maxBins     = 512 // spans a factor of 28,000
	indexMost   = 1 << 16
)

var logGamma = math.Log((1 + sketchError) / (1 - sketchError))

func (s *sketch) add(v float64) {
	i := int32(math.Ceil(math.Log(v) / logGamma))
	s.fit(i, i)
	if b := &s.bins[max(0, i-s.low)]; *b < math.MaxUint32 {
		*b++
		s.total++
	}
}

// fit makes room from index lo to hi, at most maxBins below the highest.
func (s *sketch) fit(lo, hi int32) {
	if len(s.bins) == 0 {
		s.low = max(lo, hi-maxBins+1)
		s.bins = make([]uint32, hi-s.low+1)
		return
	}
	top := max(hi, s.low+int32(len(s.bins))-1)
	low := max(min(lo, s.low), top-maxBins+1)
	if low == s.low && top-low+1 == int32(len(s.bins)) {
		return
	}
	bins := make([]uint32, top-low+1)
	old := *s
	s.total, s.low, s.bins = 0, low, bins
	s.pour(&old)
}

// pour adds the buckets of o, for which there is room.
func (s *sketch) pour(o *sketch) {
	for i, n := range o.bins {
		b := &s.bins[max(0, o.low+int32(i)-s.low)]
		n = min(n, math.MaxUint32-*b)
		*b += n
		s.total += uint64(n)
	}
}

func (s *sketch) merge(o *sketch) {
	if len(o.bins) == 0 {
		return
	}
	s.fit(o.low, o.low+int32(len(o.bins))-1)
	s.pour(o)
}

// quantile is the value at q in [0,1], NaN where there is none.
func (s *sketch) quantile(q float64) float64 {
	rest := uint64(q * float64(max(s.total, 1)-1))
	seen := uint64(0)
	for i, n := range s.bins {
		if seen += uint64(n); n > 0 && seen > rest {
			return 2 * math.Exp(logGamma*float64(s.low+int32(i))) / (1 + math.Exp(logGamma))
		}
	}
	return math.NaN()
}
