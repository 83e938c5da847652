package bench

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"

	"github.com/pitcrew/pitcrew/detector/class"
)

// ClassFigures are those of comparing classes by driver, on the recorded training runs.
type ClassFigures struct {
	Records      int         `json:"records_with_six_runs_of_one_driver"`
	RealPairs    []string    `json:"pairs_of_real_drivers"` // of one record; what can be said of them
	Contiguous   ClassSplits `json:"first_half_against_second"`
	Drawn        ClassSplits `json:"drawn_halves"`
	BetweenRunsP []float64   `json:"between_runs_relative_p50_p90_max"` // levels of two runs of one class, step by step
}

// ClassSplits are comparisons of two halves of one class, called two drivers: nothing found is false without an injection, and
// everything is missed that is not found with one.
type ClassSplits struct {
	N       int       `json:"n"`
	False   int       `json:"false"`  // either half called slow
	Recall  []float64 `json:"recall"` // of SlowDrivers, the slow half called slow
	Wrong   []int     `json:"wrong"`  // the other half called slow
	LastErr float64   `json:"largest_error_of_the_ratio"`
}

// SlowDrivers are the factors by which a driver is made slow.
var SlowDrivers = []float64{1.05, 1.10}

// Classes measures the comparison of classes on the training runs below dir.
func Classes(dir string, runs []*TrainingRun) (*ClassFigures, error) {
	driver := map[string]string{}
	err := readCSV(filepath.Join(dir, "training-steps", "runs.csv"), []string{"run", "driver"}, func(c []string) error {
		driver[c[0]] = c[1]
		return nil
	})
	if err != nil {
		return nil, err
	}
	byRecord := map[string][]*TrainingRun{}
	for _, r := range runs {
		byRecord[r.Record] = append(byRecord[r.Record], r)
	}
	records := make([]string, 0, len(byRecord))
	for k := range byRecord {
		records = append(records, k)
	}
	slices.Sort(records)
	out := &ClassFigures{}
	rng := rand.New(rand.NewPCG(Seed, 11))
	var between []float64
	for _, rec := range records {
		rs := byRecord[rec]
		byDriver := map[string][]*TrainingRun{}
		for _, r := range rs {
			byDriver[driver[r.ID]] = append(byDriver[driver[r.ID]], r)
		}
		drivers := slices.Sorted(maps.Keys(byDriver))
		if len(drivers) > 1 {
			s := rec + ":"
			for _, d := range drivers {
				s += fmt.Sprintf(" %s with %d runs", d, len(byDriver[d]))
			}
			out.RealPairs = append(out.RealPairs, s)
		}
		for _, d := range drivers {
			rs := byDriver[d]
			for i, r := range rs[1:] {
				a, b := byStep(rs[i]), byStep(r)
				var d []float64
				for s := warmupSteps + 1; s < min(len(a), len(b)); s++ {
					if a[s] > 0 && b[s] > 0 {
						d = append(d, math.Log(a[s]/b[s]))
					}
				}
				if len(d) > 0 {
					between = append(between, math.Abs(median(d)))
				}
			}
			if len(rs) < 6 {
				continue
			}
			out.Records++
			half := len(rs) / 2
			if err := out.Contiguous.add(rec, rs[:half], rs[half:]); err != nil {
				return nil, err
			}
			for range 10 {
				p := rng.Perm(len(rs))
				pick := func(at []int) (out []*TrainingRun) {
					for _, i := range at {
						out = append(out, rs[i])
					}
					return out
				}
				if err := out.Drawn.add(rec, pick(p[:half]), pick(p[half:])); err != nil {
					return nil, err
				}
			}
		}
	}
	slices.Sort(between)
	if len(between) > 0 {
		out.BetweenRunsP = []float64{quantile(between, 0.5), quantile(between, 0.9), between[len(between)-1]}
	}
	return out, nil
}

// add compares both halves as they are, and with either made slow.
func (c *ClassSplits) add(record string, a, b []*TrainingRun) error {
	if c.Recall == nil {
		c.Recall, c.Wrong = make([]float64, len(SlowDrivers)), make([]int, len(SlowDrivers))
	}
	slow, other, _, err := compareDrivers(record, a, b, 1)
	if err != nil {
		return err
	}
	if slow || other {
		c.False++
	}
	for i, f := range SlowDrivers {
		slow, other, ratio, err := compareDrivers(record, a, b, f)
		if err != nil {
			return err
		}
		hit := 0.0
		if slow {
			hit = 1
		}
		if other {
			c.Wrong[i]++
		}
		c.Recall[i] += (hit - c.Recall[i]) / float64(c.N+1)
		c.LastErr = max(c.LastErr, math.Abs(ratio-f))
	}
	c.N++
	return nil
}

// compareDrivers says whether the first runs, slowed by a factor and written in whole milliseconds, are called slow against the
// others, and whether those are.
func compareDrivers(record string, a, b []*TrainingRun, factor float64) (slow, other bool, ratio float64, err error) {
	s, err := class.New(class.Config{})
	if err != nil {
		return false, false, 0, err
	}
	key := func(driver string) class.Key {
		return class.Key{Signature: class.Signature{Model: record, GPU: "H100", Driver: driver}, Signal: "step"}
	}
	for d, rs := range map[string][]*TrainingRun{"slow": a, "other": b} {
		for i, r := range rs {
			for at, row := range r.Rows {
				if row.Eval || row.Step <= warmupSteps {
					continue
				}
				v := row.MS
				if d == "slow" {
					v = math.Round(v * factor)
				}
				s.Observe(key(d), r.ID, int64(row.Step), int64(i)<<32+int64(at), v)
			}
		}
	}
	for _, d := range s.Compare(key("slow"), class.Driver) {
		slow, ratio = slow || d.Slow, d.Ratio
	}
	for _, d := range s.Compare(key("other"), class.Driver) {
		other = other || d.Slow
	}
	return slow, other, ratio, nil
}
