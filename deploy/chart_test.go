package deploy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew/pitcrew/deploy"
	"github.com/pitcrew/pitcrew/deploy/policies"
	"github.com/pitcrew/pitcrew/docs/runbooks"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/page"
	"github.com/pitcrew/pitcrew/remediator/policy"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

const (
	chart     = "chart/pitcrew"
	namespace = "pitcrew-system"
)

var helmPath = sync.OnceValues(func() (string, error) { return sandbox.Helm(context.Background(), os.Stderr) })

// helm runs the pinned helm and gives what it said on its two channels.
func helm(t testing.TB, args ...string) (out, said string, err error) {
	t.Helper()
	path, err := helmPath()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	home := t.TempDir() // nothing of the user's plugins, repositories and caches
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return o.String(), e.String(), err
}

// objects renders the chart with values that are laid over the defaults, hooks included.
func objects(t testing.TB, values map[string]any, more ...string) []*unstructured.Unstructured {
	t.Helper()
	out, said, err := helm(t, append([]string{"template", "pitcrew", chart, "-n", namespace, "-f", valuesFile(t, values)}, more...)...)
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, said)
	}
	return parse(t, out)
}

func valuesFile(t testing.TB, values map[string]any) string {
	t.Helper()
	raw, err := yaml.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func parse(t testing.TB, text string) (all []*unstructured.Unstructured) {
	t.Helper()
	for doc := range strings.SplitSeq("\n"+text, "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(doc+"\n"), &o.Object); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if len(o.Object) > 0 {
			all = append(all, o)
		}
	}
	return all
}

func find(all []*unstructured.Unstructured, kind, name string) *unstructured.Unstructured {
	i := slices.IndexFunc(all, func(o *unstructured.Unstructured) bool { return o.GetKind() == kind && o.GetName() == name })
	if i < 0 {
		return nil
	}
	return all[i]
}

// valueSets are ways in which the chart is used; between them they take every branch of its templates.
var valueSets = map[string]map[string]any{
	"as it stands": {},
	"NATS of one's own, with credentials": {"nats": map[string]any{"url": "nats://nats.nats.svc:4222",
		"credentials": map[string]any{"agent": "creds-agent", "gateway": "creds-gateway", "remediator": "creds-remediator"}}},
	"NATS asks who connects":              {"nats": map[string]any{"keysSecret": "pitcrew-nats-keys"}},
	"NATS of one's own asks who connects": {"nats": map[string]any{"keysSecret": "keys", "url": "nats://nats:4222"}, "agent": map[string]any{"nameJobs": false}},
	"several gateways, with rules": {"gateway": map[string]any{"replicas": 3, "rules": true, "priorityClassName": "system-cluster-critical",
		"nodeSelector": map[string]any{"pool": "cpu"}, "tolerations": []any{map[string]any{"key": "cpu", "operator": "Exists"}}}},
	"without persistence, a library of the host's": {"gateway": map[string]any{"persistence": map[string]any{"enabled": false}},
		"bus":   map[string]any{"persistence": map[string]any{"enabled": false}, "syncAlways": true},
		"dcgm":  map[string]any{"libraryHostPath": "/usr/lib/x86_64-linux-gnu/libdcgm.so.4", "expectedGPUs": 8, "address": "$(HOST_IP):5555"},
		"agent": map[string]any{"socketHostPath": "/run/pitcrew", "families": "dcgm", "env": map[string]any{"PITCREW_LOG_LEVEL": "debug"}}},
	"agents alone, unprivileged": {"agent": map[string]any{"privileged": false, "nameJobs": false}, "dcgm": map[string]any{"enabled": false},
		"gateway": map[string]any{"enabled": false}, "remediator": map[string]any{"enabled": false}, "networkPolicy": false,
		"node": map[string]any{"tolerations": []any{}, "runtimeClassName": "nvidia", "maxUnavailable": 3}, "bus": map[string]any{"enabled": false},
		"nats": map[string]any{"url": "tls://nats:4222"}},
	"enforcing, with names of all sorts": {"image": map[string]any{"repository": "registry.example/pitcrew", "digest": "sha256:" + strings.Repeat("0a", 32)},
		"imagePullSecrets": []any{"registry"}, "policies": map[string]any{"mode": "enforce", "extra": map[string]any{"mine.yaml": ownPolicy}}, "placementPolicy": true,
		"remediator": map[string]any{"alertmanagers": []any{"http://a:9093", "http://b:9093"}, "webhooks": []any{"https://x/y"}, "channelsSecret": "pitcrew-channels", "canary": "30s", "otlp": "tempo:4317"},
		"uninstall":  map[string]any{"keepCordons": true}, "bus": map[string]any{"persistence": map[string]any{"whenDeleted": "Retain", "storageClassName": "fast"}}},
	"enforcing below Kubernetes 1.36":  {"policies": map[string]any{"mode": "approve"}, "placementPolicy": false},
	"with dashboards":                  {"monitoring": map[string]any{"dashboards": map[string]any{"kind": "configMap"}}},
	"a page with actions":              {"page": map[string]any{"actions": true, "url": "https://pitcrew.example.com/"}},
	"a page with a given access file":  {"page": map[string]any{"accessSecret": "access"}, "runbooks": map[string]any{"baseURL": "https://wiki.example.com/runbooks"}},
	"no page":                          {"page": map[string]any{"enabled": false}},
	"a webhook with a given authority": {"remediator": map[string]any{"rights": "enforce"}, "webhook": map[string]any{"enabled": true, "caSecret": "steer-ca", "caBundle": "LS0t"}},
}

const ownPolicy = `apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
metadata: {name: mine}
spec:
  mode: observe
  order: 7
  rules:
  - name: all
    when: {signal: gpu/lost}
    steps: [{do: notify}]
`

func TestTheChartsRightsAndPlacementPolicyAreThoseThatAreAppliedByHand(t *testing.T) {
	all := objects(t, map[string]any{"placementPolicy": true, "policies": map[string]any{"mode": "enforce"}})
	for file, manifest := range map[string][]byte{"rbac.yaml": deploy.RBAC, "rbac-enforce.yaml": deploy.RBACEnforce, "remediator-bounds.yaml": deploy.RemediatorBounds, "agent-rbac.yaml": deploy.AgentRBAC, "nats-accounts.yaml": deploy.NATSAccounts, "placement-policy.yaml": deploy.PlacementPolicy} {
		for _, want := range parse(t, string(manifest)) {
			if want.GetKind() == "Namespace" {
				continue // helm's to make
			}
			got := slices.IndexFunc(all, func(o *unstructured.Unstructured) bool {
				return o.GetKind() == want.GetKind() && o.GetName() == want.GetName() && o.GetNamespace() == want.GetNamespace()
			})
			if got < 0 {
				t.Errorf("%s: the chart has no %s %s", file, want.GetKind(), want.GetName())
			} else if a, b := asJSON(t, want), asJSON(t, all[got]); a != b {
				t.Errorf("%s: %s %s differs:\n%s\n%s", file, want.GetKind(), want.GetName(), a, b)
			}
		}
	}
	roles := 0
	for _, o := range all {
		if strings.Contains(o.GetKind(), "Role") && o.GetAnnotations()["helm.sh/hook"] == "" {
			roles++
		}
	}
	if roles != 12 {
		t.Errorf("%d roles and bindings; those of rbac.yaml, rbac-enforce.yaml and agent-rbac.yaml are 12: does the chart give rights of its own?", roles)
	}
	moved, said, err := helm(t, "template", "pitcrew", chart, "-n", "elsewhere", "--set", "placementPolicy=true,policies.mode=enforce,webhook.enabled=true")
	if err != nil || strings.Contains(moved, namespace) {
		t.Errorf("in another namespace %s is still named (%v, %s)", namespace, err, said)
	}
}

// Which role the remediator's account gets, and who steers, follow from what the policies may do and what the API server has.
func TestTheAccountMayActOnlyWhereAPolicyMay(t *testing.T) {
	acting := strings.Replace(ownPolicy, "mode: observe", "mode: \"enforce\"", 1)
	const policyAPI = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
	for name, test := range map[string]struct {
		values                    map[string]any
		more                      []string
		enforces, policy, webhook bool
	}{
		"as it stands, on 1.36":        {more: []string{"--api-versions", policyAPI}, policy: true},
		"as it stands, below":          {},
		"enforcing, on 1.36":           {map[string]any{"policies": map[string]any{"mode": "enforce"}}, []string{"--api-versions", policyAPI}, true, true, false},
		"approving, below":             {map[string]any{"policies": map[string]any{"mode": "approve"}}, nil, true, false, true},
		"enforcing, below 1.30":        {map[string]any{"policies": map[string]any{"mode": "enforce"}}, []string{"--kube-version", "1.29.4"}, true, false, false},
		"one policy of one's own acts": {map[string]any{"policies": map[string]any{"extra": map[string]any{"mine.yaml": acting}}}, nil, true, false, true},
		"one of one's own observes":    {values: map[string]any{"policies": map[string]any{"extra": map[string]any{"mine.yaml": ownPolicy}}}},
		"rights withheld":              {values: map[string]any{"policies": map[string]any{"mode": "enforce"}, "remediator": map[string]any{"rights": "observe"}}},
	} {
		all := objects(t, test.values, test.more...)
		for what, want := range map[[2]string]bool{
			{"ClusterRoleBinding", "pitcrew-remediator-enforce"}: test.enforces, {"RoleBinding", "pitcrew-remediator-enforce"}: test.enforces,
			{"MutatingAdmissionPolicy", "pitcrew-placement"}: test.policy, {"MutatingWebhookConfiguration", "pitcrew-placement"}: test.webhook,
			{"Service", "pitcrew-webhook"}: test.webhook, {"Secret", "pitcrew-webhook-ca"}: test.webhook,
		} {
			if got := find(all, what[0], what[1]) != nil; got != want {
				t.Errorf("%s: %s %s is there: %v, want %v", name, what[0], what[1], got, want)
			}
		}
	}
}

// The chart's webhook is the shipped one, and believes the authority that it mounts.
func TestTheChartsWebhookIsTheShippedOneWithTheAuthorityOfItsSecret(t *testing.T) {
	all := objects(t, valueSets["enforcing below Kubernetes 1.36"])
	got := find(all, "MutatingWebhookConfiguration", "pitcrew-placement")
	ca, _, _ := unstructured.NestedString(find(all, "Secret", "pitcrew-webhook-ca").Object, "data", "ca.crt")
	hooks, _, _ := unstructured.NestedSlice(got.Object, "webhooks")
	for _, h := range hooks {
		client := h.(map[string]any)["clientConfig"].(map[string]any)
		if ca == "" || client["caBundle"] != ca {
			t.Errorf("caBundle %q, the Secret's ca.crt is %q", client["caBundle"], ca)
		}
		delete(client, "caBundle")
	}
	_ = unstructured.SetNestedSlice(got.Object, hooks, "webhooks")
	if want := parse(t, string(deploy.PlacementWebhook))[0]; asJSON(t, got) != asJSON(t, want) {
		t.Errorf("it differs from deploy/placement-webhook.yaml:\n%s\n%s", asJSON(t, want), asJSON(t, got))
	}
}

func asJSON(t testing.TB, o any) string {
	t.Helper()
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestTheChartsPoliciesAreTheShippedOnesAndObserve(t *testing.T) {
	data := func(values map[string]any) map[string]string {
		m := find(objects(t, values), "ConfigMap", "pitcrew-policies")
		got, _, err := unstructured.NestedStringMap(m.Object, "data")
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	shipped := map[string]string{}
	entries, err := fs.ReadDir(policies.Files, ".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		raw, err := fs.ReadFile(policies.Files, e.Name())
		if err != nil {
			t.Fatal(err)
		}
		shipped[e.Name()] = string(raw)
	}
	if got := data(nil); asJSON(t, got) != asJSON(t, shipped) {
		t.Errorf("the chart's policies are not deploy/policies:\n%s", asJSON(t, got))
	}
	// Who let certain faults act before the chart had policies that act on statistics has not said yes to those.
	for name, c := range map[string]struct{ mode, findings, certain, statistical string }{
		"values of a chart without findingsMode": {"enforce", "", "enforce", "observe"},
		"both":                                   {"enforce", "enforce", "enforce", "enforce"},
		"a person is asked about statistics":     {"enforce", "approve", "enforce", "approve"},
		"statistics never act alone":             {"observe", "enforce", "observe", "observe"},
		"nor before certain faults":              {"approve", "enforce", "approve", "approve"},
		"everything is off":                      {"off", "enforce", "off", "off"},
		"statistics are off":                     {"enforce", "off", "enforce", "off"},
	} {
		dir := t.TempDir()
		values := map[string]any{"mode": c.mode, "findingsMode": nil, "extra": map[string]any{"mine.yaml": ownPolicy}}
		if c.findings != "" {
			values["findingsMode"] = c.findings
		}
		for file, text := range data(map[string]any{"policies": values}) {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		loaded, err := policy.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(loaded) != len(shipped)+1 {
			t.Errorf("%s: %d policies, %d shipped and one own were expected", name, len(loaded), len(shipped))
		}
		for _, p := range loaded {
			want := c.certain
			switch {
			case p.Metadata.Name == "mine":
				want = "observe"
			case slices.ContainsFunc(p.Spec.Rules, func(r policy.Rule) bool { return r.Worth != nil }): // what a restart is weighed against
				want = c.statistical
			}
			if string(p.Spec.Mode) != want {
				t.Errorf("%s: policy %s: mode %s, want %s", name, p.Metadata.Name, p.Spec.Mode, want)
			}
		}
	}
}

func TestTheChartsAlertsAreTheCatalogue(t *testing.T) {
	raw, err := os.ReadFile("../rules/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := parse(t, string(raw))[0]
	all := objects(t, map[string]any{"gateway": map[string]any{"rules": true}, "monitoring": map[string]any{"rules": true, "podMonitor": true, "labels": map[string]any{"release": "prom"}}})
	rule := find(all, "PrometheusRule", "pitcrew")
	if asJSON(t, rule.Object["spec"]) != asJSON(t, want) {
		t.Error("the PrometheusRule is not rules/alerts.yaml")
	}
	areas, err := filepath.Glob("../rules/prometheus/*.yaml")
	if err != nil || len(areas) < 10 {
		t.Fatalf("rule files by area: %v, %v", areas, err)
	}
	for _, path := range areas {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name := "pitcrew-" + strings.TrimSuffix(filepath.Base(path), ".yaml")
		got := find(all, "PrometheusRule", name)
		if asJSON(t, got.Object["spec"]) != asJSON(t, parse(t, string(raw))[0]) || got.GetLabels()["release"] != "prom" {
			t.Errorf("the PrometheusRule %s is not %s with the labels of the values", name, path)
		}
	}
	text, _, _ := unstructured.NestedString(find(all, "ConfigMap", "pitcrew-rules").Object, "data", "alerts.yaml")
	if text != string(raw) {
		t.Error("the gateway's rules are not rules/alerts.yaml")
	}
	if find(all, "PodMonitor", "pitcrew").GetLabels()["release"] != "prom" || rule.GetLabels()["release"] != "prom" {
		t.Error("the labels by which a Prometheus selects are missing")
	}
}

// The page's access file is one that the page takes, and only page.actions makes an operator and lets one act.
func TestThePageOfTheChartReadsOnlyUntilItIsToldOtherwise(t *testing.T) {
	for actions, want := range map[bool][]page.Role{false: {page.Reader}, true: {page.Operator, page.Reader}} {
		all := objects(t, map[string]any{"page": map[string]any{"actions": actions}})
		text, _, _ := unstructured.NestedString(find(all, "Secret", "pitcrew-page").Object, "stringData", "access.yaml")
		access, err := page.ParseAccess([]byte(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		var roles []page.Role
		for _, a := range access.Tokens {
			roles = append(roles, a.Role)
		}
		if !slices.Equal(roles, want) {
			t.Errorf("actions %t: tokens of %v", actions, roles)
		}
		out := asJSON(t, find(all, "Deployment", "pitcrew-remediator"))
		if acts := strings.Contains(out, `{"name":"PITCREW_PAGE_ACTIONS","value":"true"}`); acts != actions {
			t.Errorf("actions %t: the remediator is told %t", actions, acts)
		}
	}
}

// Alerts and notices lead to the same runbooks, wherever those are.
func TestAlertsAndNoticesLeadToTheRunbooksThatTheValuesName(t *testing.T) {
	for base, values := range map[string]map[string]any{
		runbooks.DefaultBase:                    {},
		"https://pitcrew.example.com/runbooks/": {"page": map[string]any{"url": "https://pitcrew.example.com/"}},
		"https://wiki.example.com/rb/":          {"page": map[string]any{"url": "https://pitcrew.example.com"}, "runbooks": map[string]any{"baseURL": "https://wiki.example.com/rb"}},
	} {
		values["monitoring"] = map[string]any{"rules": true}
		all := objects(t, values)
		urls := 0
		for _, o := range all {
			for _, part := range strings.Split(asJSON(t, o), `"runbook_url":"`)[1:] {
				urls++
				if o.GetKind() == "PrometheusRule" && !strings.HasPrefix(part, base) {
					t.Fatalf("%s: an alert leads to %.80s", base, part)
				}
			}
		}
		told := strings.Contains(asJSON(t, find(all, "Deployment", "pitcrew-remediator")), `{"name":"PITCREW_RUNBOOKS_BASE_URL","value":"`+base+`"}`)
		if urls < 100 || told == (base == runbooks.DefaultBase) {
			t.Errorf("%s: %d alerts, the remediator is told: %t", base, urls, told)
		}
	}
}

// A packaged chart holds what its links lead to.
func TestAPackagedChartRendersAsTheFolderDoes(t *testing.T) {
	dir := t.TempDir()
	if _, said, err := helm(t, "package", chart, "-d", dir); err != nil {
		t.Fatal(said)
	}
	tgz, _ := filepath.Glob(filepath.Join(dir, "*.tgz"))
	fixed := "page.accessSecret=access" // or the chart makes other tokens each time
	packed, said, err := helm(t, "template", "pitcrew", tgz[0], "-n", namespace, "--set", fixed)
	if err != nil {
		t.Fatal(said)
	}
	loose, _, _ := helm(t, "template", "pitcrew", chart, "-n", namespace, "--set", fixed)
	if packed != loose {
		t.Error("the packaged chart renders otherwise")
	}
}

func TestNonsensicalValuesAreRefusedByName(t *testing.T) {
	for set, want := range map[string]string{
		"gateway.replicas=0":                      "/gateway/replicas",
		"policies.mode=enforced":                  "'off', 'observe', 'approve', 'enforce'",
		"policies.findingsMode=on":                "/policies/findingsMode",
		"nats.url=localhost":                      "/nats/url",
		"agent.kubeletRoot=kubelet":               "/agent/kubeletRoot",
		"agent.kubeletRoot=/":                     "/agent/kubeletRoot",
		"node.maxUnavailable=0%":                  "/node/maxUnavailable",
		"agent.enviroment.X=1":                    "additional properties 'enviroment'",
		"agent.resources.limits.cpu=two":          "/agent/resources/limits/cpu",
		"remediator.replicas=100":                 "/remediator/replicas",
		"placementPolicy=perhaps":                 "/placementPolicy",
		"policies.extra.a=x":                      "invalid propertyName 'a'",
		"image.repository=UPPER":                  "/image/repository",
		"cluster=a b":                             "/cluster",
		"bus.enabled=false":                       "say where NATS is",
		"policies.shipped=false":                  "neither shipped nor extra",
		"remediator.rights=all":                   "/remediator/rights",
		"webhook.enabled=perhaps":                 "/webhook/enabled",
		"page.url=wiki":                           "/page/url",
		"runbooks.baseURL=javascript:x":           "/runbooks/baseURL",
		"webhook.enabled=true,webhook.caSecret=x": "give the ca.crt of webhook.caSecret",
	} {
		if _, said, err := helm(t, "template", "pitcrew", chart, "--set", set); err == nil || !strings.Contains(said, want) {
			t.Errorf("%s: want a refusal that names %s, got %v: %s", set, want, err, said)
		}
	}
}

func TestValuesShowAllThatTheSchemaKnows(t *testing.T) {
	raw, err := os.ReadFile(chart + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values, schema map[string]any
	if err := yaml.UnmarshalStrict(raw, &values); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(chart + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	// What the schema knows and values.yaml does not show, nobody would find.
	properties := schema["properties"].(map[string]any)
	var walk func(path string, schema, values map[string]any)
	walk = func(path string, schema, values map[string]any) {
		for name, s := range schema {
			v, shown := values[name]
			if !shown && path+name != "global" {
				t.Errorf("values.yaml does not show %s%s", path, name)
			}
			inner, _ := s.(map[string]any)["properties"].(map[string]any)
			if shownInner, ok := v.(map[string]any); ok && inner != nil {
				walk(path+name+".", inner, shownInner)
			}
		}
	}
	walk("", properties, values)
}

// The remediator compares what is installed with the file, word for word: a newline more, and it takes the policy for somebody else's.
func TestTheRemediatorRecognizesThePlacementPolicyThatTheChartInstalls(t *testing.T) {
	s := sandboxtest.Cluster(t)
	if err := s.CreateNamespace(t.Context(), "recognized", nil); err != nil {
		t.Fatal(err)
	}
	for _, o := range objects(t, map[string]any{"placementPolicy": true}, "-n", "recognized") {
		if strings.HasPrefix(o.GetKind(), "MutatingAdmissionPolicy") {
			if err := s.Apply(t.Context(), []byte(asJSON(t, o))); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { remove(t, s, o) })
		}
	}
	c, err := cluster.New(s.Config(), cluster.Options{Namespace: "recognized"})
	if err != nil {
		t.Fatal(err)
	}
	if how, err := c.DecideSteering(t.Context()); how != cluster.SteerPolicy || err != nil {
		t.Errorf("%s, %v", how, err)
	}
}

func remove(t *testing.T, s *sandbox.Sandbox, o *unstructured.Unstructured) {
	plural := map[string]string{"MutatingAdmissionPolicy": "mutatingadmissionpolicies", "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings"}[o.GetKind()]
	err := s.Client().Discovery().RESTClient().Delete().AbsPath("/apis", o.GetAPIVersion(), plural, o.GetName()).Do(context.Background()).Error()
	if err != nil {
		t.Error(err)
	}
}
