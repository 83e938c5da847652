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
	"time"

	"github.com/pitcrew/pitcrew/detector/peers"
)

// PeerFigures are those of the peers on real traces.
type PeerFigures struct {
	One        PeerCase        `json:"one_slow"`
	Several    PeerCase        `json:"up_to_forty_percent_slow"`
	Loaded     []PeerCase      `json:"the_same_on_pipelines_with_the_load_of_each_replica_given"`
	Roles      map[string]Pair `json:"shares_by_role"`
	Late       PeerCase        `json:"one_slow_of_trace_se_after_400_drawn_rounds"`
	Healthy    PeerHealth      `json:"healthy"`
	Nanos      float64         `json:"clock_ns_per_round_of_64_ranks_and_20_signals"` // least of ten batches
	Imbalanced []string        `json:"ar_named"`                                      // role/rank
	SE         []string        `json:"se_named"`
	Labels     []string        `json:"minibatch"` // each label: found or missed, and what else was named
}

// PeerCase is a count of injections: of one fault in a healthy role each.
type PeerCase struct {
	N        int     `json:"n"`
	First    float64 `json:"first_named_is_a_slow_one"`
	All      float64 `json:"all_slow_named_and_a_slow_one_first"`
	Other    int     `json:"with_others_named"`
	DelayP50 int     `json:"rounds_to_the_first_name_p50"`
	DelayP90 int     `json:"rounds_to_the_first_name_p90"`

	first, all int
	delays     []int
}

// Pair is the share of first named with one slow member, and with several.
type Pair struct {
	One     float64 `json:"one"`
	Several float64 `json:"several"`
}

// PeerHealth is what was named where nothing is wrong: as recorded, and with the rounds of trace SE, which do not depend on each
// other, drawn anew into long runs.
type PeerHealth struct {
	MemberRounds int `json:"member_rounds"`
	Named        int `json:"named"`
	DrawnRounds  int `json:"drawn_member_rounds"`
	DrawnNamed   int `json:"drawn_named"`
}

func (c *PeerCase) add(slow []int, got []naming, from, to int) {
	c.N++
	var inside []int
	other := false
	for _, n := range got {
		if n.round < from || n.round >= to {
			continue
		}
		if len(inside) == 0 {
			c.delays = append(c.delays, n.round-from+1)
		}
		inside = append(inside, n.Member)
		other = other || !slices.Contains(slow, n.Member)
	}
	if len(inside) == 0 {
		c.delays = append(c.delays, math.MaxInt32)
	}
	first := len(inside) > 0 && slices.Contains(slow, inside[0])
	all := first
	for _, m := range slow {
		all = all && slices.Contains(inside, m)
	}
	for count, yes := range map[*int]bool{&c.first: first, &c.all: all, &c.Other: other} {
		if yes {
			*count++
		}
	}
	slices.Sort(c.delays)
	c.DelayP50, c.DelayP90 = c.delays[(c.N-1)/2], c.delays[(c.N-1)*9/10]
	c.First, c.All = float64(c.first)/float64(c.N), float64(c.all)/float64(c.N)
}

// naming is what was named, in order, with the round.
type naming struct {
	peers.Finding
	round int
}

func (r role) replay(rounds, load [][]float64) (out []naming, err error) {
	g, err := peers.New(len(r.members))
	if err != nil {
		return nil, err
	}
	for i, v := range rounds {
		var l []float64
		if load != nil {
			l = load[i]
		}
		for _, f := range g.RoundLoad(int64(i)*1e9, v, l) {
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

const (
	injections   = 60 // of each kind in each healthy role
	faultRounds  = 12
	quietRounds  = 12 // before a fault
	drawnRounds  = 4000
	lateRounds   = 400
	mostSlow     = 0.4 // of a role
	slowerLeast  = 1.3
	slowerSpread = 0.7
)

// PeerQuality measures the peers on the traces below dir.
func PeerQuality(dir string) (*PeerFigures, error) {
	out := &PeerFigures{Loaded: make([]PeerCase, 2), Roles: map[string]Pair{}}
	var healthy []role
	rng := rand.New(rand.NewPCG(Seed, 3))
	for _, trace := range []string{"AR", "SE"} {
		roles, err := stragglerRoles(dir, trace)
		if err != nil {
			return nil, err
		}
		for _, r := range roles {
			if len(r.members) < 4 {
				continue
			}
			got, err := r.replay(r.rounds, nil)
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
			if trace == "AR" && slices.Contains(r.members, arCulprit) {
				continue
			}
			healthy = append(healthy, r)
			out.Healthy.MemberRounds += len(r.rounds) * len(r.members)
			out.Healthy.Named += len(got)
			if trace == "SE" {
				if err := out.Healthy.draw(r, rng); err != nil {
					return nil, err
				}
				if err := out.Late.late(r, rng); err != nil {
					return nil, err
				}
			}
		}
	}
	batch, err := miniBatch(dir, out)
	if err != nil {
		return nil, err
	}
	healthy = append(healthy, batch...)
	for _, r := range healthy {
		var one, several PeerCase
		for _, c := range []struct {
			role, all, loaded *PeerCase
			most              int
		}{{&one, &out.One, &out.Loaded[0], 1}, {&several, &out.Several, &out.Loaded[1], max(1, int(mostSlow*float64(len(r.members))))}} {
			for range injections {
				slow, rounds, from := injectPeers(r, 1+rng.IntN(c.most), rng)
				got, err := r.replay(rounds, nil)
				if err != nil {
					return nil, err
				}
				c.role.add(slow, got, from, from+faultRounds)
				c.all.add(slow, got, from, from+faultRounds)
				if r.load == nil {
					continue
				}
				if got, err = r.replay(rounds, r.load); err != nil {
					return nil, err
				}
				c.loaded.add(slow, got, from, from+faultRounds)
			}
		}
		out.Roles[r.name] = Pair{one.First, several.First}
	}
	out.Nanos, err = roundNanos(rng)
	return out, err
}

// draw replays a long healthy run.
func (h *PeerHealth) draw(r role, rng *rand.Rand) error {
	got, err := r.replay(r.drawn(drawnRounds, rng), nil)
	h.DrawnRounds += drawnRounds * len(r.members)
	h.DrawnNamed += len(got)
	return err
}

func (r role) drawn(n int, rng *rand.Rand) [][]float64 {
	rounds := make([][]float64, n)
	for i := range rounds {
		rounds[i] = r.rounds[rng.IntN(len(r.rounds))]
	}
	return rounds
}

// roundNanos is what a round of 64 ranks and 20 signals takes on this machine; the least of some batches, as others use it too.
func roundNanos(rng *rand.Rand) (float64, error) {
	groups := make([]*peers.Group, 20)
	for i := range groups {
		g, err := peers.New(64)
		if err != nil {
			return 0, err
		}
		groups[i] = g
	}
	rounds := make([][]float64, 16)
	for i := range rounds {
		for range 64 {
			rounds[i] = append(rounds[i], math.Exp(0.01*rng.NormFloat64()))
		}
	}
	const batches, each = 10, 200
	least := math.Inf(1)
	for b := range batches {
		start := time.Now()
		for i := range each {
			for _, g := range groups {
				g.Round(int64(b*each+i), rounds[i%len(rounds)])
			}
		}
		least = min(least, float64(time.Since(start).Nanoseconds())/each)
	}
	return least, nil
}

// late injects when a role has long been known.
func (c *PeerCase) late(r role, rng *rand.Rand) error {
	for range injections {
		rounds := r.drawn(lateRounds+faultRounds, rng)
		slow, factor := rng.IntN(len(r.members)), slowerLeast+slowerSpread*rng.Float64()
		for i := lateRounds; i < len(rounds); i++ {
			rounds[i] = slices.Clone(rounds[i])
			rounds[i][slow] *= factor
		}
		got, err := r.replay(rounds, nil)
		if err != nil {
			return err
		}
		c.add([]int{slow}, got, lateRounds, len(rounds))
	}
	return nil
}

// injectPeers slows k members by a factor of 1.3 to 2 from a round on, for twelve rounds.
func injectPeers(r role, k int, rng *rand.Rand) (slow []int, rounds [][]float64, from int) {
	slow = rng.Perm(len(r.members))[:k]
	factor := slowerLeast + slowerSpread*rng.Float64()
	from = quietRounds + rng.IntN(len(r.rounds)-quietRounds-faultRounds)
	rounds = make([][]float64, len(r.rounds))
	for i, v := range r.rounds {
		rounds[i] = slices.Clone(v)
		if i >= from && i < from+faultRounds {
			for _, m := range slow {
				rounds[i][m] *= factor
			}
		}
	}
	return slow, rounds, from
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
		got, err := r.replay(r.rounds, nil)
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
		out.Healthy.MemberRounds += end * len(r.members)
		for _, n := range got {
			if n.round < end {
				out.Healthy.Named++
			}
		}
	}
	return healthy, nil
}
