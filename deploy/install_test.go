package deploy_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/demo"
	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

func TestAnInstalledChartObservesAFaultStaysOnTheNodeAndLeavesNothingBehind(t *testing.T) {
	i, values := install(t, sandboxtest.Cluster(t), nil)
	s := i.s
	broken := sleepers(t, s)
	n, err := s.Node(broken)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the metrics of dcgm-exporter on the pod's address", func() error {
		body, err := fetch("http://" + net.JoinHostPort(n.IP, "9400") + "/metrics")
		if err == nil && !strings.Contains(body, `DCGM_FI_DEV_GPU_TEMP{`) {
			err = fmt.Errorf("no temperature among %d bytes", len(body))
		}
		return err
	})
	was := stateOf(t, s)
	if _, err := s.Fault(t.Context(), sandbox.Fault{Kind: sandbox.XID79, Node: broken, GPU: 3}); err != nil {
		t.Fatal(err)
	}
	if _, err := i.incidents(); err == nil {
		t.Error("NATS lets in who shows no token")
	}
	i.read()
	var saw string
	eventually(t, "the incident", func() error {
		list, err := i.incidents()
		if err != nil {
			return err
		}
		raw, _ := json.Marshal(list)
		if saw = string(raw); !strings.Contains(saw, broken) || !strings.Contains(saw, `"observe`) {
			return fmt.Errorf("incidents %s", saw)
		}
		return nil
	})
	node, err := s.Client().CoreV1().Nodes().Get(t.Context(), broken, metav1.GetOptions{})
	if err != nil || node.Spec.Unschedulable || len(node.Spec.Taints) > 0 {
		t.Errorf("as installed it only observes, and yet: %+v, %v", node.Spec, err)
	}
	unchanged(t, was, stateOf(t, s))
	for _, w := range writesOf(t, s, "pitcrew-remediator") {
		t.Errorf("under observe the remediator's account sent %s", w)
	}

	// As a remediator would leave it that acts and then is taken away.
	quarantine := `{"metadata":{"annotations":{"pitcrew.dev/quarantined-by":"inc-1","pitcrew.dev/cordon":"made"}},"spec":{"unschedulable":true,"taints":[{"key":"pitcrew.dev/quarantine","value":"inc-1","effect":"NoSchedule"}]}}`
	if _, err := s.Client().CoreV1().Nodes().Patch(t.Context(), broken, types.MergePatchType, []byte(quarantine), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	old := i.on(broken)
	if err := s.Client().CoreV1().Pods(namespace).Delete(t.Context(), old.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "an agent on the quarantined node", func() error {
		if p := i.on(broken); p.UID == old.UID || p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("%s is %s", p.Name, p.Status.Phase)
		}
		return nil
	})

	// Whoever leads gives up at once when it is told to end, so that the hook has nobody to wait for; that it waits is cluster's test.
	scale := []byte(`{"spec":{"replicas":0}}`)
	if _, err := s.Client().AppsV1().Deployments(namespace).Patch(t.Context(), "pitcrew-remediator", types.MergePatchType, scale, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the remediators' end", func() error {
		if left := len(i.pods("app.kubernetes.io/component=remediator")); left > 0 {
			return fmt.Errorf("%d left", left)
		}
		return nil
	})
	if out, said, err := helm(t, "uninstall", "pitcrew", "-n", namespace, "--wait"); err != nil {
		t.Fatal(out, said)
	}
	node, err = s.Client().CoreV1().Nodes().Get(t.Context(), broken, metav1.GetOptions{})
	if err != nil || node.Spec.Unschedulable || strings.Contains(asJSON(t, node.Spec.Taints)+asJSON(t, node.Annotations)+asJSON(t, node.Status.Conditions), "itcrew") {
		t.Errorf("left on the node: %+v %v, %v", node.Spec, node.Annotations, err)
	}
	for _, o := range objects(t, values, "--api-versions", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy") {
		if left := remains(t, s, o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName()); left {
			t.Errorf("%s %s is left", o.GetKind(), o.GetName())
		}
	}
}

func TestAnInstalledChartThatEnforcesHealsAJob(t *testing.T) {
	own, err := sandbox.Up(t.Context(), sandbox.Options{Progress: os.Stderr}) // what the other install's fault left on the nodes is not this one's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = own.Stop() })
	i, _ := install(t, own, map[string]any{"policies": map[string]any{"mode": "enforce"}, "bus": map[string]any{"syncAlways": true}})
	i.read()
	py, err := sandbox.FindPython(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if err := i.s.CreateNamespace(t.Context(), "train", map[string]string{"pitcrew.dev/heal": "true"}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	job, err := i.s.Job(sandbox.Workload{Name: "llm", Namespace: "train", Launcher: "pitcrew", Pods: 2, Python: py,
		Env: map[string]string{"PITCREW_TRAIN_LOG": dir, "CKPT_DIR": "/checkpoints", "CKPT_EVERY": "20", "STEP_SECONDS": "0.05"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.s.Client().BatchV1().Jobs("train").Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	stepped := func(rank, from, to int64) func() error {
		return func() error {
			log, err := demo.ReadLog(dir, int(rank))
			if err == nil && (int64(len(log)) < from+1 || log[len(log)-1].Step < to) {
				err = fmt.Errorf("rank %d: %d lines", rank, len(log))
			}
			return err
		}
	}
	eventually(t, "30 steps", stepped(1, 0, 30))
	hurt, err := i.s.Fault(t.Context(), sandbox.Fault{Kind: sandbox.XID79, Rank: 1})
	if err != nil {
		t.Fatal(err)
	}
	log, err := demo.ReadLog(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a closed incident", func() error {
		list, err := i.incidents()
		if raw := asJSON(t, list); err == nil && !strings.Contains(raw, `"recovered"`) {
			err = fmt.Errorf("incidents %s", raw)
		}
		return err
	})
	eventually(t, "steps after it", stepped(1, int64(len(log))+10, 0))
	node, err := i.s.Client().CoreV1().Nodes().Get(t.Context(), hurt.Node, metav1.GetOptions{})
	if err != nil || !node.Spec.Unschedulable {
		t.Errorf("%s is not cordoned: %v", hurt.Node, err)
	}
	if p := i.on(hurt.Node); p.Status.Phase != corev1.PodRunning {
		t.Errorf("the agent left the quarantined node: %s", p.Status.Phase)
	}
	if out, said, err := helm(t, "uninstall", "pitcrew", "-n", namespace, "--wait"); err != nil {
		t.Fatal(out, said)
	}
	node, err = i.s.Client().CoreV1().Nodes().Get(t.Context(), hurt.Node, metav1.GetOptions{})
	if err != nil || node.Spec.Unschedulable || strings.Contains(asJSON(t, node), "itcrew.dev/") {
		t.Errorf("left on the node: %s, %v", asJSON(t, node), err)
	}
}
