package bench

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pitcrew/pitcrew/detector/series"
)

// said is all that an engine says of a run, bit by bit: each verdict and each finding that it changes. At cut it is replaced by a new
// engine that takes up its snapshot; the pass ends at end.
func said(t *testing.T, r *TrainingRun, in Injected, m Mode, ref *series.Reference, cut, end int) (out []uint64, state string) {
	t.Helper()
	engine := func() *series.Engine {
		e, err := series.New(series.Config{Asked: 8, Bands: true})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	e := engine()
	id, err := e.Add(series.Ratio)
	if err != nil {
		t.Fatal(err)
	}
	f := feed{run: r, ms: in.MS, mode: m, ref: ref}
	for i := range r.Rows[:end] {
		if i == cut {
			next := engine()
			if err := next.Restore(e.Snapshot()); err != nil {
				t.Fatal(err)
			}
			e = next
		}
		x, given := f.next()
		if !given {
			continue
		}
		v := e.Observe(id, x)
		flags := uint64(v.Change)
		if v.Known {
			flags |= 1 << 8
		}
		if v.Alarm {
			flags |= 1 << 9
		}
		out = append(out, math.Float64bits(v.Score), math.Float64bits(v.Expected), math.Float64bits(v.Lower), math.Float64bits(v.Upper), flags)
		if v.Change != series.None {
			h := fnv.New64a()
			fmt.Fprintf(h, "%+v", *e.Finding(id))
			out = append(out, h.Sum64())
		}
	}
	return out, string(e.Snapshot())
}

func TestEveryPrefixASecondPassAndARestartSayTheSame(t *testing.T) {
	onRuns(t, func(t *testing.T, runs []*TrainingRun) {
		past := refs(runs)
		rng := rand.New(rand.NewPCG(Seed, 4))
		for i := 0; i < len(runs); i += max(1, len(runs)/24) {
			r := runs[i]
			in, ok := place(r, Faults[rng.IntN(len(Faults))], 0, rng)
			if !ok {
				continue
			}
			for _, m := range []Mode{Told, Siblings, Untold} {
				n := len(r.Rows)
				whole, state := said(t, r, in, m, past[r.ID], -1, n)
				if again, second := said(t, r, in, m, past[r.ID], -1, n); !slices.Equal(again, whole) || second != state {
					t.Fatalf("run %s, %s: two passes differ", r.ID, m)
				}
				for _, cut := range []int{in.First + 1 + rng.IntN(in.End-in.First), rng.IntN(n)} {
					if part, _ := said(t, r, in, m, past[r.ID], -1, cut); !slices.Equal(part, whole[:len(part)]) {
						t.Fatalf("run %s, %s: the first %d rows depend on later ones", r.ID, m, cut)
					}
					if part, second := said(t, r, in, m, past[r.ID], cut, n); !slices.Equal(part, whole) || second != state {
						t.Fatalf("run %s, %s: a restart at row %d changes what is said", r.ID, m, cut)
					}
				}
			}
		}
	})
}
