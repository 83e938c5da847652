package deploy_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/pitcrew/pitcrew/deploy"
	"github.com/pitcrew/pitcrew/sandbox"
)

// attempt is what a thief may try with a token: a request that the API server answers without doing it (dry run).
type attempt struct {
	row     string // of the table in docs/threat-model.md
	verb    string // HTTP's
	path    string
	body    string
	allowed map[string]bool // by who; others are refused
}

// who has a token: "observe" and "enforce" are the remediator's account under its two roles.
func only(who ...string) map[string]bool {
	out := map[string]bool{}
	for _, w := range who {
		out[w] = true
	}
	return out
}

func attempts(node, pod, job string) []attempt {
	pods, system := "/api/v1/namespaces/stolen/pods", "/api/v1/namespaces/pitcrew-system"
	return []attempt{
		{"list pods of all namespaces", "GET", "/api/v1/pods", "", only("observe", "enforce", "agent")},
		{"read nodes and jobs", "GET", "/api/v1/nodes", "", only("observe", "enforce")},
		{"read nodes and jobs", "GET", "/apis/batch/v1/jobs", "", only("observe", "enforce")},
		{"read Secrets, or the NATS keys", "GET", system + "/secrets", "", only()},
		{"read Secrets, or the NATS keys", "GET", system + "/secrets/pitcrew-nats-keys", "", only()},
		{"cordon or taint a node", "PATCH", "/api/v1/nodes/" + node, `{"spec":{"unschedulable":true}}`, only("enforce")},
		{"change a node's labels, address or capacity", "PATCH", "/api/v1/nodes/" + node, `{"metadata":{"labels":{"pool":"mine"}}}`, only()},
		{"change a node's labels, address or capacity", "PATCH", "/api/v1/nodes/" + node + "/status", `{"status":{"capacity":{"nvidia.com/gpu":"99"}}}`, only()},
		{"change a node's labels, address or capacity", "PATCH", "/api/v1/nodes/" + node, `{"spec":{"taints":[{"key":"mine","effect":"NoSchedule"}]}}`, only()},
		{"lift the Job controller's finalizer", "PATCH", pods + "/" + pod, `{"metadata":{"annotations":{"pitcrew.dev/fast-replace":"inc-1"}}}`, only("enforce")},
		{"change what runs in a pod", "PATCH", pods + "/" + pod, `{"spec":{"containers":[{"name":"c","image":"evil"}]}}`, only()},
		{"change what runs in a pod", "PATCH", system + "/pods/victim", `{"spec":{"containers":[{"name":"c","image":"evil"}]}}`, only()},
		{"change what runs in a pod", "PATCH", pods + "/" + pod, `{"metadata":{"labels":{"app":"mine"}}}`, only()},
		{"evict or delete a pod", "DELETE", pods + "/" + pod, "", only("enforce")},
		{"evict or delete a pod", "POST", pods + "/" + pod + "/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"` + pod + `"}}`, only("enforce")},
		{"evict or delete a pod of the system's namespaces or of Pitcrew's", "DELETE", system + "/pods/victim", "", only()},
		{"create a pod, a Job or a DaemonSet", "POST", pods, podJSON, only()},
		{"create a pod, a Job or a DaemonSet", "POST", system + "/pods", podJSON, only()},
		{"create a pod, a Job or a DaemonSet", "POST", "/apis/batch/v1/namespaces/stolen/jobs", `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"x"},"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}`, only()},
		{"suspend or resume a Job", "PATCH", "/apis/batch/v1/namespaces/stolen/jobs/" + job, `{"spec":{"suspend":true}}`, only("enforce")},
		{"change anything else of a Job", "PATCH", "/apis/batch/v1/namespaces/stolen/jobs/" + job, `{"spec":{"parallelism":7}}`, only()},
		{"write a reservation", "POST", system + "/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"pitcrew-reservation-1"}}`, only("enforce")},
		{"write Pitcrew's policies", "PATCH", system + "/configmaps/pitcrew-policies", `{"data":{"a":"b"}}`, only()},
		{"write Pitcrew's policies", "DELETE", system + "/configmaps/pitcrew-policies", "", only()},
		{"change how the API server admits objects, or a role", "PATCH", "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/pitcrew-placement", `{"metadata":{"labels":{"a":"b"}}}`, only()},
		{"change how the API server admits objects, or a role", "PATCH", "/apis/rbac.authorization.k8s.io/v1/clusterroles/pitcrew-remediator-enforce", `{"metadata":{"labels":{"a":"b"}}}`, only()},
		{"make a token of another account", "POST", system + "/serviceaccounts/pitcrew-operator/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":["pitcrew-nats"]}}`, only()},
	}
}

const podJSON = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{"containers":[{"name":"c","image":"i"}]}}`

func TestAStolenTokenDoesWhatTheThreatModelSaysAndNothingMore(t *testing.T) {
	s, err := sandbox.Up(t.Context(), sandbox.Options{Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	if err := s.Apply(t.Context(), deploy.RBAC, deploy.AgentRBAC, deploy.NATSAccounts, deploy.RemediatorBounds, deploy.PlacementPolicy); err != nil {
		t.Fatal(err)
	}
	job := victims(t, s)
	pods, err := s.Client().CoreV1().Pods("stolen").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) == 0 {
		t.Fatalf("no victim, %v", err)
	}
	pod := pods.Items[0].Name
	list := attempts("a1", pod, job)
	model, err := os.ReadFile("../docs/threat-model.md")
	if err != nil {
		t.Fatal(err)
	}
	tries := func(who, account string) {
		cfg := tokenOf(t, s, account)
		for _, a := range list {
			code, said := try(t, cfg, a)
			switch {
			case a.allowed[who] && code >= 300:
				t.Errorf("%s: %s (%s %s) is refused: %d %s", who, a.row, a.verb, a.path, code, said)
			case !a.allowed[who] && !refused(code, said):
				t.Errorf("%s: %s (%s %s) is not refused: %d %s", who, a.row, a.verb, a.path, code, said)
			}
		}
	}
	tries("observe", "pitcrew-remediator")
	tries("agent", "pitcrew-agent")
	for _, account := range []string{"pitcrew-gateway", "pitcrew-operator", "pitcrew-reader"} {
		tries(strings.TrimPrefix(account, "pitcrew-"), account)
	}
	if err := s.Apply(t.Context(), deploy.RBACEnforce); err != nil {
		t.Fatal(err)
	}
	enforcer := tokenOf(t, s, "pitcrew-remediator")
	eventually(t, "the role that acts, and its bounds", func() error {
		if code, said := try(t, enforcer, list[5]); code != 200 {
			return fmt.Errorf("%d %s", code, said)
		}
		if code, said := try(t, enforcer, list[10]); !refused(code, said) {
			return fmt.Errorf("%d %s", code, said)
		}
		return nil
	})
	tries("enforce", "pitcrew-remediator")
	for _, a := range list { // the page and the test say the same
		cell := func(who ...string) string {
			for _, w := range who {
				if a.allowed[w] {
					return "yes"
				}
			}
			return "no"
		}
		row := fmt.Sprintf("| %s | %s | %s | %s | %s |", a.row, cell("observe"), cell("enforce"), cell("agent"), cell("gateway", "operator", "reader"))
		if !strings.Contains(string(model), row) {
			t.Errorf("docs/threat-model.md does not say: %s", row)
		}
	}
}

// refused reports that the API server forbids the request, by RBAC or by Pitcrew's bounds. A request that is merely malformed proves nothing,
// and an expression that cannot be evaluated is a bound that does not work.
func refused(code int, said string) bool {
	return code == 403 && !strings.Contains(said, "resulted in error")
}

// victims are what a thief would like to have: a job, a pod of Pitcrew's, its policies.
func victims(t *testing.T, s *sandbox.Sandbox) (job string) {
	t.Helper()
	for _, ns := range []string{"stolen"} {
		if err := s.CreateNamespace(t.Context(), ns, nil); err != nil {
			t.Fatal(err)
		}
	}
	spec := corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "none", Command: []string{"/bin/sleep", "600"}}}}
	made, err := s.Client().BatchV1().Jobs("stolen").Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: spec}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec.ServiceAccountName = "pitcrew-agent"
	spec.NodeSelector = map[string]string{"pitcrew.dev/none": ""}
	if _, err := s.Client().CoreV1().Pods("pitcrew-system").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "victim"}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client().CoreV1().ConfigMaps("pitcrew-system").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "pitcrew-policies"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the job's pod", func() error {
		pods, err := s.Client().CoreV1().Pods("stolen").List(t.Context(), metav1.ListOptions{})
		if err == nil && (len(pods.Items) == 0 || pods.Items[0].Status.Phase != corev1.PodRunning) {
			err = fmt.Errorf("%d pods", len(pods.Items))
		}
		return err
	})
	return made.Name
}

// tokenOf is a configuration with an account's token and nothing else.
func tokenOf(t *testing.T, s *sandbox.Sandbox, account string) *rest.Config {
	t.Helper()
	made, err := s.Client().CoreV1().ServiceAccounts("pitcrew-system").CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(s.Config())
	cfg.BearerToken, cfg.QPS = made.Status.Token, -1
	return cfg
}

func try(t *testing.T, cfg *rest.Config, a attempt) (code int, said string) {
	t.Helper()
	plain := rest.CopyConfig(cfg)
	plain.ContentConfig = rest.ContentConfig{GroupVersion: &corev1.SchemeGroupVersion, NegotiatedSerializer: scheme.Codecs.WithoutConversion()}
	client, err := rest.UnversionedRESTClientFor(plain)
	if err != nil {
		t.Fatal(err)
	}
	r := client.Verb(a.verb).AbsPath(a.path).Param("dryRun", "All")
	if a.verb == "GET" {
		r = client.Verb(a.verb).AbsPath(a.path)
	}
	switch a.verb {
	case "PATCH":
		r.SetHeader("Content-Type", "application/strategic-merge-patch+json").Body([]byte(a.body))
	case "POST":
		r.SetHeader("Content-Type", "application/json").Body([]byte(a.body))
	}
	answer := r.Do(context.WithoutCancel(t.Context()))
	answer.StatusCode(&code)
	if err := answer.Error(); err != nil {
		said = err.Error()
	}
	return code, said
}
