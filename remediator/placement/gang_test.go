package placement_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/placement"
)

func views(ns []placement.Node) (out []*fleet.Node) {
	for i := range ns {
		out = append(out, &ns[i])
	}
	slices.SortFunc(out, func(a, b *fleet.Node) int { return cmpNames(a.Name, b.Name) })
	return out
}

func cmpNames(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// TestMembersPlacedTogetherGetWhatEachWouldGetAlone compares the chooser, which carries what it knows from member to member, with one
// that is made anew for each.
func TestMembersPlacedTogetherGetWhatEachWouldGetAlone(t *testing.T) {
	moved := 0
	for seed := range uint64(worlds) {
		r, ns := world(seed)
		g := rand.New(rand.NewPCG(seed, 9))
		r.Exclude = []string{ns[0].Name, ns[len(ns)-1].Name}
		c := placement.NewChooser(r, views(ns))
		alone, room := r, slices.Clone(ns)
		for range 4 {
			mv := placement.Move{Faulty: r.Exclude[g.IntN(2)]}
			if len(r.Peers) > 0 && g.IntN(3) == 0 {
				mv.At = r.Peers[g.IntN(len(r.Peers))]
			}
			got := c.Choose(mv)
			alone.Faulty = mv.Faulty
			one := alone
			if at := slices.Index(alone.Peers, mv.At); at >= 0 {
				one.Peers = slices.Delete(slices.Clone(alone.Peers), at, at+1)
			}
			want := placement.NewChooser(one, views(room)).Choose(placement.Move{Faulty: mv.Faulty})
			if d := cmp.Diff(want, got); d != "" {
				t.Fatalf("seed %d: %s", seed, d)
			}
			if got.Node == "" {
				break
			}
			moved++
			if k, ok := c.Check(mv, got.Node); !ok || !k.Chosen {
				t.Fatalf("seed %d: %s was chosen, and checked alone it is %+v", seed, got.Node, k)
			}
			c.Take(got.Node)
			alone.Peers = append(slices.Clone(alone.Peers), got.Node)
			at := slices.IndexFunc(room, func(n placement.Node) bool { return n.Name == got.Node })
			room[at].Free = map[string]int64{gpu: room[at].Free[gpu] - r.Requests[gpu], "cpu": room[at].Free["cpu"] - r.Requests["cpu"]}
		}
	}
	if moved < worlds/2 {
		t.Errorf("only %d members were placed; the test shows little", moved)
	}
}

func TestTheNodeChosenBeforeIsChosenAgainWhileItWillDo(t *testing.T) {
	ns := append(cluster(), in("a5", "b1", "r1"))
	r := request()
	r.Keep = 2
	d := placement.NewChooser(r, views(ns)).Choose(placement.Move{Faulty: "a1", Prefer: "a5"})
	if d.Node != "a5" || !d.Candidates[0].Chosen || d.Candidates[1].Node != "a4" || d.Candidates[1].Reason != placement.RankedLower {
		t.Errorf("%+v", d)
	}
	ns[len(ns)-1].Ready = false
	if d = placement.NewChooser(r, views(ns)).Choose(placement.Move{Faulty: "a1", Prefer: "a5"}); d.Node != "a4" {
		t.Errorf("%+v", d)
	}
	if d = placement.NewChooser(r, views(ns)).Choose(placement.Move{Faulty: "a1", Prefer: "gone"}); d.Node != "a4" {
		t.Errorf("%+v", d)
	}
}

func TestADecisionKeepsTheBestFewAndCountsTheRest(t *testing.T) {
	for seed := range uint64(worlds) {
		r, ns := world(seed)
		all := placement.Choose(r, ns)
		r.Keep = 1 + int(seed%6)
		few := placement.Choose(r, ns)
		if d := cmp.Diff(all.Candidates[:min(r.Keep, len(all.Candidates))], few.Candidates); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
		count := map[placement.Reason]int{}
		for _, k := range all.Candidates {
			if k.Reason != placement.Chosen && k.Reason != placement.RankedLower {
				count[k.Reason]++
			}
		}
		if d := cmp.Diff(count, few.Rejected); d != "" || few.Node != all.Node || few.Reason != all.Reason || few.Eligible+sumOf(count) != len(ns) {
			t.Fatalf("seed %d: %s\n%+v\n%+v", seed, d, all, few)
		}
	}
}

func sumOf(m map[placement.Reason]int) (n int) {
	for _, k := range m {
		n += k
	}
	return n
}

// big is a cluster of 5,000 nodes in racks of 32 with as many labels as feature discovery writes, and a gang of 512 on its first nodes.
func big(hostTier bool) (placement.Request, []*fleet.Node) {
	var out []*fleet.Node
	for i := range 5000 {
		n := node(fmt.Sprintf("gpu-node-%04d", i), "topology.kubernetes.io/zone", "a", "network.topology.nvidia.com/leaf", fmt.Sprint("leaf-", i/32),
			"network.topology.nvidia.com/spine", fmt.Sprint("spine-", i/512), "node.kubernetes.io/instance-type", "p5", "nvidia.com/gpu.memory", "81559",
			"kubernetes.io/arch", "amd64", "kubernetes.io/os", "linux")
		for k := range 45 {
			n.Labels[fmt.Sprintf("feature.node.kubernetes.io/cpu-cpuid.F%02d", k)] = "true"
		}
		if hostTier {
			n.Labels["cloud.google.com/gce-topology-host"] = n.Name
		}
		if i < 512 {
			n.Free[gpu] = 0
		}
		if i%7 == 0 {
			n.LastFault = now.Add(-time.Hour)
		}
		out = append(out, &n)
	}
	r := placement.Request{Requests: map[string]int64{gpu: 8, "cpu": 1000}, Now: now, Keep: 8, MaxTierLoss: 3}
	for _, n := range out[:512] {
		r.Peers = append(r.Peers, n.Name)
	}
	return r, out
}

// BenchmarkAllMovesOfAGangAmong5000Nodes places 8 or all 512 members of a gang of 512.
func BenchmarkAllMovesOfAGangAmong5000Nodes(b *testing.B) {
	for _, moves := range []int{1, 8, 512} {
		for _, hosts := range []bool{false, true} {
			b.Run(fmt.Sprintf("moves=%d/hostTier=%v", moves, hosts), func(b *testing.B) {
				r, ns := big(hosts)
				r.Peers, r.Exclude = r.Peers[moves:], r.Peers[:moves]
				b.ReportAllocs()
				for b.Loop() {
					c := placement.NewChooser(r, ns)
					for i := range moves {
						d := c.Choose(placement.Move{Faulty: ns[i].Name})
						if d.Node == "" {
							b.Fatal(d.Reason)
						}
						c.Take(d.Node)
					}
				}
			})
		}
	}
}
