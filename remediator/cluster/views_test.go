package cluster

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/placement"
)

// still is a Cluster whose watches are played by the test: set and drop do what a watch event does.
func still(t testing.TB) *Cluster {
	t.Helper()
	c, err := New(&rest.Config{Host: "http://127.0.0.1:1"}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *Cluster) set(o any) {
	switch o := o.(type) {
	case *corev1.Node:
		_ = c.nodes.GetStore().Add(o)
		c.nodeChanged(o, false)
	case *corev1.Pod:
		_ = c.pods.GetStore().Add(o)
		c.podChanged(o, false)
	case *bystander:
		_ = c.pods.GetStore().Add(o)
		c.views.place(o.uid, o.node, o.asked, o.ended)
	case *corev1.ConfigMap:
		_ = c.reservations.GetStore().Add(o)
		c.reservationChanged(o, false)
	}
}

func (c *Cluster) drop(o any) {
	switch o := o.(type) {
	case *corev1.Node:
		_ = c.nodes.GetStore().Delete(o)
		c.nodeChanged(o, true)
	case *corev1.Pod:
		_ = c.pods.GetStore().Delete(o)
		c.podChanged(o, true)
	case *corev1.ConfigMap:
		_ = c.reservations.GetStore().Delete(o)
		c.reservationChanged(o, true)
	}
}

func testNode(name string, gpus int64, labels map[string]string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1", Labels: labels}}
	n.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(gpus, resource.DecimalSI), "cpu": resource.MustParse("64"), "pods": resource.MustParse("110")}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

func testPod(uid, node string, gpus int64) *corev1.Pod {
	yes := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p-" + uid, Namespace: "ml", UID: types.UID(uid), Annotations: map[string]string{completionIndex: "0"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "Job", APIVersion: "batch/v1", Name: "job", UID: "job", Controller: &yes}}}}
	p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		"nvidia.com/gpu": *resource.NewQuantity(gpus, resource.DecimalSI), "cpu": resource.MustParse("500m")}}}}
	return p
}

// recount works the views out from the caches alone, by looking at every pod and reservation, as the old snapshot did at each call.
func (c *Cluster) recount(without ...string) []*fleet.Node {
	out := map[string]bool{}
	for _, uid := range without {
		out[uid] = true
	}
	fresh := newViews(func(string, map[types.UID]bool) map[string]int64 { return nil })
	for _, o := range c.nodes.GetStore().List() {
		fresh.node(o.(*corev1.Node))
	}
	place := func(p *corev1.Pod) string {
		if p.Spec.NodeName != "" {
			return p.Spec.NodeName
		}
		return p.Status.NominatedNodeName
	}
	nodes := fresh.all()
	take := func(name string, asked map[string]int64) {
		if n := fleet.Find(nodes, name); n != nil {
			for r, q := range asked {
				if _, ok := n.Free[r]; ok {
					n.Free[r] -= q
				}
			}
		}
	}
	for _, o := range c.pods.GetStore().List() {
		if p := o.(*corev1.Pod); !out[string(p.UID)] && !ended(p) {
			take(place(p), whole(requests(&p.Spec)))
			take(place(p), map[string]int64{"pods": 1})
		}
	}
	for _, o := range c.reservations.GetStore().List() {
		m, fulfilled := o.(*corev1.ConfigMap), false
		for _, o := range c.pods.GetStore().List() {
			p := o.(*corev1.Pod)
			there := place(p) == m.Data[keyNode] && !ended(p) && p.DeletionTimestamp == nil
			fulfilled = fulfilled || reservedFor(m, p) && (there || out[string(p.UID)])
		}
		if !fulfilled {
			take(m.Data[keyNode], requestsOf(m))
		}
	}
	return nodes
}

func TestViewsThatAreKeptAreThoseThatARecountGives(t *testing.T) {
	for seed := range uint64(40) {
		c, g := still(t), rand.New(rand.NewPCG(seed, 3))
		pick := func(kind string, n int) string { return kind + strconv.Itoa(g.IntN(n)) }
		for step := range 300 {
			switch g.IntN(8) {
			case 0, 1:
				n := testNode(pick("n", 6), int64(g.IntN(9)), map[string]string{"topology.kubernetes.io/zone": pick("z", 2), "pitcrew.dev/pool": pick("pool", 2)})
				if n.Spec.Unschedulable = g.IntN(2) == 0; n.Spec.Unschedulable {
					n.Spec.Taints = withTaint(nil, TaintQuarantine, pick("inc-", 3))
				}
				c.set(n)
			case 2:
				if o, ok := cached[*corev1.Node](c.nodes, pick("n", 6)); ok {
					c.drop(o)
				}
			case 3, 4, 5:
				p := testPod(pick("u", 12), pick("n", 7), int64(g.IntN(4)))
				switch g.IntN(6) {
				case 0:
					p.Status.NominatedNodeName, p.Spec.NodeName = p.Spec.NodeName, ""
				case 1:
					p.Status.Phase = corev1.PodSucceeded
				case 2:
					now := metav1.Now()
					p.DeletionTimestamp = &now
				}
				p.Annotations[completionIndex] = strconv.Itoa(g.IntN(3))
				c.set(p)
			case 6:
				if o, ok := cached[*corev1.Pod](c.pods, "ml/"+pick("p-u", 12)); ok {
					c.drop(o)
				}
			case 7:
				index := g.IntN(3)
				r := Reservation{Incident: "inc-1", Node: pick("n", 6), OwnerUID: "job", Index: &index, Requests: map[string]int64{"nvidia.com/gpu": 2}}
				if m := r.configMap("pitcrew-system", r.Node); g.IntN(3) > 0 {
					c.set(m)
				} else if have, ok := cached[*corev1.ConfigMap](c.reservations, "pitcrew-system/"+m.Name); ok {
					c.drop(have)
				}
			}
			if g.IntN(5) > 0 && step != 299 {
				continue
			}
			want := c.recount()
			if d := cmp.Diff(want, c.Fleet()); d != "" {
				t.Fatalf("seed %d, step %d: %s", seed, step, d)
			}
			if !c.Tally().Equal(fleet.TallyOf(want, placement.Tiers()...)) {
				t.Fatalf("seed %d, step %d: the tally is not that of the nodes", seed, step)
			}
			uid := pick("u", 12)
			if d := cmp.Diff(c.recount(uid), c.FleetWithout(uid)); d != "" {
				t.Fatalf("seed %d, step %d, without %s: %s", seed, step, uid, d)
			}
			for _, n := range want {
				if got, err := c.Node(n.Name); err != nil || !cmp.Equal(got, n) {
					t.Fatalf("seed %d, step %d: %+v, %v", seed, step, got, err)
				}
			}
		}
		for _, o := range c.pods.GetStore().List() {
			c.drop(o)
		}
		for _, o := range c.reservations.GetStore().List() {
			c.drop(o)
		}
		for _, o := range c.nodes.GetStore().List() {
			c.drop(o)
		}
		if len(c.views.at)+len(c.views.counts)+len(c.views.stale)+len(c.views.names)+len(c.views.pledge) > 0 || c.Tally().All() != (fleet.Count{}) {
			t.Fatalf("seed %d: something is left of an empty cluster: %+v", seed, c.views)
		}
	}
}

func TestADaemonSetsPodTakesRoomUntilItGoes(t *testing.T) {
	c := still(t)
	c.set(testNode("n1", 8, nil))
	p := testPod("u1", "n1", 2)
	p.OwnerReferences[0].Kind = "DaemonSet"
	o, err := c.slimmer.pod(p)
	if err != nil {
		t.Fatal(err)
	}
	b, ok := o.(*bystander)
	if !ok {
		t.Fatalf("%T", o)
	}
	c.set(b)
	if n, _ := c.Node("n1"); n.Free["nvidia.com/gpu"] != 6 || n.Free["cpu"] != 63500 || n.Free["pods"] != 109 {
		t.Errorf("%v", n.Free)
	}
	if _, ok, err := c.pods.GetStore().GetByKey("ml/p-u1"); !ok || err != nil {
		t.Errorf("the cache does not find it: %v", err)
	}
	p.Status.Phase = corev1.PodFailed
	o, _ = c.slimmer.pod(p)
	if c.set(o); len(c.views.counts) > 0 {
		t.Error("it takes room after its end")
	}
}

func TestAViewNeverChangesOnceItWasGiven(t *testing.T) {
	c := still(t)
	c.set(testNode("n1", 8, nil))
	c.set(testNode("n2", 8, nil))
	list := c.Fleet()
	one := list[0]
	if again := c.Fleet(); &again[0] != &list[0] {
		t.Error("nothing changed, and the slice is another")
	}
	c.set(testPod("u1", "n1", 8))
	c.NoteCondition("n1", "gpu/ecc")
	at := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	c.NoteFault("n1", at)
	c.NoteFault("n1", at.Add(-time.Hour))
	if one.Free["nvidia.com/gpu"] != 8 || one.Condition != "" || list[0] != one {
		t.Errorf("a view was changed: %+v", one)
	}
	now := c.Fleet()
	if now[0].Free["nvidia.com/gpu"] != 0 || now[0].Condition != "gpu/ecc" || !now[0].LastFault.Equal(at) || now[1] != list[1] {
		t.Errorf("%+v, %+v", now[0], now[1])
	}
	n := testNode("n1", 8, nil)
	n.Spec.Unschedulable = true
	if c.set(n); c.Fleet()[0].Condition != "gpu/ecc" || !c.Fleet()[0].Unschedulable {
		t.Error("what was noted of the node was lost with its next change")
	}
}

func TestANodeThatIsOffSaysSo(t *testing.T) {
	for want, taint := range map[string]corev1.Taint{
		"node.kubernetes.io/out-of-service=nodeshutdown": {Key: "node.kubernetes.io/out-of-service", Value: "nodeshutdown", Effect: "NoExecute"},
		"node.cloudprovider.kubernetes.io/shutdown":      {Key: "node.cloudprovider.kubernetes.io/shutdown", Effect: "NoSchedule"},
		"": {Key: "node.kubernetes.io/unreachable", Effect: "NoExecute"},
	} {
		c := still(t)
		n := testNode("n1", 8, nil)
		n.Spec.Taints = []corev1.Taint{taint}
		c.set(n)
		if got, err := c.Node("n1"); err != nil || got.OutOfService != want {
			t.Errorf("%+v: %q, want %q, %v", taint, got.OutOfService, want, err)
		}
	}
}

// crowded is 5,000 nodes with 20 pods each.
func crowded(b testing.TB) *Cluster {
	c := still(b)
	for k := range 5000 {
		labels := map[string]string{"network.topology.nvidia.com/leaf": fmt.Sprint("leaf-", k/32), "pitcrew.dev/pool": "train"}
		for i := range 50 {
			labels[fmt.Sprintf("feature.node.kubernetes.io/cpu-cpuid.F%02d", i)] = "true"
		}
		name := fmt.Sprintf("gpu-node-%04d", k)
		c.set(testNode(name, 8, labels))
		for i := range 20 {
			c.set(testPod(fmt.Sprintf("%d-%d", k, i), name, 0))
		}
	}
	return c
}

func BenchmarkOneNodeOf5000(b *testing.B) {
	c := crowded(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Node("gpu-node-0017"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFleetOf5000AfterAPodChanged(b *testing.B) {
	c := crowded(b)
	b.ReportAllocs()
	gpus := int64(0)
	for b.Loop() {
		gpus ^= 1
		c.set(testPod("17-3", "gpu-node-0017", gpus))
		if len(c.Fleet()) != 5000 {
			b.Fatal()
		}
	}
}

func BenchmarkFleetOf5000WithoutAPod(b *testing.B) {
	c := crowded(b)
	b.ReportAllocs()
	for b.Loop() {
		if len(c.FleetWithout("17-3")) != 5000 {
			b.Fatal()
		}
	}
}
