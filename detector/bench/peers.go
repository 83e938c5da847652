package bench

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/pitcrew/pitcrew/detector/peers"
)

// PeerFigures are those of the peers on real traces.
type PeerFigures struct {
	One        PeerCase `json:"one_slow_named_first"`
	Several    PeerCase `json:"up_to_forty_percent_slow_all_named"`
	Imbalanced []string `json:"ar_named"` // role/rank
	SE         []string `json:"se_named"`
	Labels     []string `json:"minibatch"` // each label: found or missed, and what else was named
}

// PeerCase is a count of injections.
type PeerCase struct {
	N     int     `json:"n"`
	Hits  int     `json:"hits"`
	Share float64 `json:"share"`
	Other int     `json:"with_others_named"`
}

func (c *PeerCase) add(hit, other bool) {
	c.N++
	if hit {
		c.Hits++
	}
	if other {
		c.Other++
	}
	c.Share = float64(c.Hits) / float64(c.N)
}

// role is the rounds of one role: values by round and member.
type role struct {
	name    string
	members []string
	rounds  [][]float64
}

// stragglerRoles reads compute time by pipeline stage: ranks of one stage do the same work.
func stragglerRoles(dir, trace string) ([]role, error) {
	type key struct{ step, member int }
	values := map[int]map[key]float64{}
	cols := []string{"step", "rank", "stage", "sum_s_backward-compute", "sum_s_forward-compute"}
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
			row := make([]float64, len(members))
			for i, m := range members {
				x, ok := v[key{s, m}]
				if !ok {
					x = math.NaN()
				}
				row[i] = x
			}
			r.rounds = append(r.rounds, row)
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

// named replays a role and gives what was named, in order, with the round.
type naming struct {
	peers.Finding
	round int
}

func (r role) replay(rounds [][]float64) (out []naming, err error) {
	g, err := peers.New(len(r.members))
	if err != nil {
		return nil, err
	}
	for i, v := range rounds {
		for _, f := range g.Round(int64(i)*1e9, v) {
			if f.Ended == 0 && (f.What == peers.Slow || f.What == peers.Imbalance) {
				out = append(out, naming{f, i})
			}
		}
	}
	return out, nil
}

// arCulprit is the rank of trace AR that is known to be slow: its role is not healthy. What the detector says of a role plays no
// part in the choice.
const arCulprit = "0"

// PeerQuality measures the peers on the traces below dir.
func PeerQuality(dir string) (*PeerFigures, error) {
	out := &PeerFigures{}
	var healthy []role
	for _, trace := range []string{"AR", "SE"} {
		roles, err := stragglerRoles(dir, trace)
		if err != nil {
			return nil, err
		}
		for _, r := range roles {
			if len(r.members) < 4 {
				continue
			}
			got, err := r.replay(r.rounds)
			if err != nil {
				return nil, err
			}
			for _, n := range got {
				s := fmt.Sprintf("%s: rank %s %s at round %d, ratio %.2f", r.name, r.members[n.Member], n.What, n.round, n.Ratio)
				if trace == "AR" {
					out.Imbalanced = append(out.Imbalanced, s)
				} else {
					out.SE = append(out.SE, s)
				}
			}
			if trace != "AR" || !slices.Contains(r.members, arCulprit) {
				healthy = append(healthy, r)
			}
		}
	}
	batch, err := miniBatch(dir, out)
	if err != nil {
		return nil, err
	}
	healthy = append(healthy, batch...)
	rng := rand.New(rand.NewPCG(Seed, 3))
	for _, r := range healthy {
		for range 60 {
			if err := injectPeers(r, 1, rng, &out.One); err != nil {
				return nil, err
			}
		}
		for range 60 {
			k := 1 + rng.IntN(max(1, int(0.4*float64(len(r.members)))))
			if err := injectPeers(r, k, rng, &out.Several); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// injectPeers slows k members by 1.3 to 2 from a round on, for twelve rounds.
func injectPeers(r role, k int, rng *rand.Rand, c *PeerCase) error {
	slow := rng.Perm(len(r.members))[:k]
	factor := 1.3 + 0.7*rng.Float64()
	if len(r.rounds) < 28 {
		return nil
	}
	from := 12 + rng.IntN(len(r.rounds)-24)
	rounds := make([][]float64, len(r.rounds))
	for i, v := range r.rounds {
		rounds[i] = slices.Clone(v)
		if i >= from && i < from+12 {
			for _, m := range slow {
				rounds[i][m] *= factor
			}
		}
	}
	got, err := r.replay(rounds)
	if err != nil {
		return err
	}
	var inside []int
	other := false
	for _, n := range got {
		if n.round >= from && n.round < from+12 {
			inside = append(inside, n.Member)
			other = other || !slices.Contains(slow, n.Member)
		}
	}
	hit := len(inside) > 0 && slices.Contains(slow, inside[0])
	if k > 1 {
		for _, m := range slow {
			hit = hit && slices.Contains(inside, m)
		}
	}
	c.add(hit, other)
	return nil
}

// miniBatch judges both jobs of workers against their labels and gives their healthy stretches as roles.
func miniBatch(dir string, out *PeerFigures) ([]role, error) {
	var labels map[string][]struct {
		Workers    []int
		Start, End float64
	}
	b, err := os.ReadFile(filepath.Join(dir, "minibatch", "labels.json"))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &labels); err != nil {
		return nil, err
	}
	var healthy []role
	for _, job := range []string{"job_1", "job_3"} {
		r := role{name: job}
		index := map[string]int{}
		var times []float64
		err := readCSV(filepath.Join(dir, "minibatch", job+"_norm.csv"), []string{"worker", "time", "batch_time_norm"}, func(c []string) error {
			t, err := strconv.ParseFloat(c[1], 64)
			if err != nil {
				return err
			}
			v, err := strconv.ParseFloat(c[2], 64)
			if err != nil {
				v = math.NaN()
			}
			if len(times) == 0 || times[len(times)-1] != t {
				times = append(times, t)
				r.rounds = append(r.rounds, nil)
			}
			at, ok := index[c[0]]
			if !ok {
				at = len(index)
				index[c[0]] = at
				r.members = append(r.members, c[0])
			}
			row := &r.rounds[len(r.rounds)-1]
			for len(*row) <= at {
				*row = append(*row, math.NaN())
			}
			(*row)[at] = v
			return nil
		})
		if err != nil {
			return nil, err
		}
		for i := range r.rounds {
			for len(r.rounds[i]) < len(r.members) {
				r.rounds[i] = append(r.rounds[i], math.NaN())
			}
		}
		got, err := r.replay(r.rounds)
		if err != nil {
			return nil, err
		}
		for _, l := range labels[job] {
			var found, others []string
			for _, n := range got {
				w, _ := strconv.Atoi(r.members[n.Member])
				s := fmt.Sprintf("%d@%.0f(%s %.2f)", w, times[n.round], n.What, n.Ratio)
				if times[n.round] >= l.Start-20 && times[n.round] <= l.End+20 && slices.Contains(l.Workers, w) {
					found = append(found, s)
				} else {
					others = append(others, s)
				}
			}
			out.Labels = append(out.Labels, fmt.Sprintf("%s workers %v from %.0f to %.0f: found %v; else %v", job, l.Workers, l.Start, l.End, found, others))
		}
		end := len(r.rounds)
		for i, t := range times {
			if t >= labels[job][0].Start-50 {
				end = i
				break
			}
		}
		healthy = append(healthy, role{name: job, members: r.members, rounds: r.rounds[:end]})
	}
	return healthy, nil
}
