package deploy_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew/pitcrew/deploy"
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
	for kind, path := range touched {
		raw, err := s.Client().CoreV1().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(t.Context())
		if apierrors.IsNotFound(err) && kind == "jobset" { // its operator is not installed
			continue
		}
		var list metav1.PartialObjectMetadataList
		if err == nil {
			err = json.Unmarshal(raw, &list)
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, o := range list.Items {
			out.versions[kind+" "+o.Name] = o.ResourceVersion
		}
	}
	return out
}

// touched are the kinds beside nodes that any role of the remediator may write, but for Events, which tell, and the Lease of the leader: where
// the test's objects of them are.
var touched = map[string]string{
	"pod":       "/api/v1/namespaces/" + watched + "/pods",
	"job":       "/apis/batch/v1/namespaces/" + watched + "/jobs",
	"jobset":    "/apis/jobset.x-k8s.io/v1alpha2/jobsets",
	"configmap": "/api/v1/namespaces/" + namespace + "/configmaps",
	"namespace": "/api/v1/namespaces",
}

// TestEveryKindThatARoleMayWriteIsLookedAt keeps the list of kinds above complete.
func TestEveryKindThatARoleMayWriteIsLookedAt(t *testing.T) {
	looked := map[string]bool{"nodes": true, "nodes/status": true, "pods/eviction": true, // what they change shows in the node and the pod
		"events": true, "leases": true, "tokenreviews": true}
	for kind := range touched {
		looked[kind+"s"] = true
	}
	for _, doc := range strings.Split(string(deploy.RBAC)+"\n---\n"+string(deploy.RBACEnforce), "\n---\n") {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal([]byte(doc), &role); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(role.Name, "pitcrew-remediator") {
			continue
		}
		for _, rule := range role.Rules {
			writes := slices.ContainsFunc(rule.Verbs, func(v string) bool { return v != "get" && v != "list" && v != "watch" })
			for _, what := range rule.Resources {
				if writes && !looked[what] {
					t.Errorf("%s may %v %s, which the test of mode observe does not look at", role.Name, rule.Verbs, what)
				}
			}
		}
	}
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
