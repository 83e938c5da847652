package sandbox_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

const patience = 30 * time.Second

// shellPod runs a shell script on a node, or wherever the scheduler puts it.
func shellPod(name, node, script string, gpus int) *corev1.Pod {
	grace, token := int64(1), false
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &token,
		Containers: []corev1.Container{{Name: "main", Image: "host", Command: []string{"/bin/sh", "-c", script}}},
	}}
	if node != "" {
		pod.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": node}
	}
	if gpus > 0 {
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(int64(gpus), resource.DecimalSI)}
	}
	return pod
}

func create(t *testing.T, s *sandbox.Sandbox, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	pod, err := s.Client().CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		now := int64(0)
		_ = s.Client().CoreV1().Pods(pod.Namespace).Delete(context.Background(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	})
	return pod
}

// until watches one pod until ok says so; a nil pod means that the object is gone.
func until(t *testing.T, s *sandbox.Sandbox, name, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w, err := s.Client().CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var last *corev1.Pod
	for {
		select {
		case <-ctx.Done():
			t.Fatalf("pod %s: not %s within %s; last seen: %s", name, what, patience, describe(last))
		case e := <-w.ResultChan():
			pod, _ := e.Object.(*corev1.Pod)
			if pod != nil {
				last = pod
			}
			if e.Type == watch.Deleted {
				pod = nil
			}
			if ok(pod) {
				return last
			}
		}
	}
}

func describe(pod *corev1.Pod) string {
	if pod == nil {
		return "nothing"
	}
	return fmt.Sprintf("phase %s on %q, deleted %v, containers %+v, reason %s %s", pod.Status.Phase, pod.Spec.NodeName, pod.DeletionTimestamp,
		pod.Status.ContainerStatuses, pod.Status.Reason, pod.Status.Message)
}

func running(pod *corev1.Pod) bool { return pod != nil && pod.Status.Phase == corev1.PodRunning }
func gone(pod *corev1.Pod) bool    { return pod == nil }
func over(pod *corev1.Pod) bool {
	return pod != nil && (pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed)
}

func podLog(t *testing.T, s *sandbox.Sandbox, pod *corev1.Pod) string {
	t.Helper()
	n, err := s.Node(pod.Spec.NodeName)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(n.LogDir(pod) + "/" + pod.Spec.Containers[0].Name + ".log")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// eventually is for what has no watch: the state of a process or a file.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

func TestARunningSandboxIsNotEndedByOneThatWantsItsDirectory(t *testing.T) {
	s := sandboxtest.Cluster(t)
	if _, err := sandbox.Up(t.Context(), sandbox.Options{Dir: s.Dir(), Nodes: sandbox.TwoRacks()[:1]}); err == nil || !strings.Contains(err.Error(), "pitcrew sandbox down --dir "+s.Dir()) {
		t.Fatalf("%v; the command that ends the other must be named", err)
	}
	if _, err := s.Client().CoreV1().Nodes().Get(t.Context(), "a1", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := s.Node("z9"); err == nil || !strings.Contains(err.Error(), "a1 a2 a3 b1") {
		t.Errorf("a node that is not there: %v", err)
	}
}

func TestNodesAreReadyGPUNodesInTwoRacks(t *testing.T) {
	s := sandboxtest.Cluster(t)
	nodes, err := s.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	racks := map[string]int{}
	for _, n := range nodes.Items {
		racks[n.Labels["fabric.topograph.run/tier-0"]]++
		if q := n.Status.Allocatable["nvidia.com/gpu"]; q.Value() != 8 {
			t.Errorf("%s offers %s GPUs, want 8", n.Name, q.String())
		}
		if n.Spec.Unschedulable || len(n.Spec.Taints) > 0 {
			t.Errorf("%s cannot be scheduled to: %+v", n.Name, n.Spec)
		}
	}
	if racks["rack-a"] != 3 || racks["rack-b"] != 3 {
		t.Errorf("racks %v, want three nodes in each of rack-a and rack-b", racks)
	}
}

func TestAPodsEnvironmentMountsAndExitReachItsStatus(t *testing.T) {
	s := sandboxtest.Cluster(t)
	pod := shellPod("env", "a1", `echo "$POD_UID $NODE_NAME $EXPANDED $0"; mktemp; echo x >"$SCRATCH/file"; ls "$1"; exit 3`, 0)
	c := &pod.Spec.Containers[0]
	c.Command = append(c.Command, "zero", "/scratch")
	c.Env = []corev1.EnvVar{
		{Name: "POD_UID", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}}},
		{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
		{Name: "EXPANDED", Value: "on-$(NODE_NAME)-$$(NODE_NAME)-$(NONE)"}, {Name: "SCRATCH", Value: "/scratch"},
	}
	pod.Spec.Volumes = []corev1.Volume{{Name: "s", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "s", MountPath: "/scratch"}}
	create(t, s, pod)
	pod = until(t, s, "env", "over", over)
	term := pod.Status.ContainerStatuses[0].State.Terminated
	if pod.Status.Phase != corev1.PodFailed || term == nil || term.ExitCode != 3 {
		t.Errorf("want Failed with exit code 3, got %s", describe(pod))
	}
	lines := strings.Split(podLog(t, s, pod), "\n")
	if len(lines) != 4 || lines[0] != string(pod.UID)+" a1 on-a1-$(NODE_NAME)-$(NONE) zero" || lines[2] != "file" {
		t.Fatalf("the container printed %q", lines)
	}
	if !strings.HasPrefix(lines[1], s.Dir()+"/tmp/") {
		t.Errorf("a temporary file is made in %s, and outlives the sandbox", lines[1])
	}
	n, _ := s.Node("a1")
	file := n.PodsDir() + "/" + string(pod.UID) + "/volumes/kubernetes.io~empty-dir/s/file"
	if _, err := os.Stat(file); err != nil {
		t.Errorf("an emptyDir is not where a kubelet keeps it: %v", err)
	}
}

func TestGraceIsGivenKeptAndShortened(t *testing.T) {
	s := sandboxtest.Cluster(t)
	const deaf = `trap '' TERM; (trap '' TERM; sleep 1000) & while :; do sleep 1; done`
	for _, tc := range []struct {
		name, script string
		podGrace     int64
		askedGrace   int64 // of the deletion; -1: the pod's own
		atLeast      time.Duration
		atMost       time.Duration
		code         int32
	}{
		{"leaves at SIGTERM", `trap 'exit 5' TERM; while :; do sleep 0.05; done`, 20, -1, 0, 5 * time.Second, 5},
		{"is killed when its grace is over", deaf, 3, -1, 2900 * time.Millisecond, 8 * time.Second, 137},
		{"is killed earlier when the deletion says so", deaf, 60, 1, 900 * time.Millisecond, 8 * time.Second, 137},
	} {
		t.Run(tc.name, func(t *testing.T) {
			name := "grace-" + strings.ReplaceAll(strings.ToLower(tc.name), " ", "-")
			pod := shellPod(name, "a2", tc.script, 0)
			pod.Spec.TerminationGracePeriodSeconds = &tc.podGrace
			create(t, s, pod)
			until(t, s, name, "running", running)
			time.Sleep(200 * time.Millisecond) // the shell sets its trap
			o := metav1.DeleteOptions{}
			if tc.askedGrace >= 0 {
				o.GracePeriodSeconds = &tc.askedGrace
			}
			began := time.Now()
			if err := s.Client().CoreV1().Pods("default").Delete(t.Context(), name, o); err != nil {
				t.Fatal(err)
			}
			pod = until(t, s, name, "gone", gone)
			if took := time.Since(began); took < tc.atLeast || took > tc.atMost {
				t.Errorf("gone after %s, want between %s and %s", took, tc.atLeast, tc.atMost)
			}
			if term := pod.Status.ContainerStatuses[0].State.Terminated; term == nil || term.ExitCode != tc.code {
				t.Errorf("want exit code %d, got %s", tc.code, describe(pod))
			}
			if pids := sandbox.Marked(s, string(pod.UID)); len(pids) > 0 {
				t.Errorf("processes %v outlived their pod", pids)
			}
		})
	}
}

func TestADeletionMayShortenTheGraceThatAnEarlierOneGave(t *testing.T) {
	s := sandboxtest.Cluster(t)
	pod := shellPod("shorten", "a2", "trap '' TERM; while :; do sleep 1; done", 0)
	long, short := int64(60), int64(1)
	pod.Spec.TerminationGracePeriodSeconds = &long
	create(t, s, pod)
	until(t, s, "shorten", "running", running)
	began := time.Now()
	for _, grace := range []*int64{&long, &short} {
		if err := s.Client().CoreV1().Pods("default").Delete(t.Context(), "shorten", metav1.DeleteOptions{GracePeriodSeconds: grace}); err != nil {
			t.Fatal(err)
		}
	}
	until(t, s, "shorten", "gone", gone)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("gone after %s, want about a second", took)
	}
}

func TestWhatAMainProcessLeavesBehindDiesWithIt(t *testing.T) {
	s := sandboxtest.Cluster(t)
	create(t, s, shellPod("leaves", "a1", "setsid sleep 1000 & setsid sh -c 'trap \"\" TERM; sleep 1000' & sleep 0.2; exit 0", 0))
	pod := until(t, s, "leaves", "over", over)
	if pids := sandbox.Marked(s, string(pod.UID)); pod.Status.Phase != corev1.PodSucceeded || len(pids) > 0 {
		t.Errorf("want Succeeded and no process, got %s and processes %v", describe(pod), pids)
	}
}

func TestACrashingContainerIsRestartedAtOnceAndThenBacksOff(t *testing.T) {
	s := sandboxtest.Cluster(t)
	pod := shellPod("crash", "a3", "echo again; exit 1", 0)
	pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	create(t, s, pod)
	began := time.Now()
	pod = until(t, s, "crash", "in CrashLoopBackOff", func(p *corev1.Pod) bool {
		if p == nil || len(p.Status.ContainerStatuses) == 0 {
			return false
		}
		cs := p.Status.ContainerStatuses[0]
		return cs.RestartCount == 1 && cs.State.Waiting != nil
	})
	cs := pod.Status.ContainerStatuses[0]
	if cs.State.Waiting.Reason != "CrashLoopBackOff" || !strings.Contains(cs.State.Waiting.Message, "10s") {
		t.Errorf("want CrashLoopBackOff of 10s, got %s", describe(pod))
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the first restart took %s, want none", took)
	}
	if cs.LastTerminationState.Terminated == nil || cs.LastTerminationState.Terminated.ExitCode != 1 {
		t.Errorf("want a last state with exit code 1, got %s", describe(pod))
	}
	if got := strings.Count(podLog(t, s, pod), "again"); got != 2 {
		t.Errorf("the container ran %d times before the back-off, want 2", got)
	}
}
