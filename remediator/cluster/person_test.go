package cluster_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"context"

	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// With the rights and bounds of the remediator's own account, on a real API server.
func TestAPersonHoldsReleasesAndGivesBackANodeAndEachWriteIsAudited(t *testing.T) {
	s := kube(t)
	clean(t, s)
	var mu sync.Mutex
	var said []string
	c := start(t, asRemediator(s), cluster.Options{Audit: func(_ context.Context, w cluster.Write) {
		mu.Lock()
		defer mu.Unlock()
		if !w.Done {
			said = append(said, w.What)
		}
	}})
	if err := c.HoldNode(within(t), "a3", "olga: checking"); err != nil || node(t, s, "a3").Annotations[cluster.AnnotationHold] != "olga: checking" {
		t.Fatalf("hold: %v %v", err, node(t, s, "a3").Annotations)
	}
	if err := c.HoldNode(within(t), "a3", "max: mine"); !errors.Is(err, cluster.ErrHeld) || !strings.Contains(err.Error(), "olga: checking") {
		t.Errorf("a second hold: %v", err)
	}
	if err := c.ReleaseNode(within(t), "a3"); err != nil {
		t.Fatal(err)
	}
	if err := c.ReleaseNode(within(t), "a3"); !errors.Is(err, cluster.ErrNotHeld) {
		t.Errorf("a second release: %v", err)
	}
	if _, held := node(t, s, "a3").Annotations[cluster.AnnotationHold]; held {
		t.Error("the hold stayed")
	}
	if err := c.HoldNode(within(t), "none", "x"); !errors.Is(err, cluster.ErrNotFound) {
		t.Errorf("a node that is not there: %v", err)
	}
	if _, err := c.Cordon(within(t), "a3", "inc-1"); err != nil {
		t.Fatal(err)
	}
	if err := c.LiftQuarantine(within(t), "a3", cluster.Lift{Incident: "inc-2", By: "olga"}); !errors.Is(err, cluster.ErrQuarantined) {
		t.Errorf("another incident's quarantine: %v", err)
	}
	if err := c.LiftQuarantine(within(t), "a3", cluster.Lift{Incident: "inc-1", By: "olga"}); err != nil || node(t, s, "a3").Spec.Unschedulable {
		t.Errorf("lift: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(said) != 8 || said[0] != "hold" || said[7] != "lift quarantine for olga" {
		t.Errorf("audited: %q", said)
	}
}
