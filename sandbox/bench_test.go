package sandbox_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

// BenchmarkKubelet measures what a node adds of its own: from the moment a pod bound to it was accepted by the API server to the
// first instruction of its process, and from the process's last to the watched terminal status.
func BenchmarkKubelet(b *testing.B) {
	s := sandboxtest.Cluster(b)
	pods := s.Client().CoreV1().Pods("default")
	node, err := s.Node("a1")
	if err != nil {
		b.Fatal(err)
	}
	stamp := func(line string) time.Time {
		f, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
		if err != nil {
			b.Fatal(err)
		}
		return time.Unix(0, int64(f*1e9))
	}
	var start, end time.Duration
	n := 0
	for b.Loop() {
		name := fmt.Sprintf("bench-%d-%d", os.Getpid(), n)
		n++
		w, err := pods.Watch(b.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil {
			b.Fatal(err)
		}
		pod := shellPod(name, "", "date +%s.%N; date +%s.%N", 0)
		pod.Spec.NodeName = "a1"
		if pod, err = pods.Create(b.Context(), pod, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
		bound := time.Now()
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok && e.Type == watch.Modified && p.Status.Phase == corev1.PodSucceeded {
				break
			}
		}
		seen := time.Now()
		w.Stop()
		log, err := os.ReadFile(node.LogDir(pod) + "/main.log")
		if err != nil {
			b.Fatal(err)
		}
		lines := strings.Split(string(log), "\n")
		start += stamp(lines[0]).Sub(bound)
		end += seen.Sub(stamp(lines[1]))
		now := int64(0)
		_ = pods.Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	}
	b.ReportMetric(float64(start.Microseconds())/1000/float64(n), "ms/bound-to-start")
	b.ReportMetric(float64(end.Microseconds())/1000/float64(n), "ms/exit-to-status")
}
