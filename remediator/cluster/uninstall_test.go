package cluster_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew/pitcrew/remediator/cluster"
)

func TestAnUninstallLeavesNothingOfOursAndAllThatIsOthers(t *testing.T) {
	s := kube(t)
	clean(t, s)
	nodes := s.Client().CoreV1().Nodes()
	patch := func(node, body string) {
		t.Helper()
		if _, err := nodes.Patch(t.Context(), node, types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	patch("a2", `{"spec":{"unschedulable":true}}`) // by a person, before us
	patch("a1", `{"metadata":{"annotations":{"pitcrew.dev/hold":"RMA"}}}`)
	t.Cleanup(func() {
		_, _ = nodes.Patch(context.Background(), "a2", types.MergePatchType, []byte(`{"spec":{"unschedulable":false}}`), metav1.PatchOptions{})
		_, _ = nodes.Patch(context.Background(), "a1", types.MergePatchType, []byte(`{"metadata":{"annotations":{"pitcrew.dev/hold":null}}}`), metav1.PatchOptions{})
	})
	c := start(t, asRemediator(s), cluster.Options{})
	for _, n := range []string{"a1", "a2", "b1"} {
		if _, err := c.Cordon(within(t), n, "inc-1"); err != nil {
			t.Fatal(err)
		}
		if err := c.SetCondition(within(t), n, false, "Quarantined", "inc-1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Fence(within(t), "b1", "inc-1"); err != nil {
		t.Fatal(err)
	}
	if err := c.Reserve(within(t), cluster.Reservation{Incident: "inc-1", Node: "a3", OwnerUID: "0f0e"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the watch has it all", func() bool {
		for _, n := range c.Nodes() {
			if n.Name == "a3" && n.Reserved == "" {
				return false
			}
		}
		return node(t, s, "b1").Spec.Unschedulable
	})

	done, err := c.Undo(within(t), false)
	if err != nil {
		t.Fatal(err)
	}
	ours := slices.DeleteFunc(done.Nodes, func(n string) bool { return n == "b2" || n == "b3" }) // other tests may have left conditions there
	if !slices.Equal(ours, []string{"a1", "a2", "a3", "b1"}) || !slices.Equal(done.Uncordoned, []string{"a1", "b1"}) || done.Reservations != 1 {
		t.Errorf("done: %+v", done)
	}
	for _, name := range []string{"a1", "a2", "a3", "b1"} {
		n := node(t, s, name)
		for _, x := range n.Spec.Taints {
			if strings.HasPrefix(x.Key, "pitcrew.dev/") || x.Key == cluster.TaintOutOfService {
				t.Errorf("%s still has the taint %s", name, x.Key)
			}
		}
		for key := range n.Annotations {
			if strings.HasPrefix(key, "pitcrew.dev/") && key != cluster.AnnotationHold {
				t.Errorf("%s still has the annotation %s", name, key)
			}
		}
		if slices.ContainsFunc(n.Status.Conditions, func(x corev1.NodeCondition) bool { return x.Type == cluster.ConditionHealthy }) {
			t.Errorf("%s still has the condition", name)
		}
		if n.Spec.Unschedulable != (name == "a2") {
			t.Errorf("%s: unschedulable %v; only a person's cordon stays", name, n.Spec.Unschedulable)
		}
	}
	if node(t, s, "a1").Annotations[cluster.AnnotationHold] != "RMA" {
		t.Error("a person's hold is gone")
	}
	maps, err := s.Client().CoreV1().ConfigMaps("pitcrew-system").List(t.Context(), metav1.ListOptions{LabelSelector: cluster.LabelReservation})
	if err != nil || len(maps.Items) > 0 {
		t.Errorf("reservations left: %v, %v", maps, err)
	}
	eventually(t, "nothing left to undo", func() bool {
		again, err := c.Undo(within(t), false)
		return err == nil && len(again.Nodes) == 0 && again.Reservations == 0
	})
}

func TestAnUninstallMayLeaveBrokenNodesCordoned(t *testing.T) {
	s := kube(t)
	clean(t, s)
	c := start(t, asRemediator(s), cluster.Options{})
	if _, err := c.Cordon(within(t), "a1", "inc-1"); err != nil {
		t.Fatal(err)
	}
	done, err := c.Undo(within(t), true)
	n := node(t, s, "a1")
	if _, tainted := taint(n, cluster.TaintQuarantine); err != nil || tainted || !n.Spec.Unschedulable || len(done.Uncordoned) > 0 {
		t.Errorf("%+v, %v: taints %v, unschedulable %v", done, err, n.Spec.Taints, n.Spec.Unschedulable)
	}
	if _, err := s.Client().CoreV1().Nodes().Patch(t.Context(), "a1", types.MergePatchType, []byte(`{"spec":{"unschedulable":false}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestWhoeverLeadsHasEndedWhenItIsOustedAndNobodyFollows(t *testing.T) {
	s := kube(t)
	c := start(t, asRemediator(s), cluster.Options{})
	var leading atomic.Int32
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for _, who := range []string{"one", "two"} {
		go func() {
			ended <- c.Leader(ctx, candidate(who, "ousted"), func(ctx context.Context, _ cluster.Lead) error {
				leading.Add(1)
				<-ctx.Done()
				leading.Add(-1)
				return nil
			})
		}()
	}
	t.Cleanup(func() { stop(); <-ended; <-ended })
	eventually(t, "a leader", func() bool { return leading.Load() == 1 })
	if err := c.Oust(within(t), candidate("uninstall", "ousted"), 30*time.Second); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(1200 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // a lease of theirs is over
		if leading.Load() != 0 {
			t.Fatal("somebody leads after the ousting")
		}
	}
	free := candidate("uninstall", "nobody-leads")
	if began := time.Now(); c.Oust(within(t), free, time.Second) != nil || time.Since(began) > time.Second {
		t.Errorf("with nobody to oust it took %v", time.Since(began))
	}
}
