package placement_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew/pitcrew/remediator/placement"
)

// world is a random cluster with a random request; the same seed gives the same one.
func world(seed uint64) (placement.Request, []placement.Node) {
	g := rand.New(rand.NewPCG(seed, 7))
	pick := func(vs ...string) string { return vs[g.IntN(len(vs))] }
	rare := func() bool { return g.IntN(8) == 0 }
	var ns []placement.Node
	for i := range 3 + g.IntN(20) {
		n := in(fmt.Sprintf("n%02d", i), pick("b1", "b2"), pick("r1", "r2", "r3"), "nvidia.com/gpu.product", pick("H100", "H100", "H100", "A100"))
		n.Free[gpu] = int64(g.IntN(9))
		n.Ready, n.Unschedulable = !rare(), rare()
		if rare() {
			n.Taints = append(n.Taints, placement.Taint{Key: pick("team", placement.QuarantineTaint, placement.ReservedTaint), Value: pick("me", "x"), Effect: pick("NoSchedule", "NoExecute", "PreferNoSchedule")})
		}
		if rare() {
			n.Reserved = pick("me", "x")
		}
		if rare() {
			n.Condition = "gpu/ecc"
		}
		if rare() {
			n.Labels[placement.SpareLabel] = "true"
		}
		if rare() {
			n.LastFault = now.Add(-time.Duration(g.IntN(48)) * time.Hour)
		}
		if rare() {
			delete(n.Labels, pick(rack, block, zone, "nvidia.com/gpu.product"))
		}
		if rare() {
			n.Labels[nvl] = pick("u.1", "u.2")
		}
		ns = append(ns, n)
	}
	r := placement.Request{Incident: "me", Faulty: ns[0].Name, Requests: map[string]int64{gpu: int64(g.IntN(5)), "cpu": 1000},
		MaxTierLoss: g.IntN(3), Mode: placement.Mode(pick("equivalent", "equivalent", "any", "same-node")), Now: now, Share: rare()}
	for i := range g.IntN(4) {
		if 1+i < len(ns) {
			r.Peers = append(r.Peers, ns[1+i].Name)
		}
	}
	if rare() {
		r.Failed = pick(rack, block, placement.NodeScope)
	}
	if rare() {
		r.Tolerations = []placement.Toleration{{Operator: "Exists"}}
	}
	if rare() {
		r.NodeSelector = map[string]string{zone: "z1"}
	}
	return r, ns
}

const worlds = 3000

// TestAChosenNodeBreaksNoConstraint restates the hard constraints in the plainest words, apart from the code that keeps them.
func TestAChosenNodeBreaksNoConstraint(t *testing.T) {
	chosen := 0
	for seed := range uint64(worlds) {
		r, ns := world(seed)
		d := placement.Choose(r, ns)
		if d.Node == "" {
			continue
		}
		chosen++
		i := slices.IndexFunc(ns, func(n placement.Node) bool { return n.Name == d.Node })
		n, f := ns[i], ns[0]
		bad := map[string]bool{
			"not ready":       !n.Ready,
			"cordoned":        n.Unschedulable,
			"ill":             n.Condition != "" && r.Mode != placement.SameNode,
			"reserved":        n.Reserved != "" && n.Reserved != "me",
			"faulty":          (r.Mode == placement.SameNode) != (n.Name == f.Name),
			"peer":            slices.Contains(r.Peers, n.Name) && !r.Share,
			"gpus":            n.Free[gpu] < r.Requests[gpu],
			"product":         f.Labels["nvidia.com/gpu.product"] != "" && n.Labels["nvidia.com/gpu.product"] != f.Labels["nvidia.com/gpu.product"],
			"selector":        r.NodeSelector != nil && n.Labels[zone] != "z1",
			"too far":         r.Mode == placement.Equivalent && d.TierLoss > r.MaxTierLoss,
			"equivalent lies": d.Equivalent != (d.TierLoss == 0),
			"failed domain":   r.Failed != "" && r.Failed != placement.NodeScope && f.Labels[r.Failed] != "" && n.Labels[r.Failed] == f.Labels[r.Failed],
		}
		for _, x := range n.Taints {
			bad["quarantined"] = bad["quarantined"] || x.Key == placement.QuarantineTaint
			bad["reserved"] = bad["reserved"] || x.Key == placement.ReservedTaint && x.Value != "me"
			bad["tainted"] = bad["tainted"] || x.Key == "team" && x.Effect != "PreferNoSchedule" && len(r.Tolerations) == 0
		}
		for what, is := range bad {
			if is {
				t.Errorf("seed %d: %s: chose %+v for %+v", seed, what, n, r)
			}
		}
	}
	if chosen < worlds/10 {
		t.Errorf("only %d of %d worlds had a choice; the test shows little", chosen, worlds)
	}
}

func TestTheOrderOfTheNodesDoesNotMatter(t *testing.T) {
	for seed := range uint64(worlds) {
		r, ns := world(seed)
		want := placement.Choose(r, ns)
		g := rand.New(rand.NewPCG(seed, 8))
		g.Shuffle(len(ns), func(i, j int) { ns[i], ns[j] = ns[j], ns[i] })
		g.Shuffle(len(r.Peers), func(i, j int) { r.Peers[i], r.Peers[j] = r.Peers[j], r.Peers[i] })
		if d := cmp.Diff(want, placement.Choose(r, ns)); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
	}
}

func TestANodeThatWasNotChosenCanGoWithoutChangingTheChoice(t *testing.T) {
	for seed := range uint64(worlds) {
		r, ns := world(seed)
		want := placement.Choose(r, ns)
		for i, n := range ns {
			// The faulty node and the peers are what everything is measured against.
			if n.Name == want.Node || n.Name == r.Faulty || slices.Contains(r.Peers, n.Name) {
				continue
			}
			got := placement.Choose(r, slices.Delete(slices.Clone(ns), i, i+1))
			if got.Node != want.Node || got.TierLoss != want.TierLoss {
				t.Fatalf("seed %d: without %s it chose %q instead of %q", seed, n.Name, got.Node, want.Node)
			}
		}
	}
}

func TestEveryNodeHasOneReasonAndExactlyTheChosenOneIsChosen(t *testing.T) {
	for seed := range uint64(worlds) {
		r, ns := world(seed)
		d := placement.Choose(r, ns)
		seen := map[string]bool{}
		for _, k := range d.Candidates {
			if k.Reason == "" || seen[k.Node] || k.Chosen != (k.Node == d.Node) || k.Chosen != (k.Reason == placement.Chosen) {
				t.Fatalf("seed %d: %+v", seed, k)
			}
			seen[k.Node] = true
		}
		if len(seen) != len(ns) {
			t.Fatalf("seed %d: %d of %d nodes", seed, len(seen), len(ns))
		}
	}
}
