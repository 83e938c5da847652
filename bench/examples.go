package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// exampleHits and exampleMisses are how many pictures the documentation shows.
const (
	exampleHits   = 3
	exampleMisses = 2
)

// WriteExamples writes told runs with a fault as files for `pitcrew detect --plot`: a hit of each of three faults, and two misses of the
// first fault, the first ones that the benchmark meets. The file's name says what it is.
func WriteExamples(dir, out string) error {
	runs, err := LoadTraining(dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for i, f := range []Fault{Faults[0], Faults[3], Faults[5]} {
		rng := rand.New(rand.NewPCG(Seed, Seed))
		hits, misses := 0, 0
		for _, r := range runs {
			in, ok := place(r, f, 0, rng)
			if !ok {
				continue
			}
			hit := false
			for j, p := range replay(r, in.MS, Told, 0, nil) {
				hit = hit || p.rise && j >= in.First && j < in.End
			}
			name := ""
			switch {
			case hit && hits < exampleHits/3 && len(r.Changes) > 0:
				hits++
				name = fmt.Sprintf("hit-%d.csv", i+1)
			case !hit && i == 0 && misses < exampleMisses:
				misses++
				name = fmt.Sprintf("miss-%d.csv", misses)
			}
			if name == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(out, name), []byte(in.csv()), 0o644); err != nil {
				return err
			}
			fmt.Printf("%s: run %s of %s, %s at step %d\n", name, r.ID, r.Record, f.Name, r.Rows[in.First].Step)
		}
	}
	return nil
}

// csv is the run as told to `pitcrew detect`.
func (in Injected) csv() string {
	var b strings.Builder
	b.WriteString("timestamp,step,phase,workload,step_ms\n")
	clock := 0.0
	for i, row := range in.Run.Rows {
		ms, phase := in.MS[i], "train"
		switch {
		case math.IsNaN(ms):
			continue
		case row.Eval:
			phase = "eval"
		case row.Step <= warmupSteps:
			phase = "warmup"
		}
		if !row.Eval {
			clock += ms / 1000
		}
		fmt.Fprintf(&b, "%.6f,%d,%s,%d,%.0f\n", clock+float64(i)*1e-6, row.Step, phase, in.Run.Workload[i], ms)
	}
	return b.String()
}
