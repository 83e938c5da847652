package bench

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sort"
	"testing"

	"github.com/pitcrew/pitcrew/detector/series"
)

func TestProbe(t *testing.T) {
	dir := os.Getenv("PITCREW_DATA")
	if dir == "" {
		t.Skip("PITCREW_DATA")
	}
	runs, err := LoadTraining(dir)
	if err != nil {
		t.Fatal(err)
	}
	nch := 0
	for _, r := range runs {
		nch += len(r.Changes)
	}
	fmt.Println("runs", len(runs), "changes", nch)
	for _, m := range []Mode{Told, Siblings, Untold} {
		ref := refs(runs)
		hours, alarm, rises := 0.0, 0.0, 0
		type ev struct {
			r    string
			step int
			t    float64
		}
		var evs []ev
		whats := map[series.What]int{}
		for _, r := range runs {
			if m == Siblings && ref[r.ID] == nil {
				continue
			}
			ps := replay(r, nil, m, 0, ref[r.ID])
			last := 0.0
			for i, p := range ps {
				hours += (p.t - last) / 3600
				if p.alarm {
					alarm += (p.t - last) / 3600
				}
				last = p.t
				if p.rise {
					rises++
					whats[p.what]++
					evs = append(evs, ev{r.ID, r.Rows[i].Step, p.t})
				}
			}
		}
		fmt.Printf("%s clean: %d rises in %.1f h, alarm share %.4f\n", m, rises, hours, alarm/hours)
		if m != Untold && os.Getenv("EV") != "" {
			fmt.Println(evs, whats)
		}
		fs := append([]Fault{}, Faults...)
		if m == Siblings {
			fs = append(fs, Subtle)
		}
		for _, f := range fs {
			rng := rand.New(rand.NewPCG(7, 7))
			n, hit := 0, 0
			var delays []float64
			oa, ot := 0.0, 0.0
			placed := map[string]int{}
			by := map[string]float64{}
			var miss []string
			for _, r := range runs {
				if m == Siblings && ref[r.ID] == nil {
					continue
				}
				away := 0.0
				if m == Untold {
					away = 20
				}
				in, ok := place(r, f, away, rng)
				if !ok {
					continue
				}
				ps := replay(r, in.MS, m, 0, ref[r.ID])
				placed[r.ID] = r.Rows[in.First].Step
				n++
				got := false
				last := 0.0
				t0 := ps[in.First-1].t
				for i, p := range ps {
					if p.rise && !got && i >= in.First && i < in.End {
						got = true
						hit++
						delays = append(delays, p.t-t0)
					}
					if i < in.First || i >= in.End {
						ot += p.t - last
						if p.alarm {
							oa += p.t - last
							by[r.ID] += p.t - last
						}
					}
					last = p.t
				}
				if !got {
					miss = append(miss, fmt.Sprint(r.ID, "@", r.Rows[in.First].Step))
				}
			}
			sort.Float64s(delays)
			q := func(p float64) float64 {
				if len(delays) == 0 {
					return -1
				}
				return delays[int(p*float64(len(delays)-1))]
			}
			fmt.Printf("  %-16s n %d recall %.3f delay p50 %.2f p90 %.2f alarm outside %.4f\n", f.Name, n, float64(hit)/float64(n), q(.5), q(.9), oa/ot)
			if os.Getenv("EV") != "" {
				for k, v := range by {
					if v > .02*ot {
						fmt.Printf("   %s: %.0f s of %.0f\n", k, v, oa)
					}
					_ = k
				}
				n1, n2, n3 := 0, 0, 0
				for k, v := range by {
					if v > 50 && n3 < 8 {
						fmt.Print(k, " ", placed[k], "; ")
					}
					if v > 1 {
						n1++
					}
					if v > 5 {
						n2++
					}
					if v > 50 {
						n3++
					}
				}
				fmt.Println("   runs with >1 s, >5, >50:", n1, n2, n3)
				fmt.Println(miss)
			}
		}
	}
}

func TestAsked(t *testing.T) {
	dir := os.Getenv("PITCREW_DATA")
	if dir == "" {
		t.Skip("PITCREW_DATA")
	}
	runs, err := LoadTraining(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, asked := range []float64{30, 8, 1} {
		h, n := map[string]float64{}, map[string]int{}
		H, N := 0.0, 0
		for _, r := range runs {
			ps := replay(r, nil, Told, asked, nil)
			h[r.Record] += ps[len(ps)-1].t / 3600
			H += ps[len(ps)-1].t / 3600
			for _, p := range ps {
				if p.rise {
					n[r.Record]++
					N++
				}
			}
		}
		var ks []string
		for k := range n {
			ks = append(ks, k)
		}
		sort.Slice(ks, func(i, j int) bool { return n[ks[i]] > n[ks[j]] })
		for _, k := range ks[:min(6, len(ks))] {
			fmt.Printf("   %s %d in %.2f h", k, n[k], h[k])
		}
		var rs []float64
		for k := range h {
			rs = append(rs, float64(n[k])/h[k]/asked)
		}
		sort.Float64s(rs)
		fmt.Printf("asked %g seen %.2f ratio %.3f max record %.2f %.2f %.2f median %.2f\n", asked, float64(N)/H, float64(N)/H/asked, rs[len(rs)-1], rs[len(rs)-2], rs[len(rs)-5], rs[len(rs)/2])
	}
}
