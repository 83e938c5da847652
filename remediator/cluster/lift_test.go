package cluster_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/cluster"
)

func TestTheLeaderLearnsOfAQuarantineThatACommandLifted(t *testing.T) {
	s := kube(t)
	clean(t, s)
	c := start(t, asRemediator(s), cluster.Options{})
	for _, n := range []string{"b1", "b2"} {
		if _, err := c.Cordon(within(t), n, "inc-"+n); err != nil {
			t.Fatal(err)
		}
	}
	nodes := s.Client().CoreV1().Nodes()
	if err := cluster.LiftQuarantine(within(t), nodes, "b1", cluster.Lift{Incident: "inc-other"}); !errors.Is(err, cluster.ErrQuarantined) {
		t.Errorf("another incident's: %v", err)
	}
	for _, n := range []string{"b1", "b2"} {
		if err := cluster.LiftQuarantine(within(t), nodes, n, cluster.Lift{Incident: "inc-" + n, By: "ann", Reason: "swapped", At: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	if err := cluster.LiftQuarantine(within(t), nodes, "b1", cluster.Lift{Incident: "inc-b1"}); !errors.Is(err, cluster.ErrNotQuarantined) {
		t.Errorf("a second time: %v", err)
	}
	eventually(t, "the watch to show both", func() bool { return len(c.QuarantinedNodes()) == 0 })
	if _, err := c.Cordon(within(t), "b2", "inc-new"); err != nil { // before anybody read the command
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	told, ended := make(chan cluster.Uncordoned, 10), make(chan error, 1)
	go func() { ended <- c.OnUncordon(ctx, func(u cluster.Uncordoned) { told <- u }) }()
	select {
	case got := <-told:
		if want := (cluster.Uncordoned{Node: "b1", Incident: "inc-b1", By: "ann", Reason: "swapped", At: got.At}); got != want || got.At.IsZero() {
			t.Errorf("told of %+v, want %+v", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("never told")
	}
	eventually(t, "the commands to be taken off the nodes", func() bool {
		_, one := node(t, s, "b1").Annotations[cluster.AnnotationUncordoned]
		_, two := node(t, s, "b2").Annotations[cluster.AnnotationUncordoned]
		return !one && !two
	})
	if v, ok := taint(node(t, s, "b2"), cluster.TaintQuarantine); !ok || v != "inc-new" || !node(t, s, "b2").Spec.Unschedulable {
		t.Errorf("the new quarantine of b2 was lifted by an old command")
	}
	cancel()
	<-ended
	if len(told) > 0 {
		t.Errorf("told of %+v as well", <-told)
	}
}
