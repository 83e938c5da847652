package cluster_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/placement"
	"github.com/pitcrew/pitcrew/sandbox"
)

const gpu = "nvidia.com/gpu"

func nodeOf(t *testing.T, nodes []placement.Node, name string) placement.Node {
	t.Helper()
	i := slices.IndexFunc(nodes, func(n placement.Node) bool { return n.Name == name })
	if i < 0 {
		t.Fatalf("no node %s", name)
	}
	return nodes[i]
}

// free names the nodes with eight free GPUs.
func free(c *cluster.Cluster) (names []string) {
	for _, n := range c.Nodes() {
		if n.Free[gpu] == 8 && n.Reserved == "" && !n.Unschedulable {
			names = append(names, n.Name)
		}
	}
	return names
}

func TestTheReplacementLandsOnTheReservedNodeAndNobodyElseDoes(t *testing.T) {
	s := kube(t)
	clean(t, s)
	c := start(t, asRemediator(s), cluster.Options{})
	job, g := gang(t, s, c, 2)
	for round, index := range []int{0, 1} {
		incident := []string{"inc-1", "inc-2"}[round]
		m := g.Members[index]
		eventually(t, "free nodes", func() bool { return len(free(c)) == 4-round })
		target := free(c)[len(free(c))-1]
		if _, err := c.Cordon(within(t), m.Node, incident); err != nil {
			t.Fatal(err)
		}
		r := cluster.Reservation{Incident: incident, Node: target, OwnerUID: m.OwnerUID, Index: &m.CompletionIndex, Requests: m.Requests}
		for range 2 {
			if err := c.Reserve(within(t), r); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		if err := c.WaitReservationSeen(within(t), r); err != nil {
			t.Fatal(err)
		}
		t.Logf("the API server knew the reservation after %v", time.Since(began).Round(100*time.Microsecond))
		eventually(t, "the reservation counted", func() bool { return nodeOf(t, c.Nodes(), target).Free[gpu] == 0 })
		if got := nodeOf(t, c.Nodes(m.PodUID), target).Free[gpu]; got != 8 {
			t.Errorf("for the member itself %d GPUs are free on its reserved node", got)
		}
		if err := c.Reserve(within(t), cluster.Reservation{Incident: "inc-9", Node: target, OwnerUID: "x"}); !errors.Is(err, cluster.ErrReserved) {
			t.Errorf("another incident got the node: %v", err)
		}
		if round == 1 {
			crowd(t, s, c)
		}
		out, err := c.ReplacePod(within(t), m, cluster.ReplaceOptions{Incident: incident, FastReplace: true})
		if err != nil || out != cluster.Evicted {
			t.Fatalf("%s, %v", out, err)
		}
		next, err := c.AwaitReplacement(within(t), g, index, cluster.Running, m.PodUID)
		if err != nil {
			t.Fatal(err)
		}
		if next.Node != target {
			t.Errorf("it landed on %s, not on %s", next.Node, target)
		}
		landed, err := c.ReadBack(within(t), next, target, func(string) bool { return false }, cluster.ReplaceOptions{Incident: incident, FastReplace: true})
		if err != nil || !landed.Reserved || landed.Sent {
			t.Errorf("%+v, %v", landed, err)
		}
		pods, err := s.Client().CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + target})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pods.Items {
			if p.Name != next.Pod {
				t.Errorf("%s is on the reserved node", p.Name)
			}
		}
		if err := c.Release(within(t), incident); err != nil {
			t.Fatal(err)
		}
		if _, ok := taint(node(t, s, target), cluster.TaintReserved); ok {
			t.Error("the taint stayed")
		}
		if maps, err := s.Client().CoreV1().ConfigMaps("pitcrew-system").List(t.Context(), metav1.ListOptions{LabelSelector: "pitcrew.dev/reservation=true"}); err != nil || len(maps.Items) > 0 {
			t.Errorf("%d reservations stayed, %v", len(maps.Items), err)
		}
		g = whole(t, c, job)
	}
}

// crowd wants every node there is: where it may go, it goes.
func crowd(t *testing.T, s *sandbox.Sandbox, c *cluster.Cluster) {
	t.Helper()
	submit(t, s, 6, func(j *batchv1.Job) { j.Name += "-crowd" })
	eventually(t, "the crowd to fill all nodes that are open to it", func() bool { return len(free(c)) == 0 })
}

func TestAReservationMovesWithItsSecondNode(t *testing.T) {
	s := kube(t)
	clean(t, s)
	c := start(t, asRemediator(s), cluster.Options{})
	index := 0
	r := cluster.Reservation{Incident: "inc-1", Node: "a1", OwnerUID: "11111111-0000-0000-0000-000000000000", Index: &index}
	for _, r.Node = range []string{"a1", "b3"} {
		if err := c.Reserve(within(t), r); err != nil {
			t.Fatal(err)
		}
		if err := c.WaitReservationSeen(within(t), r); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := taint(node(t, s, "a1"), cluster.TaintReserved); ok {
		t.Error("the first node is still reserved")
	}
	if err := c.Release(within(t), "inc-1"); err != nil {
		t.Fatal(err)
	}
	if _, ok := taint(node(t, s, "b3"), cluster.TaintReserved); ok {
		t.Error("the second node is still reserved")
	}
}

func TestAReservationOfAJobSetsNextJobIsSeenByItsLabels(t *testing.T) {
	s := kube(t)
	clean(t, s)
	c := start(t, asRemediator(s), cluster.Options{})
	index, job := 1, 2
	r := cluster.Reservation{Incident: "inc-1", Node: "a2", JobSetUID: "11111111-0000-0000-0000-000000000000", JobIndex: &job, Index: &index}
	if err := c.Reserve(within(t), r); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitReservationSeen(within(t), r); err != nil {
		t.Fatal(err)
	}
	if err := c.Release(within(t), "inc-1"); err != nil {
		t.Fatal(err)
	}
}

func TestAReplacementThatSlippedPastItsReservationIsSentAway(t *testing.T) {
	s := kube(t)
	clean(t, s)
	c := start(t, asRemediator(s), cluster.Options{})
	_, g := gang(t, s, c, 1)
	m := g.Members[0]
	o := cluster.ReplaceOptions{Incident: "inc-1", FastReplace: true}
	l, err := c.ReadBack(within(t), m, "elsewhere", func(n string) bool { return n == m.Node }, o)
	if err != nil || l.Sent || l.Reserved || l.Node != m.Node {
		t.Fatalf("on an equivalent node: %+v, %v", l, err)
	}
	intact(t, s, m)
	l, err = c.ReadBack(within(t), m, "elsewhere", func(string) bool { return false }, o)
	if err != nil || !l.Sent {
		t.Fatalf("%+v, %v", l, err)
	}
	if _, err := c.AwaitReplacement(within(t), g, 0, cluster.Created, m.PodUID); err != nil {
		t.Fatal(err)
	}
}

func TestTheRemediatorsOwnRightsAreEnoughToSeeThatThePolicyIsInForce(t *testing.T) {
	s := kube(t)
	var w writes
	c := start(t, asRemediator(s), cluster.Options{Audit: w.hook})
	if how, err := c.DecideSteering(within(t)); err != nil || how != cluster.SteerPolicy {
		t.Fatalf("%s, %v", how, err)
	}
	if n := w.sent("apply", "MutatingAdmissionPolicy"); n > 0 {
		t.Error("it was applied though an administrator installs it")
	}
}
