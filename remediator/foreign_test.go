package remediator_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

// says writes a condition on a node, as node-problem-detector does.
func says(t *testing.T, s *sandbox.Sandbox, node, kind string, status corev1.ConditionStatus) {
	t.Helper()
	now := metav1.Now()
	raw, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{
		{Type: corev1.NodeConditionType(kind), Status: status, Reason: "Theirs", Message: "said by somebody else", LastTransitionTime: now, LastHeartbeatTime: now}}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client().CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, raw, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

// quarantined waits until the node is, or for how long it must not be.
func quarantined(t *testing.T, s *sandbox.Sandbox, node string, within time.Duration) bool {
	t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		n, err := s.Client().CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "pitcrew.dev/quarantine" }) {
			return true
		}
	}
	return false
}

func TestANodeConditionOfSomebodyElseBecomesAnIncidentUnderAPolicy(t *testing.T) {
	s := sandboxtest.Cluster(t)
	var names []string
	for k := range 4 {
		names = append(names, fmt.Sprintf("said-%d-%d", k, time.Now().UnixNano()%1e6))
	}
	bare(t, s, names)
	standing, fresh, other, warned := names[0], names[1], names[2], names[3]
	says(t, s, standing, "GPUMissing", corev1.ConditionTrue) // before anybody leads
	policy := strings.Replace(latencyPolicy, "when: {signal: xid/79}", "when: {signal: [k8s/GPUMissing, k8s/KernelOops]}", 1)
	leading(t, s, &times{at: map[string]time.Time{}}, policy)
	if !quarantined(t, s, standing, 20*time.Second) {
		t.Error("a condition that stood when the leader came was not acted on")
	}
	says(t, s, other, "SomethingElse", corev1.ConditionTrue) // no rule names it
	says(t, s, fresh, "GPUMissing", corev1.ConditionFalse)
	says(t, s, fresh, "GPUMissing", corev1.ConditionTrue)
	if !quarantined(t, s, fresh, 20*time.Second) {
		t.Error("a condition that began was not acted on")
	}
	now := metav1.Now()
	if _, err := s.Client().CoreV1().Events("default").Create(t.Context(), &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: "oops-", Namespace: "default"},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: warned, UID: types.UID(warned)}, Type: corev1.EventTypeWarning,
		Reason: "KernelOops", Message: "BUG: unable to handle kernel NULL pointer dereference", Source: corev1.EventSource{Component: "kernel-monitor", Host: warned},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if !quarantined(t, s, warned, 20*time.Second) {
		t.Error("an Event about a node was not acted on")
	}
	if quarantined(t, s, other, 200*time.Millisecond) {
		t.Error("a node was quarantined for a condition that no rule names")
	}
}
