package sandbox

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// jobSetManifests are the files of JobSet's module that its controller needs in the cluster.
var jobSetManifests = []string{"config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml", "config/components/webhook/manifests.yaml"}

// jobSetAssets returns a directory with the controller and its manifests, built once into the cache.
func jobSetAssets(ctx context.Context, progress io.Writer) (string, error) {
	dir, err := buildCached(ctx, "jobset", []struct{ name, pkg string }{{"jobset-controller", "sigs.k8s.io/jobset"}}, progress)
	if err != nil {
		return "", err
	}
	for _, m := range jobSetManifests {
		to := filepath.Join(dir, filepath.Base(m))
		if _, err := os.Stat(to); err == nil {
			continue
		}
		root, err := RepoRoot()
		if err != nil {
			return "", err
		}
		list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/jobset")
		list.Dir = filepath.Join(root, "sandbox", "jobset")
		list.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
		module, err := list.Output()
		if err != nil {
			return "", fmt.Errorf("jobset's manifests: %w", err)
		}
		body, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(module)), m))
		if err != nil {
			return "", fmt.Errorf("jobset's manifests: %w", err)
		}
		if err := os.WriteFile(to+".tmp", body, 0o644); err != nil {
			return "", err
		}
		if err := os.Rename(to+".tmp", to); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// defineJobSet brings JobSet's definition into the cluster.
func (s *Sandbox) defineJobSet(ctx context.Context, assets string) error {
	client, err := dynamic.NewForConfig(s.plane.config)
	if err != nil {
		return err
	}
	crds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	definitions, err := readManifests(filepath.Join(assets, filepath.Base(jobSetManifests[0])))
	if err != nil {
		return err
	}
	for _, crd := range definitions {
		if _, err := crds.Create(ctx, crd, metav1.CreateOptions{}); err != nil {
			return err
		}
		w, err := crds.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + crd.GetName()})
		if err != nil {
			return err
		}
		if err := await(ctx, w, "the definition of "+crd.GetName(), established); err != nil {
			return err
		}
	}
	return nil
}

// startJobSet runs JobSet's controller outside the cluster, and then registers its webhooks, which point to it by URL.
func (s *Sandbox) startJobSet(ctx context.Context, assets string) error {
	client, err := dynamic.NewForConfig(s.plane.config)
	if err != nil {
		return err
	}
	url, health, err := s.startJobSetController(assets)
	if err != nil {
		return err
	}
	if err := s.plane.await(ctx, health.process, "jobset-controller", httpOK(health.url, http.DefaultClient)); err != nil {
		return err
	}
	hooks, err := readManifests(filepath.Join(assets, filepath.Base(jobSetManifests[1])))
	if err != nil {
		return err
	}
	for _, h := range hooks {
		resource := strings.ToLower(h.GetKind()) + "s"
		h.SetName("jobset-" + h.GetName())
		if err := pointWebhooks(h, url, s.plane.ca.pem); err != nil {
			return err
		}
		gvr := schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: resource}
		if _, err := client.Resource(gvr).Create(ctx, h, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

type healthCheck struct {
	process *process
	url     string
}

func (s *Sandbox) startJobSetController(assets string) (url string, health healthCheck, err error) {
	ports, err := freePorts(2)
	if err != nil {
		return "", health, err
	}
	dir := filepath.Join(s.dir, "jobset")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", health, err
	}
	pair, err := s.plane.ca.issue("jobset-webhook", nil, "127.0.0.1")
	if err != nil {
		return "", health, err
	}
	if _, _, err := pair.write(dir, "tls"); err != nil {
		return "", health, err
	}
	config := fmt.Sprintf(`apiVersion: config.jobset.x-k8s.io/v1alpha1
kind: Configuration
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
clientConnection: {qps: 2000, burst: 4000}
webhook: {host: 127.0.0.1, port: %d, certDir: %q}
metrics: {bindAddress: "0"}
health: {healthProbeBindAddress: "127.0.0.1:%d"}
`, ports[0], dir, ports[1])
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return "", health, err
	}
	health.url = fmt.Sprintf("http://127.0.0.1:%d/readyz", ports[1])
	health.process, err = s.procs.start(processSpec{unit: "cluster/jobset-controller/", dir: dir, log: filepath.Join(s.Logs(), "jobset-controller.log"),
		argv: []string{filepath.Join(assets, "jobset-controller"), "--config=" + file}, env: append(os.Environ(), "KUBECONFIG="+s.Kubeconfig())})
	return fmt.Sprintf("https://127.0.0.1:%d", ports[0]), health, err
}

func established(e watch.Event) bool {
	crd, ok := e.Object.(*unstructured.Unstructured)
	if !ok {
		return false
	}
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["type"] == "Established" && m["status"] == "True" {
			return true
		}
	}
	return false
}

// pointWebhooks does what JobSet's own installation does to these manifests: pods are only looked at if a JobSet made them. The
// service becomes a URL.
func pointWebhooks(config *unstructured.Unstructured, url string, ca []byte) error {
	hooks, _, err := unstructured.NestedSlice(config.Object, "webhooks")
	if err != nil {
		return err
	}
	for _, h := range hooks {
		hook, ok := h.(map[string]any)
		if !ok {
			return errors.New("jobset's webhook manifest is not as expected")
		}
		path, _, err := unstructured.NestedString(hook, "clientConfig", "service", "path")
		if err != nil || path == "" {
			return fmt.Errorf("jobset's webhook manifest names no path: %v", err)
		}
		hook["clientConfig"] = map[string]any{"url": url + path, "caBundle": base64.StdEncoding.EncodeToString(ca)}
		if strings.HasSuffix(path, "-v1-pod") {
			hook["objectSelector"] = map[string]any{"matchExpressions": []any{
				map[string]any{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}}}
		}
	}
	return unstructured.SetNestedSlice(config.Object, hooks, "webhooks")
}

func readManifests(path string) ([]*unstructured.Unstructured, error) {
	body, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for dec := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(body), 4096); ; {
		u := &unstructured.Unstructured{}
		if err := dec.Decode(u); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if len(u.Object) > 0 {
			objects = append(objects, u)
		}
	}
}
