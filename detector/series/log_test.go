package series

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestTheTableLogarithmIsExactToABillionth(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for i := range 1_000_000 {
		x := math.Exp(1400*rng.Float64() - 700)
		if i%2 == 0 {
			x = 0.5 + 2*rng.Float64()
		}
		if d := math.Abs(ln(x) - math.Log(x)); d > 1e-9*max(1, math.Abs(math.Log(x))) {
			t.Fatalf("ln %g is off by %g", x, d)
		}
	}
	for _, x := range []float64{least, math.MaxFloat64, 1} {
		if got, want := ln(x), math.Log(x); got != want && !(math.Abs(got-want) <= 1e-9*max(1, math.Abs(want))) {
			t.Errorf("ln %g = %g, want %g", x, got, want)
		}
	}
}
