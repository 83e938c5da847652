package offline

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "draw docs/img/detect-kinds.png anew")

// exampleOfEachKind is a file with one series for each kind of finding. All of it is simulated.
func exampleOfEachKind() string {
	rng := rand.New(rand.NewPCG(11, 11))
	var b strings.Builder
	b.WriteString("timestamp,kind,phase,v\n")
	clock := 1_767_225_600.0 // 2026-01-01
	add := func(kind string, v float64) { fmt.Fprintf(&b, "%.3f,%s,train,%.3f\n", clock, kind, v) }
	noise := func(v, share float64) float64 { return v * math.Exp(share*rng.NormFloat64()) }
	times := func(i, from, to int, factor float64) float64 {
		if i >= from && i < to {
			return factor
		}
		return 1
	}
	const n = 600 // values, one a second
	for i := range n {
		clock++
		add("spike", noise(50, 0.02)*times(i, 300, 327, 1.3))
		if i < 300 || i >= 360 {
			add(whatAbsent, noise(70, 0.02))
		}
	}
	for i := range n {
		clock++
		add("shift", noise(50, 0.02)*times(i, 300, 480, 1.2))
	}
	for i := range n {
		clock++
		add("drift", noise(50, 0.01)*times(i, 300, 380, 1+0.0025*float64(i-300)))
	}
	for i := range n {
		clock++
		if i == 300 {
			clock += 12
		}
		add("stall", noise(1000, 0.02)*times(i, 300, 301, 13))
	}
	for i := range n {
		clock++
		v := 20 + rng.NormFloat64()
		if i >= 250 && i < 500 {
			v = 20
		}
		add("flatline", v)
	}
	for i := range 4000 {
		clock += 300
		add("novel", 50+20*math.Sin(2*math.Pi*float64(i)/288)+3*rng.NormFloat64()+60*(times(i, 3000, 3012, 2)-1))
	}
	return b.String()
}

func TestEachKindInTheDocumentationIsCalledSo(t *testing.T) {
	_, found := detect(t, exampleOfEachKind(), func(o *Options) {
		o.SeriesBy = "kind"
		if *update {
			o.Plot = filepath.Join("..", "..", "docs", "img", "detect-kinds.png")
		}
	})
	called := map[string][]string{}
	for _, f := range found {
		called[f.Series] = append(called[f.Series], fmt.Sprintf("%s %.0f s", f.What, f.Seconds))
	}
	for _, k := range kindColours {
		if got := called[k.what]; len(got) == 0 || !strings.HasPrefix(got[0], k.what+" ") {
			t.Errorf("%s is called %v", k.what, got)
		}
	}
	t.Log(called)
}
