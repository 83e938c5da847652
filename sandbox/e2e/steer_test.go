package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/demo"
)

// One node of the job's own rack is free, and four of another, which the scheduler would take as gladly.
func TestBelowKubernetes136TheReplacementGoesToTheEquivalentNode(t *testing.T) {
	t.Parallel()
	root, err := sandbox.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	bin := os.Getenv("PITCREW_BIN")
	if bin == "" {
		bin = filepath.Join(root, "bin")
	}
	spec := func(name, rack string) sandbox.NodeSpec {
		return sandbox.NodeSpec{Name: name, Rack: rack, Spine: "spine-1", Zone: "zone-1", GPUCount: 8}
	}
	near := []sandbox.NodeSpec{spec("a1", "rack-a"), spec("a2", "rack-a"), spec("a3", "rack-a")}
	away := []sandbox.NodeSpec{spec("b1", "rack-b"), spec("b2", "rack-b"), spec("b3", "rack-b"), spec("b4", "rack-b")}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	s, err := demo.SetUp(ctx, demo.StageOptions{Nodes: slices.Concat(near, away), Emulate: "1.35", Policies: relaxed, Bin: bin, Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, n := range away { // the job starts in rack a; then the other is open too
		if err := cordon(s, n.Name, true); err != nil {
			t.Fatal(err)
		}
	}
	j, err := s.Submit(ctx, "below", demo.Scenario{Launcher: sandbox.LauncherPitcrew, Workload: demo.KindJob})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Reached(ctx, j, 10, time.Minute); err != nil {
		t.Fatal(err)
	}
	for _, n := range away {
		if err := cordon(s, n.Name, false); err != nil {
			t.Fatal(err)
		}
	}
	in, err := s.Box().Fault(ctx, sandbox.Fault{Kind: sandbox.XID79, Rank: 1})
	if err != nil {
		t.Fatal(err)
	}
	i, err := s.Follow(ctx, j, in, func(l string) { t.Log(l) })
	if err != nil {
		keepLogs(s)
		t.Fatal(err)
	}
	if i.Outcome != incident.Recovered || len(i.Moves) != 1 || len(i.Strays) > 0 {
		t.Fatalf("%s, %d moves, strays %v: %s", i.Outcome, len(i.Moves), i.Strays, i.Reason)
	}
	pods, err := s.Box().Client().CoreV1().Pods(demo.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	k := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return string(p.UID) == i.Moves[0].NewUID })
	if k < 0 {
		t.Fatalf("the replacement %s is not there", i.Moves[0].NewPod)
	}
	p := pods.Items[k]
	if !slices.ContainsFunc(near, func(n sandbox.NodeSpec) bool { return n.Name == p.Spec.NodeName }) || p.Spec.NodeSelector["kubernetes.io/hostname"] != p.Spec.NodeName {
		t.Errorf("the replacement is on %s with the node selector %v", p.Spec.NodeName, p.Spec.NodeSelector)
	}
	if !slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == cluster.TaintReserved }) {
		t.Errorf("it tolerates no reservation: %v", p.Spec.Tolerations)
	}
}
