package apiserver

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/event"
)

// serve answers paths with bodies, to who brings the token.
func serve(t *testing.T, answers map[string]string) *Client {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := answers[r.URL.Path]
		switch {
		case r.Header.Get("Authorization") != "Bearer secret":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Query().Get("fieldSelector") != "spec.nodeName=n1":
			w.WriteHeader(http.StatusBadRequest)
		case !ok:
			w.WriteHeader(http.StatusNotFound)
		default:
			fmt.Fprint(w, body)
		}
	}))
	t.Cleanup(s.Close)
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca"), filepath.Join(dir, "token")
	for file, content := range map[string][]byte{ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), token: []byte("secret\n")} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := New(Options{Server: s.URL, CAFile: ca, TokenFile: token, Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

const podsPath, slicesPath = "/api/v1/pods", "/apis/resource.k8s.io/v1/resourceslices"

func TestAPodsJobIsTheWorkloadAboveIt(t *testing.T) {
	for name, c := range map[string]struct {
		meta string
		want *event.Job
	}{
		"a batch Job": {`"ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":"train","uid":"u1","controller":true}],"labels":{"batch.kubernetes.io/job-name":"train"}`,
			&event.Job{APIVersion: "batch/v1", Kind: "Job", Namespace: "t", Name: "train", UID: "u1"}},
		"a JobSet, above its Job": {`"ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":"set-workers-0","uid":"u1","controller":true}],` +
			`"labels":{"jobset.sigs.k8s.io/jobset-name":"set","jobset.sigs.k8s.io/jobset-uid":"u2"}`,
			&event.Job{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet", Namespace: "t", Name: "set", UID: "u2"}},
		"Kubeflow's PyTorchJob": {`"ownerReferences":[{"apiVersion":"kubeflow.org/v1","kind":"PyTorchJob","name":"mnist","uid":"u3","controller":true}]`,
			&event.Job{APIVersion: "kubeflow.org/v1", Kind: "PyTorchJob", Namespace: "t", Name: "mnist", UID: "u3"}},
		"Volcano's Job": {`"ownerReferences":[{"apiVersion":"batch.volcano.sh/v1alpha1","kind":"Job","name":"mpi","uid":"u4","controller":true}]`,
			&event.Job{APIVersion: "batch.volcano.sh/v1alpha1", Kind: "Job", Namespace: "t", Name: "mpi", UID: "u4"}},
		"a deployment's pod":          {`"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-1","uid":"u5","controller":true}]`, nil},
		"a static pod":                {`"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n1","uid":"u6","controller":true}]`, nil},
		"an owner that only notes it": {`"ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":"train","uid":"u1"}]`, nil},
		"a pod of nobody":             {`"labels":{}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := serve(t, map[string]string{podsPath: `{"items":[{"metadata":{"namespace":"t","name":"p","uid":"x",` + c.meta + `}}]}`}).Pods(t.Context())
			if err != nil || len(got) != 1 {
				t.Fatalf("%v %v", got, err)
			}
			if want := (Pod{Namespace: "t", Name: "p", UID: "x", Job: c.want}); !reflect.DeepEqual(got[0], want) {
				t.Errorf("%+v, want %+v", got[0], want)
			}
		})
	}
}

func TestDevicesAreThoseOfThePoolsNewestGeneration(t *testing.T) {
	c := serve(t, map[string]string{slicesPath: `{"items":[
		{"spec":{"driver":"gpu.nvidia.com","pool":{"name":"n1","generation":1},"devices":[{"name":"gpu-0","attributes":{"uuid":{"string":"GPU-old"}}}]}},
		{"spec":{"driver":"gpu.nvidia.com","pool":{"name":"n1","generation":2},"devices":[
			{"name":"gpu-0","attributes":{"uuid":{"string":"GPU-0"},"type":{"string":"gpu"},"driverVersion":{"version":"580.1.0"}}},
			{"name":"gpu-0-mig-19-0-1","attributes":{"uuid":{"string":"MIG-1"},"parentUUID":{"string":"GPU-0"},"type":{"string":"mig"}}},
			{"name":"nameless","attributes":{"index":{"int":7}}}]}},
		{"spec":{"driver":"npu.example.com","pool":{"name":"n1","generation":1},"devices":[{"name":"npu-0","attributes":{"npu.example.com/uuid":{"string":"NPU-0"}}}]}}]}`})
	got, err := c.Devices(t.Context())
	want := []Device{
		{"gpu.nvidia.com", "n1", "gpu-0", "GPU-0", ""}, {"gpu.nvidia.com", "n1", "gpu-0-mig-19-0-1", "MIG-1", "GPU-0"}, {"npu.example.com", "n1", "npu-0", "NPU-0", ""},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestAServerWithoutResourceSlicesHasNone(t *testing.T) {
	if got, err := serve(t, nil).Devices(t.Context()); got != nil || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

func TestARefusalSaysWhatIsMissing(t *testing.T) {
	c := serve(t, map[string]string{podsPath: `{}`})
	c.token = ""
	if _, err := c.Pods(t.Context()); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "agent-rbac.yaml") {
		t.Errorf("error %v", err)
	}
}

func TestAnAnswerThatIsTooLongOrNoListIsAnError(t *testing.T) {
	for name, body := range map[string]string{"no JSON": "<html>", "a list of another shape": `{"items":7}`, "too long": `{"items":[` + strings.Repeat(" ", maxAnswer) + `]}`} {
		if got, err := serve(t, map[string]string{podsPath: body}).Pods(t.Context()); err == nil {
			t.Errorf("%s: taken as %v", name, got)
		}
	}
}

func TestWithoutAServerNothingIsKnownAndNothingFails(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, o := range []Options{{}, {Server: "auto", Node: "n1"}} {
		c, err := New(o)
		if c != nil || err != nil {
			t.Errorf("%+v: %v, %v", o, c, err)
		}
		pods, err := c.Pods(t.Context())
		devices, err2 := c.Devices(t.Context())
		if c.Close(); pods != nil || devices != nil || err != nil || err2 != nil {
			t.Errorf("a client of nothing knows %v %v %v %v", pods, devices, err, err2)
		}
	}
	for _, o := range []Options{{Server: "http://plain", Node: "n"}, {Server: "https://x"}, {Server: "https://x", Node: "n", CAFile: "/nonexistent"}} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}
