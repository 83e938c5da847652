package nodecmd

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// api is an API server of a few nodes, with merge patches and their preconditions.
type api struct {
	mu    sync.Mutex
	nodes map[string]map[string]any
	rev   int
	// before is called before a patch, once: what somebody else writes at that moment.
	before func(map[string]any)
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/api/v1/nodes"), "/")
	fail := func(code int, reason string) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Reason: metav1.StatusReason(reason)})
	}
	if name == "" {
		items := []any{}
		for _, n := range a.nodes {
			items = append(items, n)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "NodeList", "apiVersion": "v1", "items": items})
		return
	}
	n := a.nodes[name]
	if n == nil {
		fail(http.StatusNotFound, "NotFound")
		return
	}
	if r.Method == http.MethodPatch {
		if f := a.before; f != nil {
			a.before = nil
			f(n)
			a.bump(n)
		}
		raw, _ := io.ReadAll(r.Body)
		var patch map[string]any
		if json.Unmarshal(raw, &patch) != nil {
			fail(http.StatusBadRequest, "BadRequest")
			return
		}
		if patch["metadata"].(map[string]any)["resourceVersion"] != n["metadata"].(map[string]any)["resourceVersion"] {
			fail(http.StatusConflict, "Conflict")
			return
		}
		merge(n, patch)
		a.bump(n)
	}
	_ = json.NewEncoder(w).Encode(n)
}

func (a *api) bump(n map[string]any) {
	a.rev++
	n["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(a.rev)
}

func merge(into, patch map[string]any) {
	for k, v := range patch {
		sub, isMap := v.(map[string]any)
		switch have, had := into[k].(map[string]any); {
		case v == nil:
			delete(into, k)
		case isMap && had:
			merge(have, sub)
		default:
			into[k] = v
		}
	}
}

// add puts a node there that an incident has quarantined.
func (a *api) add(t *testing.T, name, incident string, foundCordoned bool) {
	t.Helper()
	n := corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-1", Annotations: map[string]string{"own": "kept"}}}
	n.Spec.Taints = []corev1.Taint{{Key: "other", Effect: corev1.TaintEffectNoSchedule}}
	n.Status.NodeInfo.BootID = "boot-2"
	if incident != "" {
		how := "made"
		if foundCordoned {
			how = "found"
		}
		n.Spec.Unschedulable = true
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: cluster.TaintQuarantine, Value: incident, Effect: corev1.TaintEffectNoSchedule})
		n.Annotations[cluster.AnnotationQuarantine], n.Annotations[cluster.AnnotationCordon] = incident, how
		n.Annotations[cluster.AnnotationSince] = "2026-11-22T03:00:00Z"
		n.Status.Conditions = []corev1.NodeCondition{{Type: cluster.ConditionHealthy, Status: corev1.ConditionFalse, Message: "xid/79 by " + incident}}
	}
	raw, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	a.bump(m)
	a.nodes[name] = m
}

func (a *api) node(t *testing.T, name string) (n corev1.Node) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	raw, err := json.Marshal(a.nodes[name])
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func newAPI(t *testing.T) (*api, func(stdin string, args ...string) (stdout, stderr string, err error)) {
	t.Helper()
	a := &api{nodes: map[string]map[string]any{}}
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	nodes, err := cluster.NodesAt(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return a, func(stdin string, args ...string) (string, string, error) {
		c := command(&options{nodes: nodes})
		var out, said bytes.Buffer
		c.SetOut(&out)
		c.SetErr(&said)
		c.SetIn(strings.NewReader(stdin))
		c.SilenceUsage, c.SilenceErrors = true, true
		if !strings.Contains(strings.Join(args, " "), "--nats") {
			args = append(args, "--nats", "nats://127.0.0.1:1", "--wait", "100ms")
		}
		c.SetArgs(args)
		err := c.ExecuteContext(t.Context())
		return out.String(), said.String(), err
	}
}

func TestUncordonShowsThePlanAndAsksAndRemovesExactlyWhatPitcrewWrote(t *testing.T) {
	a, say := newAPI(t)
	a.add(t, "n1", "inc-1", false)
	for _, no := range []string{"", "n\n", "no way\n"} {
		if _, _, err := say(no, "uncordon", "n1"); err == nil || !a.node(t, "n1").Spec.Unschedulable {
			t.Fatalf("the answer %q was taken for a yes (%v)", no, err)
		}
	}
	out, said, err := say("y\n", "uncordon", "n1", "--reason", "GPU swapped")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"incident inc-1 since 2026-11-22 03:00:00: xid/79 by inc-1", cluster.TaintQuarantine + "=inc-1", "make the node schedulable", "unknown"} {
		if !strings.Contains(said, want) {
			t.Errorf("the plan does not say %q:\n%s", want, said)
		}
	}
	n := a.node(t, "n1")
	if !strings.Contains(out, "takes pods again") || n.Spec.Unschedulable || len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != "other" || n.Annotations["own"] != "kept" {
		t.Errorf("%s: %+v %v", out, n.Spec, n.Annotations)
	}
	for key := range n.Annotations {
		if key != "own" && key != cluster.AnnotationUncordoned {
			t.Errorf("annotation %s stayed", key)
		}
	}
	var l cluster.Lift
	if err := json.Unmarshal([]byte(n.Annotations[cluster.AnnotationUncordoned]), &l); err != nil || l.Incident != "inc-1" || l.Reason != "GPU swapped" || l.At.IsZero() {
		t.Errorf("the leader is told %+v, %v", l, err)
	}
}

func TestUncordonLeavesACordonThatSomebodyElseMade(t *testing.T) {
	a, say := newAPI(t)
	a.add(t, "n1", "inc-1", true)
	out, said, err := say("", "uncordon", "n1", "--yes", "-o", "json")
	if err != nil || !a.node(t, "n1").Spec.Unschedulable || len(a.node(t, "n1").Spec.Taints) != 1 {
		t.Errorf("%v: %+v", err, a.node(t, "n1").Spec)
	}
	var got map[string]any
	if json.Unmarshal([]byte(out), &got) != nil || got["stays_cordoned"] != true || got["incident"] != "inc-1" || !strings.Contains(said, "leave the node cordoned") {
		t.Errorf("%s\n%s", out, said)
	}
}

func TestUncordonRefusesWhatItIsNotAskedFor(t *testing.T) {
	a, say := newAPI(t)
	a.add(t, "n1", "", false)
	a.add(t, "n2", "inc-1", false)
	if _, _, err := say("", "uncordon", "n1", "--yes"); err == nil || !strings.Contains(err.Error(), "pitcrew node list") {
		t.Errorf("a node without a quarantine: %v", err)
	}
	if _, _, err := say("", "uncordon", "gone", "--yes"); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("a node that is not there: %v", err)
	}
	a.before = func(n map[string]any) { // another incident quarantines it between the plan and the patch
		n["spec"].(map[string]any)["taints"] = []any{map[string]any{"key": cluster.TaintQuarantine, "value": "inc-2", "effect": "NoSchedule"}}
	}
	if _, _, err := say("", "uncordon", "n2", "--yes"); err == nil || !strings.Contains(err.Error(), "inc-2") || !a.node(t, "n2").Spec.Unschedulable {
		t.Errorf("another incident's quarantine: %v", err)
	}
}

func TestAWriteOfSomebodyElseInBetweenIsNoReasonToFail(t *testing.T) {
	a, say := newAPI(t)
	a.add(t, "n1", "inc-1", false)
	a.before = func(n map[string]any) { n["metadata"].(map[string]any)["labels"] = map[string]any{"new": "1"} }
	if _, _, err := say("", "uncordon", "n1", "--yes"); err != nil || a.node(t, "n1").Spec.Unschedulable || a.node(t, "n1").Labels["new"] != "1" {
		t.Errorf("%v: %+v", err, a.node(t, "n1"))
	}
}

func TestTheListNamesEachQuarantineWithWhatIsStillActive(t *testing.T) {
	a, say := newAPI(t)
	if out, _, err := say("", "list"); err != nil || out != "No node is quarantined by Pitcrew.\n" {
		t.Errorf("%q, %v", out, err)
	}
	if out, _, err := say("", "list", "-o", "json"); err != nil || strings.TrimSpace(out) != "[]" {
		t.Errorf("%q, %v", out, err)
	}
	a.add(t, "n1", "inc-1", false)
	a.add(t, "n2", "", false)
	out, said, err := say("", "list")
	if err != nil || !strings.Contains(out, "n1") || strings.Contains(out, "n2") || !strings.Contains(out, "unknown") || !strings.Contains(said, "unknown:") {
		t.Errorf("without NATS: %v\n%s%s", err, out, said)
	}
	s := bustest.Server(t)
	b := bustest.Connect(t, s.URL())
	for key, of := range map[string]struct {
		active bool
		boot   string
	}{"gpu/lost gpu/GPU-1": {true, "boot-2"}, "gpu/ecc gpu/GPU-1": {false, "boot-2"}, "gpu/pcie gpu/GPU-1": {true, "boot-1"}} {
		e := event.Event{ID: key, Type: event.Fault, Time: time.Now(), Source: event.Source("c", "n1", "agent"), Data: event.Data{Target: event.Target{Cluster: "c", Node: "n1"}, Severity: event.Fatal, Cause: event.Cause{Kind: "gpu", Name: "lost"}}}
		if err := b.SetCondition(t.Context(), bus.Condition{Node: "n1", Key: key, Active: of.active, Since: time.Now(), BootID: of.boot, Event: &e}); err != nil {
			t.Fatal(err)
		}
	}
	out, said, err = say("", "list", "-o", "json", "--nats", s.URL(), "--cluster", "c")
	var got []Quarantined
	if err != nil || json.Unmarshal([]byte(out), &got) != nil || len(got) != 1 || !got[0].Known || strings.Join(got[0].Active, ",") != "gpu/lost gpu/GPU-1 (fatal)" {
		t.Errorf("with NATS: %v\n%s%s", err, out, said)
	}
}
