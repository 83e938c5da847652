package deploy_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/sandbox"
)

// watched is the namespace of a job that Pitcrew may heal.
const watched = "watched"

// sleepers runs a gang of two pods, each with a node's GPUs, where Pitcrew may heal, and returns the node of one.
func sleepers(t *testing.T, s *sandbox.Sandbox) (node string) {
	t.Helper()
	if err := s.CreateNamespace(t.Context(), watched, map[string]string{"pitcrew.dev/heal": "true"}); err != nil {
		t.Fatal(err)
	}
	two, mode := int32(2), batchv1.IndexedCompletion
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "gang", Namespace: watched}, Spec: batchv1.JobSpec{Parallelism: &two, Completions: &two, CompletionMode: &mode,
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "train", Image: "none",
			Command: []string{"/bin/sleep", "600"}, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}}}}}}}}
	if _, err := s.Client().BatchV1().Jobs(watched).Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a gang that runs", func() error {
		list, err := s.Client().CoreV1().Pods(watched).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		running := 0
		for _, p := range list.Items {
			if node = p.Spec.NodeName; p.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		now, err := s.Client().BatchV1().Jobs(watched).Get(t.Context(), job.Name, metav1.GetOptions{})
		if err != nil || running != 2 || now.Status.Ready == nil || *now.Status.Ready != 2 {
			return fmt.Errorf("%d of 2 pods run, %v", running, err)
		}
		return nil
	})
	return node
}

// state is what a remediation may change, by kind and name.
type state struct {
	versions map[string]string // resourceVersion
	content  map[string]string // without what a kubelet's heartbeat changes
}

func stateOf(t *testing.T, s *sandbox.Sandbox) state {
	t.Helper()
	out := state{map[string]string{}, map[string]string{}}
	nodes, err := s.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes.Items {
		out.versions["node "+n.Name] = n.ResourceVersion
		for k := range n.Status.Conditions {
			n.Status.Conditions[k].LastHeartbeatTime = metav1.Time{}
		}
		n.ResourceVersion, n.ManagedFields = "", nil
		out.content["node "+n.Name] = asJSON(t, n)
	}
	pods, err := s.Client().CoreV1().Pods(watched).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		out.versions["pod "+p.Name] = p.ResourceVersion
	}
	jobs, err := s.Client().BatchV1().Jobs(watched).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs.Items {
		out.versions["job "+j.Name] = j.ResourceVersion
	}
	return out
}

func unchanged(t *testing.T, was, is state) {
	t.Helper()
	if len(was.versions) != len(is.versions) || len(was.versions) < 9 {
		t.Errorf("%d objects before the fault, %d after it; six nodes, two pods and a job are wanted", len(was.versions), len(is.versions))
	}
	for name, version := range was.versions {
		if is.versions[name] != version && (was.content[name] == "" || was.content[name] != is.content[name]) {
			t.Errorf("under observe %s changed: resourceVersion %s, then %s\n%s\n%s", name, version, is.versions[name], was.content[name], is.content[name])
		}
	}
}

// writesOf are the changes of nodes, pods, jobs and ConfigMaps that an account asked for, by the API server's own audit log.
func writesOf(t *testing.T, s *sandbox.Sandbox, account string) (out []string) {
	t.Helper()
	f, err := os.Open(s.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, lookedAt := bufio.NewScanner(f), 0
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e struct {
			Verb, RequestURI       string
			User, ImpersonatedUser struct{ Username string }
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		lookedAt++
		if strings.HasSuffix(e.User.Username, ":"+account) || strings.HasSuffix(e.ImpersonatedUser.Username, ":"+account) {
			out = append(out, e.Verb+" "+e.RequestURI)
		}
	}
	if lookedAt == 0 {
		t.Error("the audit log is empty")
	}
	return out
}
