package detector

import "math"

// sketch keeps the distribution of durations in O(1) memory: buckets whose edges grow by a tenth, so a quantile is at most
// 10 % too high and never too low. Older halves count half: it forgets a regime after about a thousand values.
type sketch struct {
	n       int // values ever added
	total   float32
	buckets [sketchBuckets]float32
}

const (
	sketchBuckets = 160
	sketchMin     = 1e-3 // seconds; the last edge is 1e-3 · 1.1^160 ≈ 4,200 s
	sketchGrowth  = 1.1
	sketchHalve   = 512
)

var logGrowth = math.Log(sketchGrowth)

func (s *sketch) add(seconds float64) {
	if math.IsNaN(seconds) || seconds <= 0 {
		return
	}
	i := 0
	if seconds > sketchMin {
		i = min(int(math.Ceil(math.Log(seconds/sketchMin)/logGrowth)), sketchBuckets-1)
	}
	s.buckets[i]++
	s.total++
	s.n++
	if s.total < sketchHalve {
		return
	}
	s.total = 0
	for i := range s.buckets {
		s.buckets[i] /= 2
		s.total += s.buckets[i]
	}
}

// quantile is the upper edge of the bucket in which the quantile lies, in seconds; 0 when nothing was added.
func (s *sketch) quantile(q float64) float64 {
	if s.n == 0 {
		return 0
	}
	rest := float32(1-q) * s.total
	for i := sketchBuckets - 1; i >= 0; i-- {
		if rest -= s.buckets[i]; rest < 0 {
			return sketchMin * math.Pow(sketchGrowth, float64(i))
		}
	}
	return sketchMin
}
