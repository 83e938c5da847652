package peers

import (
	"math/bits"
	"slices"
)

const few = 12 // values, by whose number a sort is faster than another division

// middle is the median of some values, and what it is without any one of them: which of the middle values go depends only on the side
// that one is of.
type middle struct {
	mid                fixed
	low, high          fixed // one is of the lower side below low, of the upper one above high
	lower, mine, upper fixed // without one of the lower side, of neither, of the upper one
}

// middleOf reorders s, of which there are two at least. The nearer the guess, the faster.
func middleOf(s []fixed, guess fixed) middle {
	k := len(s) / 2
	mid := pick(s, k, guess)
	low := slices.Max(s[:k])
	if len(s)%2 == 0 {
		return middle{mid: (low + mid) / 2, low: mid, lower: mid, high: mid - 1, upper: low}
	}
	high := slices.Min(s[k+1:])
	return middle{mid: mid, low: mid, high: mid, lower: (mid + high) / 2, mine: (low + high) / 2, upper: (low + mid) / 2}
}

// without is the median without one of the values. It takes no branches: the sides are as chance has it.
func (m *middle) without(y fixed) fixed {
	lower, w, upper := m.lower, m.mine, m.upper
	if y < m.low {
		w = lower
	}
	if y > m.high {
		w = upper
	}
	return w
}

// pick brings the value of rank k to its place, smaller ones before it and none smaller behind. It divides at a guess, then at one of
// three values, that which has k on the smaller side. No branch depends on one value: it would be guessed wrong every other time, at the
// price of ten values. The last few are sorted, as are values that resist.
func pick(s []fixed, k int, guess fixed) fixed {
	lo, hi, tries := 0, len(s), 4*bits.Len(uint(len(s)))
	at := divide(s, guess)
	for {
		if k < at {
			hi = at
		} else {
			lo = at
		}
		n := hi - lo
		if tries--; n <= few || tries == 0 {
			slices.Sort(s[lo:hi])
			return s[k]
		}
		a, b, c := s[lo], s[lo+n/2], s[hi-1]
		least, most := min(a, b), max(a, b)
		pivot := max(least, min(most, c))
		switch {
		case 4*(k-lo) < n:
			pivot = min(least, c)
		case 4*(k-lo) >= 3*n:
			pivot = max(most, c)
		}
		if at = lo + divide(s[lo:hi], pivot); at == lo { // nothing is smaller
			if at = lo + divide(s[lo:hi], pivot+1); k < at {
				return pivot
			}
		}
	}
}

// divide brings the values that are smaller than a bound before the others, and counts them.
//
//go:noinline
func divide(s []fixed, bound fixed) (smaller int) {
	for i, x := range s {
		s[i] = s[smaller]
		s[smaller] = x
		smaller += int(uint64(x-bound) >> 63) // the sign
	}
	return smaller
}

// spread is 1.4826 times the middle distance from the middle of sorted values: distances grow to both sides and are met in order
// by walking outwards.
func spread(s []fixed) float64 {
	mid := (s[(len(s)-1)/2] + s[len(s)/2]) / 2
	lo, hi := (len(s)-1)/2, (len(s)-1)/2+1
	d := fixed(0)
	for range len(s)/2 + 1 {
		if hi >= len(s) || lo >= 0 && mid-s[lo] <= s[hi]-mid {
			d = mid - s[lo]
			lo--
		} else {
			d = s[hi] - mid
			hi++
		}
	}
	return 1.4826 * d.float()
}
