package cluster_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew/pitcrew/remediator/cluster"
)

func TestCordonIsOnePatchAndRepeatingItChangesNothing(t *testing.T) {
	s := kube(t)
	clean(t, s)
	var w writes
	c := start(t, asRemediator(s), cluster.Options{Audit: w.hook})
	first, err := c.Cordon(within(t), "a1", "inc-1")
	if err != nil || !first.Changed || first.Owner != "inc-1" || first.Foreign {
		t.Fatalf("first: %+v, %v", first, err)
	}
	n := node(t, s, "a1")
	if by, ok := taint(n, cluster.TaintQuarantine); !ok || by != "inc-1" || !n.Spec.Unschedulable {
		t.Fatalf("the node is not quarantined: %+v", n.Spec)
	}
	for range 3 { // at once, when the watch may not have shown the first yet, and later
		again, err := c.Cordon(within(t), "a1", "inc-1")
		if err != nil || again.Changed || again.Owner != "inc-1" {
			t.Fatalf("again: %+v, %v", again, err)
		}
	}
	if got := w.accepted("patch", "Node"); got != 1 {
		t.Errorf("%d patches were made", got)
	}
	other, err := c.Cordon(within(t), "a1", "inc-2")
	if err != nil || other.Changed || other.Owner != "inc-1" {
		t.Fatalf("a second incident took the node: %+v, %v", other, err)
	}
	if _, err := c.Uncordon(within(t), "a1", "inc-2"); !errors.Is(err, cluster.ErrQuarantined) {
		t.Fatalf("a second incident lifted the first one's quarantine: %v", err)
	}
	if _, err := c.Uncordon(within(t), "a1", "inc-1"); err != nil {
		t.Fatal(err)
	}
	n = node(t, s, "a1")
	if _, ok := taint(n, cluster.TaintQuarantine); ok || n.Spec.Unschedulable || n.Annotations[cluster.AnnotationCordon] != "" || n.Annotations[cluster.AnnotationQuarantine] != "" {
		t.Fatalf("something is left: %+v %+v", n.Annotations, n.Spec)
	}
}

func TestCordonReadsTheNodeAgainAfterAConflict(t *testing.T) {
	s := kube(t)
	clean(t, s)
	cfg := asRemediator(s)
	var once sync.Once
	patches := 0
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPatch && r.URL.Path == "/api/v1/nodes/a2" {
				patches++
				once.Do(func() { // someone taints the node between our reading and our writing
					patchNode(t, s, "a2", `{"spec":{"taints":[{"key":"other.example/maintenance","effect":"NoSchedule"}],"unschedulable":true}}`)
				})
			}
			return next.RoundTrip(r)
		})
	})
	c := start(t, cfg, cluster.Options{})
	got, err := c.Cordon(within(t), "a2", "inc-1")
	if err != nil || !got.Changed || !got.Foreign {
		t.Fatalf("%+v, %v: the cordon made meanwhile is not known for someone else's", got, err)
	}
	if patches != 2 && patches != 3 { // the node controller taints what somebody cordoned, which may be one conflict more
		t.Errorf("%d patches", patches)
	}
	n := node(t, s, "a2")
	if _, ok := taint(n, "other.example/maintenance"); !ok {
		t.Error("the taint that someone else set meanwhile was overwritten")
	}
	if by, _ := taint(n, cluster.TaintQuarantine); by != "inc-1" {
		t.Error("not quarantined")
	}
}

func TestUncordonLeavesSomeoneElsesCordon(t *testing.T) {
	s := kube(t)
	clean(t, s)
	patchNode(t, s, "a3", `{"spec":{"unschedulable":true}}`)
	c := start(t, asRemediator(s), cluster.Options{})
	if got, err := c.Cordon(within(t), "a3", "inc-1"); err != nil || !got.Foreign || !got.Changed {
		t.Fatalf("%+v, %v", got, err)
	}
	if got, err := c.Uncordon(within(t), "a3", "inc-1"); err != nil || !got.Foreign {
		t.Fatalf("%+v, %v", got, err)
	}
	n := node(t, s, "a3")
	if _, ok := taint(n, cluster.TaintQuarantine); ok {
		t.Error("our taint stayed")
	}
	if !n.Spec.Unschedulable {
		t.Error("someone else's cordon was lifted")
	}
}

func TestAHumansUncordonIsObeyedAlsoWhenItCameWhileNobodyLed(t *testing.T) {
	s := kube(t)
	clean(t, s)
	c := start(t, asRemediator(s), cluster.Options{})
	for _, n := range []string{"b1", "b2"} {
		if _, err := c.Cordon(within(t), n, "inc-"+n); err != nil {
			t.Fatal(err)
		}
	}
	patchNode(t, s, "b1", `{"spec":{"unschedulable":false}}`) // kubectl uncordon, before anybody listens
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan cluster.Uncordoned, 10)
	ended := make(chan error, 1)
	go func() { ended <- c.OnUncordon(ctx, func(u cluster.Uncordoned) { told <- u }) }()
	want := cluster.Uncordoned{Node: "b1", Incident: "inc-b1"}
	for _, n := range []string{"b1", "b2"} {
		select {
		case got := <-told:
			if want.Node, want.Incident = n, "inc-"+n; got != want {
				t.Fatalf("told of %+v, want %+v", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("never told of %s", n)
		}
		if _, ok := taint(node(t, s, n), cluster.TaintQuarantine); ok {
			t.Errorf("%s keeps our taint", n)
		}
		if n == "b1" {
			if !node(t, s, "b2").Spec.Unschedulable {
				t.Error("b2 lost its cordon")
			}
			patchNode(t, s, "b2", `{"spec":{"unschedulable":false}}`)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestNodeStateShowsWhatIsWrittenOnANode(t *testing.T) {
	s := kube(t)
	clean(t, s)
	c := start(t, asRemediator(s), cluster.Options{})
	patchNode(t, s, "a1", `{"metadata":{"annotations":{"pitcrew.dev/hold":"firmware update"}}}`)
	if _, err := c.Cordon(within(t), "a1", "inc-1"); err != nil {
		t.Fatal(err)
	}
	if err := c.SetCondition(within(t), "a1", false, "XID79", "GPU-1 fell off the bus"); err != nil {
		t.Fatal(err)
	}
	sandboxNode, err := s.Node("a1")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the state", func() bool {
		got, err := c.NodeState("a1")
		return err == nil && got.Ready && got.Unschedulable && got.Quarantined == "inc-1" && got.Held == "firmware update" && got.Healthy == "False" &&
			got.Leased && got.LeaseAge < time.Minute && got.BootID == sandboxNode.BootID() && got.UID != "" && !got.FoundCordoned
	})
	if err := c.SetCondition(within(t), "a1", true, "Repaired", "all well"); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(node(t, s, "a1").Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == cluster.ConditionHealthy })
	if i < 0 || node(t, s, "a1").Status.Conditions[i].Status != corev1.ConditionTrue {
		t.Error("the condition did not follow")
	}
	if _, err := c.NodeState("nowhere"); !errors.Is(err, cluster.ErrNotFound) {
		t.Error(err)
	}
	if err := c.ProbeKubelet(within(t), "a1"); err != nil {
		t.Error(err)
	}
	if err := c.Event(within(t), c.NodeRef("a1"), cluster.Warning, "Quarantined", "by incident inc-1"); err != nil {
		t.Error(err)
	}
}
