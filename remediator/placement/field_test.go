package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/fleet"
)

// A survey by places finds what a look at every node finds, whatever was taken and stepped out before.
func TestASurveyByPlacesIsALookAtEveryNode(t *testing.T) {
	now := time.Now()
	chosen, barred, useless := 0, 0, 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		var nodes []*fleet.Node
		for i := range 40 {
			n := &fleet.Node{Name: fmt.Sprintf("n%02d", i), Ready: r.IntN(10) > 0, Free: map[string]int64{"nvidia.com/gpu": int64(r.IntN(3) * 4)}, Labels: map[string]string{
				"network.topology.nvidia.com/leaf": fmt.Sprint(i / 5), "network.topology.nvidia.com/spine": fmt.Sprint(i / 20), "nvidia.com/gpu.product": fmt.Sprint("H", r.IntN(8)/7)}}
			if r.IntN(8) == 0 {
				n.Condition = "gpu/ecc"
			}
			if r.IntN(4) == 0 {
				n.LastFault = now.Add(-time.Hour)
			}
			nodes = append(nodes, n)
		}
		q := Request{Requests: map[string]int64{"nvidia.com/gpu": 4}, Now: now, Keep: []int{0, 1, 5}[r.IntN(3)], Mode: []Mode{Equivalent, Equivalent, Any, SameNode}[r.IntN(4)],
			MaxTierLoss: r.IntN(3), Failed: []string{"", "network.topology.nvidia.com/leaf"}[r.IntN(2)]}
		for range r.IntN(6) {
			q.Peers = append(q.Peers, nodes[r.IntN(len(nodes))].Name)
		}
		if r.IntN(3) == 0 {
			q.Apart = []string{"network.topology.nvidia.com/leaf"}
		}
		for range r.IntN(3) {
			q.Exclude = append(q.Exclude, nodes[r.IntN(len(nodes))].Name)
		}
		c := NewChooser(q, nodes)
		for range 8 {
			mv := Move{Faulty: nodes[r.IntN(len(nodes))].Name}
			if r.IntN(3) == 0 && len(q.Peers) > 0 {
				mv.At = q.Peers[0]
			}
			prefer := -1
			if r.IntN(3) == 0 {
				prefer = r.IntN(len(nodes))
			}
			func() {
				defer c.stepOut(mv.At)()
				m := c.measure(mv)
				var want [32]int
				var free []int
				for i := range nodes {
					reason := c.reason(m, i)
					if helps := q.Helps(nodes[i]); reason == eligible && !helps {
						t.Fatalf("seed %d: node %s is eligible and does not help", seed, nodes[i].Name)
					} else if !helps {
						useless++
					}
					if want[reason]++; reason == eligible && i != prefer {
						free = append(free, i)
					}
				}
				slices.SortFunc(free, func(a, b int) int {
					if c.before(m, a, b) {
						return -1
					}
					return 1
				})
				keep := q.Keep
				if keep == 0 {
					keep = len(nodes)
				}
				best := shortlist{keep: keep, less: func(a, b int) bool { return c.before(m, a, b) }}
				got := c.survey(m, prefer, &best)
				chosen, barred = chosen+len(free), barred+want[rankTooFar]
				if got != want || !slices.Equal(best.sorted(), free[:min(keep, len(free))]) {
					t.Fatalf("seed %d: %v, want %v; %v, want %v", seed, got, want, best.sorted(), free)
				}
			}()
			if d := c.Choose(mv); d.Node != "" {
				c.Take(d.Node)
			}
		}
	}
	if chosen == 0 || barred == 0 || useless == 0 {
		t.Errorf("%d were eligible, %d too far and %d useless: nothing was tested", chosen, barred, useless)
	}
}
