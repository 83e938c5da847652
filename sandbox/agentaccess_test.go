package sandbox_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/collector/apiserver"
	"github.com/pitcrew/pitcrew/collector/podresources"
	"github.com/pitcrew/pitcrew/deploy"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

// agentAccount installs deploy/agent-rbac.yaml and gives the agent's token and the cluster's certificate, as files.
func agentAccount(t *testing.T, s *sandbox.Sandbox) (token, ca string) {
	t.Helper()
	dyn, err := dynamic.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.CreateNamespace(t.Context(), "pitcrew-system", nil); err != nil && !strings.Contains(err.Error(), "already exists") {
		t.Fatal(err)
	}
	for doc := range strings.SplitSeq(string(deploy.AgentRBAC), "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
			t.Fatal(err)
		}
		gv, _ := schema.ParseGroupVersion(o.GetAPIVersion())
		r := gv.WithResource(strings.ToLower(o.GetKind()) + "s")
		var client dynamic.ResourceInterface = dyn.Resource(r)
		if o.GetNamespace() != "" {
			client = dyn.Resource(r).Namespace(o.GetNamespace())
		}
		if _, err := client.Apply(t.Context(), o.GetName(), o, metav1.ApplyOptions{FieldManager: "test", Force: true}); err != nil {
			t.Fatalf("%s: %v", o.GetKind(), err)
		}
	}
	made, err := s.Client().CoreV1().ServiceAccounts("pitcrew-system").CreateToken(t.Context(), "pitcrew-agent", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	token, ca = filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	for file, content := range map[string][]byte{token: []byte(made.Status.Token), ca: s.Config().CAData} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return token, ca
}

func TestAnAgentLearnsWhoseJobAPodIsAndWhichGPUAClaimMeansWithItsOwnRightsAlone(t *testing.T) {
	s := sandboxtest.Cluster(t)
	n, err := s.Node("b1")
	if err != nil {
		t.Fatal(err)
	}
	token, ca := agentAccount(t, s)
	api, err := apiserver.New(apiserver.Options{Server: s.Config().Host, TokenFile: token, CAFile: ca, Node: n.Name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)

	one := int32(1)
	pod := shellPod("x", n.Name, "sleep 1000", 1)
	made := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "whose", Namespace: "default"}, Spec: batchv1.JobSpec{Parallelism: &one, Completions: &one}}
	made.Spec.Template.Spec = pod.Spec
	if made, err = s.Client().BatchV1().Jobs("default").Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	background := metav1.DeletePropagationBackground
	t.Cleanup(func() {
		_ = s.Client().BatchV1().Jobs("default").Delete(context.Background(), "whose", metav1.DeleteOptions{PropagationPolicy: &background})
	})
	uuid := n.GPUs[0].UUID
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "b1-gpus"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "gpu.nvidia.com", NodeName: &n.Name, Pool: resourcev1.ResourcePool{Name: n.Name, Generation: 1, ResourceSliceCount: 1},
		Devices: []resourcev1.Device{{Name: "gpu-7", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"uuid": {StringValue: &uuid}}}},
	}}
	if _, err := s.Client().ResourceV1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Client().ResourceV1().ResourceSlices().Delete(context.Background(), slice.Name, metav1.DeleteOptions{})
	})

	devices, err := api.Devices(t.Context())
	if err != nil || len(devices) != 1 || devices[0] != (apiserver.Device{Driver: "gpu.nvidia.com", Pool: n.Name, Name: "gpu-7", UUID: uuid}) {
		t.Errorf("devices %+v, %v", devices, err)
	}
	c := podresources.New(n.PodResources(), api, zap.NewNop(), time.Now)
	c.Start()
	t.Cleanup(c.Stop)
	var holder podresources.Holder
	eventually(t, "the job of the GPU's pod", func() bool {
		c.Touch()
		for _, g := range n.GPUs {
			for _, h := range c.Holders(g.UUID) {
				if p, ok := c.Pod(h.Namespace, h.Pod); ok && p.Job != nil && p.Job.Name == "whose" && p.Job.Kind == "Job" && p.Job.UID == string(made.UID) && p.UID != "" {
					holder = h
					return true
				}
			}
		}
		return false
	})
	if holder.Container != "main" {
		t.Errorf("held by %+v", holder)
	}

	other, err := apiserver.New(apiserver.Options{Server: s.Config().Host, CAFile: ca, Node: n.Name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	if _, err := other.Pods(t.Context()); !errors.Is(err, apiserver.ErrRefused) {
		t.Errorf("without a token: %v, want a refusal", err)
	}
}
