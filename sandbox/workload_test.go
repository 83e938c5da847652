package sandbox_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

// startJob creates a job that trains with short steps, and removes it and all its pods after the test.
func startJob(t *testing.T, s *sandbox.Sandbox, w sandbox.Workload) *batchv1.Job {
	t.Helper()
	var err error
	if w.Python, err = sandbox.FindPython(t.Context(), os.Stderr); err != nil {
		t.Fatal(err)
	}
	w.Env = map[string]string{"STEP_SECONDS": "0.05", "PITCREW_TRAIN_LOG": filepath.Join(s.Dir(), "train", w.Name)}
	job, err := s.Job(w)
	if err != nil {
		t.Fatal(err)
	}
	if job, err = s.Client().BatchV1().Jobs(job.Namespace).Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		background := metav1.DeletePropagationBackground
		_ = s.Client().BatchV1().Jobs(job.Namespace).Delete(context.Background(), job.Name, metav1.DeleteOptions{PropagationPolicy: &background})
		eventually(t, "the job's pods are gone", func() bool { return len(jobPods(t, s, job.Name)) == 0 })
	})
	return job
}

func jobPods(t *testing.T, s *sandbox.Sandbox, name string) []corev1.Pod {
	t.Helper()
	list, err := s.Client().CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{LabelSelector: "batch.kubernetes.io/job-name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// step is the last line that a rank of the trainer wrote.
func step(s *sandbox.Sandbox, job string, rank int) int {
	b, _ := os.ReadFile(filepath.Join(s.Dir(), "train", job, fmt.Sprintf("rank-%d.log", rank)))
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	word, _, _ := strings.Cut(lines[len(lines)-1], " ")
	n, _ := strconv.Atoi(word)
	return n
}

func TestATrainingJobStepsOnTwoNodesOfOneRack(t *testing.T) {
	s := sandboxtest.Cluster(t)
	for _, launcher := range []string{sandbox.LauncherPitcrew, sandbox.LauncherTorchrun} {
		t.Run(launcher, func(t *testing.T) {
			name := "train-" + launcher
			startJob(t, s, sandbox.Workload{Name: name, Launcher: launcher})
			eventually(t, "both ranks pass step 5", func() bool { return len(s.Ranks()) == 2 && step(s, name, 0) > 5 && step(s, name, 1) > 5 })
			pods := jobPods(t, s, name)
			if len(pods) != 2 || pods[0].Spec.NodeName == pods[1].Spec.NodeName || pods[0].Spec.NodeName[0] != pods[1].Spec.NodeName[0] {
				t.Errorf("want two pods on two nodes of one rack, got %d on %q and %q", len(pods), pods[0].Spec.NodeName, pods[1].Spec.NodeName)
			}
			for _, r := range s.Ranks() {
				for _, p := range pods {
					if string(p.UID) == r.PodUID && (p.Spec.NodeName != r.Node || p.Annotations["batch.kubernetes.io/job-completion-index"] != strconv.Itoa(r.Rank)) {
						t.Errorf("rank %+v is not where its pod is: %s", r, describe(&p))
					}
				}
			}
		})
	}
}

func TestAnEvictedPodOfAJobIsReplacedWithoutBackOffWhenItsFinalizerIsLifted(t *testing.T) {
	s := sandboxtest.Cluster(t)
	startJob(t, s, sandbox.Workload{Name: "evict"})
	eventually(t, "both pods run", func() bool {
		pods := jobPods(t, s, "evict")
		return len(pods) == 2 && pods[0].Status.Phase == corev1.PodRunning && pods[1].Status.Phase == corev1.PodRunning
	})
	old := jobPods(t, s, "evict")[0]
	pods := s.Client().CoreV1().Pods("default")
	patch := []byte(`{"metadata":{"uid":"` + string(old.UID) + `","finalizers":null}}`)
	if _, err := pods.Patch(t.Context(), old.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := pods.EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: old.Name}}); err != nil {
		t.Fatal(err)
	}
	index := old.Annotations["batch.kubernetes.io/job-completion-index"]
	eventually(t, "a new pod of the same index runs", func() bool {
		for _, p := range jobPods(t, s, "evict") {
			if p.UID != old.UID && p.Annotations["batch.kubernetes.io/job-completion-index"] == index && p.Status.Phase == corev1.PodRunning {
				return true
			}
		}
		return false
	})
	if pids := sandbox.Marked(s, string(old.UID)); len(pids) > 0 {
		eventually(t, "the evicted pod's processes are gone", func() bool { return len(sandbox.Marked(s, string(old.UID))) == 0 })
	}
	job, err := s.Client().BatchV1().Jobs("default").Get(t.Context(), "evict", metav1.GetOptions{})
	if err != nil || job.Status.Failed != 0 {
		t.Errorf("want no failure counted, got %d, %v", job.Status.Failed, err)
	}
}

func TestRankFaultsHitTheRanksProcess(t *testing.T) {
	s := sandboxtest.Cluster(t)
	startJob(t, s, sandbox.Workload{Name: "ranks"})
	eventually(t, "both ranks step", func() bool { return len(s.Ranks()) == 2 && step(s, "ranks", 1) > 2 })
	in, err := s.Fault(t.Context(), sandbox.Fault{Kind: sandbox.RankHung, Rank: 1})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the hung rank's process is stopped", func() bool {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", in.PID))
		return strings.Contains(string(stat), ") T ")
	})
	if _, err := s.Fault(t.Context(), sandbox.Fault{Kind: sandbox.RankKilled, Rank: 1}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the killed rank's process is gone", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d/fd/0", in.PID))
		return err != nil
	})
}
