package cluster

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/remediator/fleet"
)

func TestAWaiterIsWokenByItsOwnJobAndByNodesThatCanHelpIt(t *testing.T) {
	whole := func(n *fleet.Node) bool {
		return n.Ready && !n.Unschedulable && n.Reserved == "" && n.Free["nvidia.com/gpu"] >= 8
	}
	base := func(change func(*corev1.Node)) *corev1.Node {
		n := testNode("n1", 8, nil)
		change(n)
		return n
	}
	cordoned := base(func(n *corev1.Node) { n.Spec.Unschedulable = true })
	for name, tc := range map[string]struct {
		before *corev1.Node
		pod    bool // a pod takes all GPUs of the node before
		change func(*Cluster)
		wakes  bool
	}{
		"a heartbeat":                        {base(func(*corev1.Node) {}), false, func(c *Cluster) { c.set(testNode("n1", 8, nil)) }, false},
		"a cordon":                           {base(func(*corev1.Node) {}), false, func(c *Cluster) { c.set(cordoned) }, false},
		"an uncordon":                        {cordoned, false, func(c *Cluster) { c.set(testNode("n1", 8, nil)) }, true},
		"an uncordon of a node that is full": {cordoned, true, func(c *Cluster) { c.set(testNode("n1", 8, nil)) }, false},
		"it becomes ready":                   {base(func(n *corev1.Node) { n.Status.Conditions = nil }), false, func(c *Cluster) { c.set(testNode("n1", 8, nil)) }, true},
		"a reservation ends": {base(func(n *corev1.Node) { n.Spec.Taints = withTaint(nil, TaintReserved, "inc-2") }), false,
			func(c *Cluster) { c.set(testNode("n1", 8, nil)) }, true},
		"its pod ends":       {base(func(*corev1.Node) {}), true, func(c *Cluster) { c.drop(testPod("u1", "n1", 8)) }, true},
		"a pod comes":        {base(func(*corev1.Node) {}), false, func(c *Cluster) { c.set(testPod("u2", "n1", 1)) }, false},
		"a node is added":    {base(func(*corev1.Node) {}), true, func(c *Cluster) { c.set(testNode("n2", 8, nil)) }, true},
		"a node goes":        {base(func(*corev1.Node) {}), false, func(c *Cluster) { c.drop(testNode("n1", 8, nil)) }, false},
		"its own job's pods": {base(func(*corev1.Node) {}), false, func(c *Cluster) { c.changes.notify("mine") }, true},
		"another job's":      {base(func(*corev1.Node) {}), false, func(c *Cluster) { c.changes.notify("other") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := still(t)
			c.set(tc.before)
			if tc.pod {
				c.set(testPod("u1", "n1", 8))
			}
			woken, cancel := c.Wakes("mine", whole)
			own, stop := c.Wakes("mine", nil)
			defer stop()
			tc.change(c)
			tc.change(c) // more than one is one signal
			got := false
			select {
			case <-woken:
				got = true
			default:
			}
			if got != tc.wakes {
				t.Errorf("woken: %v, want %v", got, tc.wakes)
			}
			select {
			case <-own:
				if name != "its own job's pods" {
					t.Error("a waiter that no node helps was woken by one")
				}
			default:
			}
			cancel()
			if len(c.views.waiting) > 0 {
				t.Error("a waiter was left behind")
			}
		})
	}
}

// A storm: 200 incidents wait for a whole node while 5,000 nodes change in ways that help none of them.
func TestWaitersSleepThroughAStormOfNodes(t *testing.T) {
	c, woken := still(t), 0
	for k := range 5000 {
		c.set(testNode(fmt.Sprint("n", k), 8, nil))
	}
	var all []<-chan struct{}
	for k := range 200 {
		ch, cancel := c.Wakes(fmt.Sprint("job", k), func(n *fleet.Node) bool { return n.Ready && !n.Unschedulable })
		defer cancel()
		all = append(all, ch)
	}
	for k := range 5000 {
		n := testNode(fmt.Sprint("n", k), 8, nil)
		n.Spec.Unschedulable = true
		c.set(n)
	}
	for _, ch := range all {
		select {
		case <-ch:
			woken++
		default:
		}
	}
	if woken > 0 {
		t.Errorf("%d of 200 waiters were woken by cordons", woken)
	}
}

func TestQuarantinesAreListedWithTheirAge(t *testing.T) {
	c := still(t)
	at := time.Date(2026, 11, 22, 8, 0, 0, 0, time.UTC)
	for i, since := range []string{at.Add(time.Hour).Format(time.RFC3339), at.Format(time.RFC3339), ""} {
		n := testNode(fmt.Sprint("n", i), 8, nil)
		n.Spec.Taints, n.Annotations = withTaint(nil, TaintQuarantine, fmt.Sprint("inc-", i)), map[string]string{AnnotationSince: since}
		c.set(n)
	}
	c.set(testNode("well", 8, nil))
	got := c.QuarantinedNodes()
	if len(got) != 3 || got[0].Node != "n2" || !got[0].Since.IsZero() || got[1].Node != "n1" || !got[1].Since.Equal(at) || got[2].Incident != "inc-0" {
		t.Errorf("%+v", got)
	}
	if n := c.Tally().All(); n != (fleet.Count{Total: 4, Quarantined: 3}) {
		t.Errorf("%+v", n)
	}
}

func TestForgottenReservationsAreSweptAndOthersKept(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		age   time.Duration
		left  time.Duration
		open  bool
		swept bool
	}{
		"an open incident's":                         {30 * time.Minute, 30 * time.Minute, true, false},
		"a closed one's":                             {2 * time.Minute, 30 * time.Minute, false, true},
		"one whose incident may not be recorded yet": {10 * time.Second, time.Hour, false, false},
		"one whose time is up":                       {2 * time.Hour, -time.Minute, true, true},
	} {
		c, s, _ := stuck(t, Options{})
		s.list = true
		m := Reservation{Incident: "inc-1", Node: "n1", OwnerUID: "x", Expires: now.Add(tc.left)}.configMap("pitcrew-system", "n1")
		m.CreationTimestamp = metav1.NewTime(now.Add(-tc.age))
		c.set(m)
		swept, err := c.SweepReservations(t.Context(), func(string) bool { return tc.open })
		if err != nil || (len(swept) > 0) != tc.swept {
			t.Errorf("%s: %v, %v", name, swept, err)
		}
	}
	c, s, _ := stuck(t, Options{})
	s.list = true
	n := testNode("n7", 8, nil)
	n.Spec.Taints = withTaint(nil, TaintReserved, "inc-3") // and no ConfigMap: a crash came between
	c.set(n)
	swept, _ := c.SweepReservations(t.Context(), func(string) bool { return false })
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) == 0 {
		t.Errorf("a taint without its reservation was forgotten: %v", swept)
	}
}
