package sandbox_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

func TestAJobSetTrainsAndRecreatesItsGangAfterAnEviction(t *testing.T) {
	s := sandboxtest.Cluster(t)
	python, err := sandbox.FindPython(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	js, err := s.JobSet(sandbox.Workload{Name: "set", Python: python,
		Env: map[string]string{"STEP_SECONDS": "0.05", "PITCREW_TRAIN_LOG": filepath.Join(s.Dir(), "train", "set")}})
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	sets := client.Resource(sandbox.JobSetResource).Namespace("default")
	if js, err = sets.Create(t.Context(), js, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pods := func() []corev1.Pod {
		list, err := s.Client().CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "jobset.sigs.k8s.io/jobset-name=set"})
		if err != nil {
			t.Fatal(err)
		}
		return list.Items
	}
	eventually(t, "both ranks step", func() bool { return len(s.Ranks()) == 2 && step(s, "set", 0) > 2 && step(s, "set", 1) > 2 })
	old := map[string]bool{}
	for _, p := range pods() {
		old[string(p.UID)] = true
		if got := p.Labels["jobset.sigs.k8s.io/jobset-uid"]; got != string(js.GetUID()) {
			t.Errorf("pod %s says that its JobSet's UID is %q, want %q: PITCREW_JOB_UID is taken from there", p.Name, got, js.GetUID())
		}
	}
	began := time.Now()
	if err := s.Client().CoreV1().Pods("default").EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pods()[0].Name}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "two new pods run", func() bool {
		running := 0
		for _, p := range pods() {
			if !old[string(p.UID)] && p.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		return running == 2
	})
	t.Logf("the gang runs again after %s", time.Since(began))
	js, err = sets.Get(t.Context(), "set", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n, _, _ := unstructured.NestedInt64(js.Object, "status", "restarts"); n != 1 {
		t.Errorf("the JobSet counts %d restarts, want 1", n)
	}
	background := metav1.DeletePropagationBackground
	if err := sets.Delete(t.Context(), "set", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the JobSet's pods are gone", func() bool { return len(pods()) == 0 })
}
