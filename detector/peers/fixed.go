package peers

import "math"

// fixed is a logarithm, or a difference of two, in whole units of 2⁻²⁴ (six parts in a hundred million of a ratio): sums of what comes
// and goes leave no rest, and clipping, middles and magnitudes take no branches.
type fixed int64

const (
	unitBits = 24
	unit     = 1 << unitBits
	missing  = fixed(math.MinInt64)
	finer    = 16      // more bits of what is learnt, which moves by less than a unit
	farthest = 1 << 41 // units, beyond what any two finite numbers are apart
)

// fix is x in units, towards zero.
func fix(x float64) fixed { return fixed(x * unit) }

func (x fixed) float() float64 { return float64(x) / unit }

// learnt is the float of what has the finer bits.
func (x fixed) learnt() float64 { return float64(x) / (unit << finer) }

func (x fixed) magnitude() fixed {
	sign := x >> 63
	return (x ^ sign) - sign
}

// clip keeps x within limit of zero.
func (x fixed) clip(limit fixed) fixed { return min(max(x, -limit), limit) }

// The logarithm of a number is that of the middle of its 256th of an octave, which is tabled, and two terms of the series of ln(1+r)
// for what is left, |r| ≤ 2⁻⁹: r - r²/2 = 1/2 - (1-r)²/2. The third is below 2⁻²⁸.
const (
	tableBits    = 8
	mantissaBits = 52
	exponents    = 2046 // of numbers with a whole mantissa, from 1 on
	bias         = 1023
	precise      = unit << finer
	octave       = 762123384786      // ln 2 · 2⁴⁰
	half         = 1 << 39           // a half, as precise
	rootHalf     = 741455.2001894653 // its root
)

// table has for each part of an octave the inverse of its middle, and its logarithm and a half.
var table = func() (t [1 << tableBits]struct {
	inverse float64
	log     int64
}) {
	for i := range t {
		middle := 1 + (float64(i)+0.5)/(1<<tableBits)
		t[i].inverse = rootHalf / middle
		t[i].log = int64(math.Round(math.Log(middle)*precise)) + half
	}
	return t
}()

// logarithms writes those of positive numbers to y, missing for all else, and counts the former. y is as long as v.
func logarithms(y []fixed, v []float64) (have int) {
	y = y[:len(v)]
	without := 0
	for i, x := range v {
		b := math.Float64bits(x)
		exponent := b >> mantissaBits
		if exponent-1 >= exponents {
			if y[i] = missing; b-1 < 1<<mantissaBits { // not negative, and less than the least number with a whole mantissa
				y[i] = fix(math.Log(x))
			} else {
				without++
			}
			continue
		}
		t := &table[b>>(mantissaBits-tableBits)%(1<<tableBits)]
		octaves := int64(exponent) - bias
		rest := 2*rootHalf - math.Float64frombits(b-uint64(octaves)<<mantissaBits)*t.inverse
		y[i] = fixed(octaves*octave+t.log-int64(rest*rest)) >> finer
	}
	return len(v) - without
}
