package cluster_test

import (
	"context"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/remediator/cluster"
)

func TestWhatOthersSayOfNodesIsHeardAsItIsAndAsItChanges(t *testing.T) {
	s := kube(t)
	clean(t, s)
	c := start(t, asRemediator(s), cluster.Options{})
	name := s.Nodes()[0].Name
	var mu sync.Mutex
	var last cluster.Said
	var warned []cluster.Warned
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		_ = c.OnNodes(ctx, func(n cluster.Said) {
			mu.Lock()
			defer mu.Unlock()
			if n.Node == name {
				last = n
			}
		})
	})
	ended.Go(func() {
		_ = c.OnWarnings(ctx, func(w cluster.Warned) {
			mu.Lock()
			defer mu.Unlock()
			if w.Node == name && w.Reason == "KernelOops" {
				warned = append(warned, w)
			}
		})
	})
	t.Cleanup(func() { cancel(); ended.Wait() })
	look := func(ok func() bool) func() bool { return func() bool { mu.Lock(); defer mu.Unlock(); return ok() } }
	eventually(t, "the node as it is", look(func() bool { return last.UID != "" && last.BootID != "" && len(last.Conditions) > 0 }))
	patchNode(t, s, name, `{"spec":{"taints":[{"key":"nvidia.com/gpu-error","value":"fatal","effect":"NoSchedule"}]}}`)
	eventually(t, "a taint of somebody else", look(func() bool { return len(last.Taints) == 1 && last.Taints[0].Value == "fatal" }))
	if direct, err := c.Said(name); err != nil || len(direct.Taints) != 1 {
		t.Errorf("asked directly: %+v, %v", direct, err)
	}
	for _, e := range []struct{ kind, level string }{{"Node", corev1.EventTypeWarning}, {"Node", corev1.EventTypeNormal}, {"Pod", corev1.EventTypeWarning}} {
		if _, err := s.Client().CoreV1().Events("default").Create(t.Context(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: "oops-", Namespace: "default"},
			InvolvedObject: corev1.ObjectReference{Kind: e.kind, Name: name, Namespace: map[string]string{"Pod": "default"}[e.kind]}, Type: e.level,
			Reason: "KernelOops", Message: "BUG", Source: corev1.EventSource{Component: "kernel-monitor"}, LastTimestamp: metav1.Now(),
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a warning about a node", look(func() bool { return len(warned) == 1 && warned[0].By == "kernel-monitor" && !warned[0].At.IsZero() }))
}
