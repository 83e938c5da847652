package placement_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/placement"
)

const gpu = "nvidia.com/gpu"

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// node is a healthy H100 node with eight free GPUs; labels are given as key, value.
func node(name string, labels ...string) placement.Node {
	n := placement.Node{Name: name, Ready: true, Free: map[string]int64{gpu: 8, "cpu": 64000},
		Labels: map[string]string{"nvidia.com/gpu.product": "H100", "kubernetes.io/hostname": name}}
	for i := 0; i+1 < len(labels); i += 2 {
		n.Labels[labels[i]] = labels[i+1]
	}
	return n
}

const (
	rack  = "cloud.provider.com/topology-rack"
	block = "cloud.provider.com/topology-block"
	zone  = "topology.kubernetes.io/zone"
	nvl   = "nvidia.com/gpu.clique"
)

func in(name, b, r string, more ...string) placement.Node {
	return node(name, append([]string{block, b, rack, r, zone, "z1"}, more...)...)
}

// cluster is two blocks of two racks; the gang is on a1 (faulty), a2 and a3 of rack r1.
func cluster() []placement.Node {
	return []placement.Node{
		in("a1", "b1", "r1"), in("a2", "b1", "r1"), in("a3", "b1", "r1"), in("a4", "b1", "r1"),
		in("b1", "b1", "r2"), in("c1", "b2", "r1"), in("c2", "b2", "r3"),
	}
}

func request() placement.Request {
	return placement.Request{Incident: "me", Faulty: "a1", Peers: []string{"a2", "a3"}, Requests: map[string]int64{gpu: 8, "cpu": 1000}, Now: now}
}

func TestTheNodeThatIsChosenAndWhyTheOthersAreNot(t *testing.T) {
	set := func(name string, change func(*placement.Node)) func(*placement.Request, []placement.Node) {
		return func(_ *placement.Request, ns []placement.Node) {
			for i := range ns {
				if ns[i].Name == name {
					change(&ns[i])
				}
			}
		}
	}
	both := func(fs ...func(*placement.Request, []placement.Node)) func(*placement.Request, []placement.Node) {
		return func(r *placement.Request, ns []placement.Node) {
			for _, f := range fs {
				f(r, ns)
			}
		}
	}
	req := func(f func(*placement.Request)) func(*placement.Request, []placement.Node) {
		return func(r *placement.Request, _ []placement.Node) { f(r) }
	}
	full := func(n *placement.Node) { n.Free = map[string]int64{gpu: 0, "cpu": 64000} }
	for name, c := range map[string]struct {
		change func(*placement.Request, []placement.Node)
		node   string
		loss   int
		node2  string // a node, and
		reason placement.Reason
		says   string // the detail of node2, or of the decision
	}{
		"a free node of the same rack":                    {nil, "a4", 0, "b1", placement.TooFar, "1 tier farther from the gang than a1, 0 allowed"},
		"the faulty node is never its own replacement":    {nil, "a4", 0, "a1", placement.Faulty, "to be replaced"},
		"a node that holds a peer":                        {nil, "a4", 0, "a2", placement.HoldsPeer, "another member"},
		"a rack of the same name in another block is far": {set("a4", full), "", 0, "c1", placement.TooFar, "2 tiers farther"},
		"no free equivalent node is said so":              {set("a4", full), "", 0, "a4", placement.NoRoom, "0 of nvidia.com/gpu free, 8 wanted"},
		"one tier may be lost where the policy says so": {both(set("a4", full), req(func(r *placement.Request) { r.MaxTierLoss = 1 })),
			"b1", 1, "c1", placement.TooFar, "2 tiers farther from the gang than a1, 1 allowed"},
		"the nearer wins though a farther one is allowed": {req(func(r *placement.Request) { r.MaxTierLoss = 9 }), "a4", 0, "b1", placement.RankedLower, "tiers lost: 1, a4 has 0"},
		"anywhere, when the policy says any": {both(set("a4", full), set("b1", full), req(func(r *placement.Request) { r.Mode = placement.Any })),
			"c1", 2, "c2", placement.RankedLower, "comes first by name"},
		"any keeps the hard class": {both(set("a4", full), req(func(r *placement.Request) { r.Mode = placement.Any }), set("b1", func(n *placement.Node) { n.Labels["nvidia.com/gpu.product"] = "A100" })),
			"c1", 2, "b1", placement.Class, `nvidia.com/gpu.product is "A100", wanted "H100"`},
		"same node": {req(func(r *placement.Request) { r.Mode = placement.SameNode }), "a1", 0, "a4", placement.NotSameNode, "goes back to a1"},
		"same node, but cordoned": {both(req(func(r *placement.Request) { r.Mode = placement.SameNode }), set("a1", func(n *placement.Node) { n.Unschedulable = true })),
			"", 0, "a1", placement.Cordoned, ""},
		"not ready":                   {set("a4", func(n *placement.Node) { n.Ready = false }), "", 0, "a4", placement.NotReady, ""},
		"cordoned":                    {set("a4", func(n *placement.Node) { n.Unschedulable = true }), "", 0, "a4", placement.Cordoned, ""},
		"ill by its own agent's word": {set("a4", func(n *placement.Node) { n.Condition = "gpu/row-remap.pending gpu/GPU-1" }), "", 0, "a4", placement.OpenCondition, "gpu/GPU-1"},
		"ill, and it is where the job has to go back": {both(req(func(r *placement.Request) { r.Mode = placement.SameNode }), set("a1", func(n *placement.Node) { n.Condition = "gpu/thermal" })),
			"a1", 0, "", "", ""},
		"held by a person":                     {set("a4", func(n *placement.Node) { n.Held = "benchmark" }), "", 0, "a4", placement.Held, "benchmark"},
		"faulty as well, though it looks free": {req(func(r *placement.Request) { r.Exclude = []string{"a4"} }), "", 0, "a4", placement.Faulty, "faulty as well"},
		"ill by what is asked for it": {req(func(r *placement.Request) {
			r.Unfit = func(n string) string { return map[string]string{"a4": "gpu/ecc"}[n] }
		}),
			"", 0, "a4", placement.OpenCondition, "gpu/ecc"},
		"tainted":           {set("a4", func(n *placement.Node) { n.Taints = []placement.Taint{{Key: "team", Value: "x", Effect: "NoSchedule"}} }), "", 0, "a4", placement.Tainted, "team=x:NoSchedule"},
		"a tolerated taint": {both(set("a4", func(n *placement.Node) { n.Taints = []placement.Taint{{Key: "team", Value: "x", Effect: "NoSchedule"}} }), req(func(r *placement.Request) { r.Tolerations = []placement.Toleration{{Key: "team", Value: "x"}} })), "a4", 0, "", "", ""},
		"a toleration of another value": {both(set("a4", func(n *placement.Node) { n.Taints = []placement.Taint{{Key: "team", Value: "x", Effect: "NoSchedule"}} }), req(func(r *placement.Request) {
			r.Tolerations = []placement.Toleration{{Key: "team", Value: "y"}, {Key: "team", Operator: "Exists", Effect: "NoExecute"}}
		})), "", 0, "a4", placement.Tainted, ""},
		"a taint that only asks": {set("a4", func(n *placement.Node) {
			n.Taints = []placement.Taint{{Key: "team", Value: "x", Effect: "PreferNoSchedule"}}
		}), "a4", 0, "", "", ""},
		"a pod that tolerates everything does not tolerate a broken GPU": {both(set("a4", func(n *placement.Node) {
			n.Taints = []placement.Taint{{Key: placement.QuarantineTaint, Value: "i7", Effect: "NoSchedule"}}
		}), req(func(r *placement.Request) { r.Tolerations = []placement.Toleration{{Operator: "Exists"}} })), "", 0, "a4", placement.Quarantined, "by incident i7"},
		"reserved for another incident": {set("a4", func(n *placement.Node) { n.Reserved = "other" }), "", 0, "a4", placement.ReservedOther, "for incident other"},
		"reserved for another incident, by taint": {set("a4", func(n *placement.Node) {
			n.Taints = []placement.Taint{{Key: placement.ReservedTaint, Value: "other", Effect: "NoSchedule"}}
		}), "", 0, "a4", placement.ReservedOther, "for incident other"},
		"reserved for this incident": {set("a4", func(n *placement.Node) {
			n.Reserved, n.Taints = "me", []placement.Taint{{Key: placement.ReservedTaint, Value: "me", Effect: "NoSchedule"}}
		}), "a4", 0, "", "", ""},
		"another GPU":        {set("a4", func(n *placement.Node) { n.Labels["nvidia.com/gpu.product"] = "H200" }), "", 0, "a4", placement.Class, "H200"},
		"a GPU nobody knows": {set("a4", func(n *placement.Node) { delete(n.Labels, "nvidia.com/gpu.product") }), "", 0, "a4", placement.Class, `is "", wanted "H100"`},
		"another GPU, told by the peers when the faulty node lost its labels": {both(set("a1", func(n *placement.Node) { delete(n.Labels, "nvidia.com/gpu.product") }),
			set("a4", func(n *placement.Node) { n.Labels["nvidia.com/gpu.product"] = "H200" })), "", 0, "a4", placement.Class, "H200"},
		"another driver": {both(set("a1", func(n *placement.Node) { n.Labels["nvidia.com/cuda.driver-version.major"] = "580" }),
			set("a4", func(n *placement.Node) { n.Labels["nvidia.com/cuda.driver-version.major"] = "570" })), "", 0, "a4", placement.Class, "driver-version.major"},
		"a resource the node does not have": {req(func(r *placement.Request) { r.Requests["rdma/hca"] = 8 }), "", 0, "a4", placement.NoRoom, "0 of rdma/hca free, 8 wanted"},
		"the pod's own selector":            {req(func(r *placement.Request) { r.NodeSelector = map[string]string{"disk": "nvme"} }), "", 0, "a4", placement.Selector, `disk is "", wanted "nvme"`},
		"the pod's own affinity": {req(func(r *placement.Request) {
			r.Affinity = func(n *fleet.Node) (bool, string) { return n.Name != "a4", "not a4" }
		}), "", 0, "a4", placement.AffinityNo, "not a4"},
		"a pod with DRA claims is not moved by a guess": {req(func(r *placement.Request) { r.Claims = []string{"gpus"} }), "", 0, "a4", placement.DRAClaim, "gpus"},
		"a rack that failed as a whole":                 {req(func(r *placement.Request) { r.Failed, r.MaxTierLoss = block, 9 }), "c1", 2, "a4", placement.FailedDomain, block + " b1 has failed"},
		"a spare is preferred": {both(set("a4", full), set("c2", func(n *placement.Node) { n.Labels[placement.SpareLabel] = "true" }), req(func(r *placement.Request) { r.Mode = placement.Any }),
			set("b1", full)), "c2", 2, "c1", placement.RankedLower, "not a spare: 1, c2 has 0"},
		"distance goes before a spare": {both(set("b1", func(n *placement.Node) { n.Labels[placement.SpareLabel] = "true" }), req(func(r *placement.Request) { r.MaxTierLoss = 1 })),
			"a4", 0, "b1", placement.RankedLower, "tiers lost"},
		"the node that fits best keeps others whole": {both(set("a4", full), set("b1", full), req(func(r *placement.Request) { r.Mode, r.Requests[gpu] = placement.Any, 2 }),
			set("c2", func(n *placement.Node) { n.Free = map[string]int64{gpu: 2, "cpu": 64000} })), "c2", 2, "c1", placement.RankedLower, "devices left over: 6, c2 has 0"},
		"a node with a recent fault comes last": {both(set("a4", full), set("b1", full), req(func(r *placement.Request) { r.Mode = placement.Any }),
			set("c1", func(n *placement.Node) { n.LastFault = now.Add(-time.Hour) })), "c2", 2, "c1", placement.RankedLower, "a fault in the last 24h"},
		"an old fault is forgiven": {both(set("a4", full), set("b1", full), req(func(r *placement.Request) { r.Mode = placement.Any }),
			set("c1", func(n *placement.Node) { n.LastFault = now.Add(-placement.RecentFault) })), "c1", 2, "", "", ""},
		"a gang of one stays in its rack":              {req(func(r *placement.Request) { r.Peers = nil }), "a2", 0, "b1", placement.TooFar, "1 tier farther"},
		"members may share a node where the gang does": {both(set("a4", full), req(func(r *placement.Request) { r.Share = true })), "a2", 0, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, ns := request(), cluster()
			if c.change != nil {
				c.change(&r, ns)
			}
			d := placement.Choose(r, ns)
			if d.Node != c.node || d.TierLoss != c.loss || d.Equivalent != (c.node != "" && c.loss == 0) {
				t.Errorf("chose %q, loss %d, equivalent %v (%s); want %q, loss %d", d.Node, d.TierLoss, d.Equivalent, d.Reason, c.node, c.loss)
			}
			if d.Reason == "" || len(d.Candidates) != len(ns) {
				t.Errorf("reason %q, %d candidates of %d nodes", d.Reason, len(d.Candidates), len(ns))
			}
			for _, k := range d.Candidates {
				if k.Node == c.node2 && (k.Reason != c.reason || !strings.Contains(k.Detail, c.says)) {
					t.Errorf("%s: %s (%s), want %s (%s)", k.Node, k.Reason, k.Detail, c.reason, c.says)
				}
			}
		})
	}
}

func TestAnNVLinkDomainComesBeforeTheNetworkAndAcrossLeaves(t *testing.T) {
	leaf := "network.topology.nvidia.com/leaf"
	ns := []placement.Node{
		node("a1", nvl, "u.1", leaf, "l1"), node("a2", nvl, "u.1", leaf, "l1"),
		node("a3", nvl, "u.1", leaf, "l2"), // same NVLink domain, another leaf
		node("a4", nvl, "u.2", leaf, "l1"), // same leaf, another NVLink domain
	}
	r := placement.Request{Faulty: "a1", Peers: []string{"a2"}, Requests: map[string]int64{gpu: 8}}
	if d := placement.Choose(r, ns); d.Node != "a3" {
		t.Errorf("chose %q: %+v", d.Node, d)
	}
}

func TestNotFartherMeansNeitherTheGreatestNorTheSum(t *testing.T) {
	// The gang: p1, p2 in rack r1, p3 in rack r2; the faulty node in r1 has greatest 1, sum 1.
	r := placement.Request{Faulty: "f", Peers: []string{"p1", "p2", "p3"}, Requests: map[string]int64{gpu: 1}}
	ns := []placement.Node{in("f", "b1", "r1"), in("p1", "b1", "r1"), in("p2", "b1", "r1"), in("p3", "b1", "r2"),
		in("x", "b1", "r3")} // greatest 1 as before, but sum 3
	d := placement.Choose(r, ns)
	if d.Node != "" {
		t.Errorf("chose %s, whose sum of distances is worse", d.Node)
	}
	ns = append(ns, in("y", "b1", "r2")) // greatest 1, sum 2
	r.MaxTierLoss = 1
	if d = placement.Choose(r, ns); d.Node != "y" || d.Equivalent || d.TierLoss != 1 {
		t.Errorf("chose %q, loss %d, equivalent %v", d.Node, d.TierLoss, d.Equivalent)
	}
}

func TestAClusterWithoutTopologyLabelsIsFlat(t *testing.T) {
	for _, peers := range [][]string{nil, {"p"}} {
		d := placement.Choose(placement.Request{Faulty: "f", Peers: peers, Requests: map[string]int64{gpu: 8}}, []placement.Node{node("f"), node("p"), node("x")})
		if d.Node == "" || !d.Equivalent {
			t.Errorf("peers %v: %+v", peers, d)
		}
	}
}

func TestAFaultyNodeThatNobodyKnowsIsNotGuessedAt(t *testing.T) {
	r := request()
	r.Faulty = "gone"
	d := placement.Choose(r, cluster())
	if d.Node != "" || !strings.Contains(d.Reason, `node "gone" is not among the nodes`) {
		t.Errorf("%+v", d)
	}
	for _, k := range d.Candidates {
		if k.Reason == "" {
			t.Errorf("%s has no reason", k.Node)
		}
	}
}

func TestOtherMakersAcceleratorsAreCountedAndKeptApartByTheirOwnNames(t *testing.T) {
	for _, c := range []struct{ resource, label, same, other string }{
		{"huawei.com/Ascend910", "node.kubernetes.io/npu.chip.name", "910B3", "910B4"},
		{"huawei.com/Ascend910", "accelerator-type", "module-910b-8", "card"},
		{"amd.com/gpu", "amd.com/gpu.device-id", "74a1", "74a5"},
	} {
		of := func(name, value string, left int64) placement.Node {
			return placement.Node{Name: name, Ready: true, Labels: map[string]string{c.label: value}, Free: map[string]int64{c.resource: left, "cpu": 64000}}
		}
		ns := []placement.Node{of("a1", c.same, 0), of("a2", c.same, 0), of("a3", c.same, 7), of("a4", c.other, 8), node("nvidia", c.label, c.same), of("z9", c.same, 8)}
		d := placement.Choose(placement.Request{Faulty: "a1", Peers: []string{"a2"}, Requests: map[string]int64{c.resource: 8}}, ns)
		got := map[string]placement.Reason{}
		for _, k := range d.Candidates {
			got[k.Node] = k.Reason
		}
		want := map[string]placement.Reason{"a1": placement.Faulty, "a2": placement.HoldsPeer, "a3": placement.NoRoom, "a4": placement.Class, "nvidia": placement.NoRoom, "z9": placement.Chosen}
		if d.Node != "z9" || cmp.Diff(want, got) != "" {
			t.Errorf("%s by %s: %s %s", c.resource, c.label, d.Node, cmp.Diff(want, got))
		}
	}
}

func TestNothingFitsIsCountedByReason(t *testing.T) {
	ns := cluster()
	ns[3].Ready = false
	if d := placement.Choose(request(), ns); d.Reason != "no free equivalent node: 3 too-far, 2 holds-peer, 1 not-ready" {
		t.Error(d.Reason)
	}
	ns[3].Ready, ns[3].Condition = true, "gpu/nvlink gpu/GPU-1, critical"
	if d := placement.Choose(request(), ns); d.Reason != "no free equivalent node: 3 too-far, 2 holds-peer, 1 open-condition; "+
		"mend a4 (gpu/nvlink gpu/GPU-1, critical): a node is free again as soon as its agent says that it is well" {
		t.Error(d.Reason)
	}
	if d := placement.Choose(request(), ns[:1]); d.Reason != "no free equivalent node: there is no other node" {
		t.Error(d.Reason)
	}
}

func TestEachPresetMeasuresOnItsOwn(t *testing.T) {
	for _, p := range placement.Presets() {
		// x shares the nearest tier with the gang, y only the widest.
		near, far := []string{}, []string{}
		for i, l := range p.Tiers {
			near = append(near, l, "here")
			v := "there"
			if i == len(p.Tiers)-1 {
				v = "here"
			}
			far = append(far, l, v)
		}
		ns := []placement.Node{node("f", near...), node("p", near...), node("x", near...), node("w", far...)}
		d := placement.Choose(placement.Request{Faulty: "f", Peers: []string{"p"}, Requests: map[string]int64{gpu: 8}, MaxTierLoss: 9}, ns)
		got := map[string]int{}
		for _, k := range d.Candidates {
			got[k.Node] = k.MaxDistance
		}
		if want := map[string]int{"f": 0, "p": 0, "x": 0, "w": len(p.Tiers) - 1}; cmp.Diff(want, got) != "" {
			t.Errorf("%s: %s", p.Name, cmp.Diff(want, got))
		}
	}
}
