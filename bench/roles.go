package bench

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
)

// role is the rounds of one role: values by round and member.
type role struct {
	name    string
	members []string
	rounds  [][]float64
	load    [][]float64 // of each member and round: what its replica took on the other stages; nil: there are none
}

// stragglerRoles reads compute time by pipeline stage: ranks of one stage do the same work.
func stragglerRoles(dir, trace string) ([]role, error) {
	type key struct{ step, member int }
	values := map[int]map[key]float64{}
	replica := map[int]int{}
	byReplica := map[key]map[int]float64{} // step and replica: by stage
	cols := []string{"step", "rank", "stage", "sum_s_backward-compute", "sum_s_forward-compute", "dp_rank"}
	err := readCSV(filepath.Join(dir, "stragglers", "per_step_rank_"+trace+".csv.gz"), cols, func(c []string) error {
		n := make([]float64, len(c))
		for i, x := range c {
			v, err := strconv.ParseFloat(x, 64)
			if err != nil {
				return err
			}
			n[i] = v
		}
		stage := int(n[2])
		if values[stage] == nil {
			values[stage] = map[key]float64{}
		}
		values[stage][key{int(n[0]), int(n[1])}] = n[3] + n[4]
		replica[int(n[1])] = int(n[5])
		at := key{int(n[0]), int(n[5])}
		if byReplica[at] == nil {
			byReplica[at] = map[int]float64{}
		}
		byReplica[at][stage] = n[3] + n[4]
		return nil
	})
	if err != nil {
		return nil, err
	}
	var out []role
	for stage, v := range values {
		var steps, members []int
		for k := range v {
			steps, members = append(steps, k.step), append(members, k.member)
		}
		slices.Sort(steps)
		slices.Sort(members)
		steps, members = slices.Compact(steps), slices.Compact(members)
		r := role{name: fmt.Sprintf("%s stage %d", trace, stage)}
		for _, m := range members {
			r.members = append(r.members, strconv.Itoa(m))
		}
		for _, s := range steps {
			row, load := make([]float64, len(members)), make([]float64, len(members))
			for i, m := range members {
				x, ok := v[key{s, m}]
				if !ok {
					x = math.NaN()
				}
				row[i] = x
				var others []float64
				for st, x := range byReplica[key{s, replica[m]}] {
					if st != stage {
						others = append(others, x)
					}
				}
				load[i] = median(others)
			}
			r.rounds, r.load = append(r.rounds, row), append(r.load, load)
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b role) int {
		if a.name < b.name {
			return -1
		}
		return 1
	})
	return out, nil
}
