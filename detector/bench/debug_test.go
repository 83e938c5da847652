package bench

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"testing"
)

var dbg func(i int, s string)

func TestOne(t *testing.T) {
	runs, _ := LoadTraining(os.Getenv("PITCREW_DATA"))
	at, _ := strconv.Atoi(os.Getenv("AT"))
	fi, _ := strconv.Atoi(os.Getenv("FI"))
	ref := refs(runs)
	for _, r := range runs {
		if r.ID == os.Getenv("RUN") {
			var ms []float64
			if fi >= 0 {
				for i, row := range r.Rows {
					if row.Step == at && !row.Eval {
						fs := append(Faults, Subtle)
						in, _ := inject(r, fs[fi], i)
						ms = in.MS
						fmt.Println("fault rows", in.First, in.End)
					}
				}
			}
			fmt.Println("changes", r.Changes)
			lo, _ := strconv.Atoi(os.Getenv("LO"))
			hi, _ := strconv.Atoi(os.Getenv("HI"))
			st, _ := strconv.Atoi(os.Getenv("ST"))
			debugHook = func(i int, s string) {
				if i >= lo && i < hi && i%st == 0 {
					v := r.Rows[i].MS
					if ms != nil {
						v = ms[i]
					}
					fmt.Println(i, r.Rows[i].Step, r.Rows[i].Eval, v, s)
				}
			}
			asked, _ := strconv.ParseFloat(os.Getenv("ASKED"), 64)
			ps := replay(r, ms, Mode(os.Getenv("MODE")), asked, ref[r.ID])
			for i, p := range ps {
				if p.rise {
					fmt.Println("RISE", i, r.Rows[i].Step, p.t)
				}
			}
			_ = math.Pi
		}
	}
}
