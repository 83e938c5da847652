package peers

import (
	"math"
	"math/bits"
	"slices"
)

// middle is the median of some values with its neighbours, from which the median without any one of them follows.
type middle struct {
	low, mid, high float64
	odd            bool
}

// middleOf reorders s.
func middleOf(s []float64) middle {
	k := len(s) / 2
	m := middle{odd: len(s)%2 == 1, low: math.Inf(-1), high: math.Inf(1)}
	m.mid = pick(s, k)
	for _, x := range s[:k] {
		if x > m.low {
			m.low = x
		}
	}
	if !m.odd {
		m.high = m.mid
		m.mid = (m.low + m.high) / 2
		return m
	}
	for _, x := range s[k+1:] {
		if x < m.high {
			m.high = x
		}
	}
	return m
}

// without is the median without one of the values: which of the middle values go depends only on its side.
func (m *middle) without(y float64) float64 {
	switch {
	case !m.odd && y <= m.low:
		return m.high
	case !m.odd:
		return m.low
	case y < m.mid:
		return (m.mid + m.high) / 2
	case y > m.mid:
		return (m.low + m.mid) / 2
	}
	return (m.low + m.high) / 2
}

// pick brings the value of rank k to its place, smaller ones before it and larger ones behind (Hoare's selection); values that
// resist it are sorted.
func pick(s []float64, k int) float64 {
	lo, hi := 0, len(s)-1
	for tries := 4 * bits.Len(uint(len(s))); lo < hi; tries-- {
		if tries == 0 {
			slices.Sort(s)
			break
		}
		a, b, c := s[lo], s[(lo+hi)/2], s[hi]
		pivot := max(min(a, b), min(max(a, b), c))
		i, j := lo, hi
		for i <= j {
			for s[i] < pivot {
				i++
			}
			for s[j] > pivot {
				j--
			}
			if i <= j {
				s[i], s[j] = s[j], s[i]
				i++
				j--
			}
		}
		switch {
		case k <= j:
			hi = j
		case k >= i:
			lo = i
		default:
			return s[k]
		}
	}
	return s[k]
}

// spread is 1.4826 times the middle distance from the middle of sorted values: distances grow to both sides and are met in order
// by walking outwards.
func spread(s []float64) float64 {
	mid := (s[(len(s)-1)/2] + s[len(s)/2]) / 2
	lo, hi := (len(s)-1)/2, (len(s)-1)/2+1
	d := 0.0
	for range len(s)/2 + 1 {
		if hi >= len(s) || lo >= 0 && mid-s[lo] <= s[hi]-mid {
			d = mid - s[lo]
			lo--
		} else {
			d = s[hi] - mid
			hi++
		}
	}
	return 1.4826 * math.Abs(d)
}
