package cluster_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/pitcrew/pitcrew/deploy"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

const account = "system:serviceaccount:pitcrew-system:pitcrew-remediator"

func TestMain(m *testing.M) { sandboxtest.Main(m) }

var installed sync.Once

// kube is the sandbox with Pitcrew's rights and placement policy installed, as an administrator would.
func kube(t testing.TB) *sandbox.Sandbox {
	t.Helper()
	s := sandboxtest.Cluster(t)
	installed.Do(func() {
		if err := s.Apply(t.Context(), deploy.RBAC, deploy.RBACEnforce, deploy.RemediatorBounds, deploy.PlacementPolicy); err != nil {
			t.Fatal(err)
		}
	})
	return s
}

// asRemediator is a configuration with the remediator's rights and nothing more. What it asks for is noted for the test of deploy/rbac.yaml.
func asRemediator(s *sandbox.Sandbox) *rest.Config {
	cfg := s.Config()
	cfg.Impersonate = rest.ImpersonationConfig{UserName: account}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return usedRights.watch(next) })
	return cfg
}

// start runs a Cluster with the remediator's rights. It ends with the test.
func start(t testing.TB, cfg *rest.Config, opts cluster.Options) *cluster.Cluster {
	t.Helper()
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	c, err := cluster.New(cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	ready, done := context.WithTimeout(t.Context(), 20*time.Second)
	defer done()
	if err := c.WaitForSync(ready); err != nil {
		t.Fatal(err)
	}
	return c
}

// within ends with the test or after 20 s.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// gang runs an Indexed Job of sleeping pods, each of which needs a whole node, and waits until all run.
func gang(t testing.TB, s *sandbox.Sandbox, c *cluster.Cluster, pods int32, edit ...func(*batchv1.Job)) (event.Job, cluster.Gang) {
	t.Helper()
	ref := submit(t, s, pods, edit...)
	return ref, whole(t, c, ref)
}

// submit is gang without the waiting.
func submit(t testing.TB, s *sandbox.Sandbox, pods int32, edit ...func(*batchv1.Job)) event.Job {
	t.Helper()
	mode, limit, grace, replace := batchv1.IndexedCompletion, int32(100), int64(1), batchv1.TerminatingOrFailed
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name(t), Namespace: "default"}, Spec: batchv1.JobSpec{
		Parallelism: &pods, Completions: &pods, CompletionMode: &mode, BackoffLimit: &limit, PodReplacementPolicy: &replace}}
	job.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace,
		Containers: []corev1.Container{{Name: "train", Image: "none", Command: []string{"/bin/sleep", "600"},
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}}}}}
	for _, e := range edit {
		e(job)
	}
	job.Spec.Template.Labels = map[string]string{"gang": job.Name}
	made, err := s.Client().BatchV1().Jobs("default").Create(t.Context(), job, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endJob(t, s, made) })
	return event.Job{APIVersion: "batch/v1", Kind: "Job", Namespace: made.Namespace, Name: made.Name, UID: string(made.UID)}
}

// whole waits until every member of a gang runs, and none is of those before.
func whole(t testing.TB, c *cluster.Cluster, job event.Job, before ...string) cluster.Gang {
	t.Helper()
	g, err := c.Gang(within(t), job)
	if err != nil {
		t.Fatal(err)
	}
	for i := range g.Size {
		if _, err := c.AwaitReplacement(within(t), g, i, cluster.Running, before...); err != nil {
			t.Fatal(err)
		}
	}
	if g, err = c.Gang(within(t), job); err != nil {
		t.Fatal(err)
	}
	return g
}

func endJob(t testing.TB, s *sandbox.Sandbox, job *batchv1.Job) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	background, now := metav1.DeletePropagationBackground, int64(0)
	if err := s.Client().BatchV1().Jobs(job.Namespace).Delete(ctx, job.Name, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	for ctx.Err() == nil {
		pods, err := s.Client().CoreV1().Pods(job.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "gang=" + job.Name})
		if err != nil {
			t.Error(err)
			return
		}
		if len(pods.Items) == 0 {
			return
		}
		for _, p := range pods.Items {
			_, _ = s.Client().CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":[]}}`), metav1.PatchOptions{})
			_ = s.Client().CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("pods of job %s did not go", job.Name)
}

// name is one that Kubernetes takes, for the test.
func name(t testing.TB) string {
	n := strings.ToLower(strings.TrimPrefix(strings.NewReplacer("/", "-", "_", "-", "#", "").Replace(t.Name()), "Test"))
	if len(n) > 40 {
		n = n[:40]
	}
	return strings.Trim(n, "-") + fmt.Sprint("-", time.Now().UnixNano()%1e6)
}

// clean makes the nodes as they were before the test.
func clean(t testing.TB, s *sandbox.Sandbox) {
	t.Helper()
	t.Cleanup(func() {
		for _, n := range s.Nodes() {
			body := `{"metadata":{"annotations":{"pitcrew.dev/cordon":null,"pitcrew.dev/quarantined-by":null,"pitcrew.dev/fenced-by":null,"pitcrew.dev/hold":null}},"spec":{"unschedulable":null,"taints":null}}`
			if _, err := s.Client().CoreV1().Nodes().Patch(context.Background(), n.Name, types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
}

func node(t testing.TB, s *sandbox.Sandbox, name string) *corev1.Node {
	t.Helper()
	n, err := s.Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func pod(t testing.TB, s *sandbox.Sandbox, m cluster.Member) *corev1.Pod {
	t.Helper()
	p, err := s.Client().CoreV1().Pods(m.Namespace).Get(t.Context(), m.Pod, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func patchNode(t testing.TB, s *sandbox.Sandbox, name, body string) {
	t.Helper()
	if _, err := s.Client().CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func taint(n *corev1.Node, key string) (string, bool) {
	for _, t := range n.Spec.Taints {
		if t.Key == key {
			return t.Value, true
		}
	}
	return "", false
}

// eventually looks again at each 10 ms: the test's own eyes, not the product's.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never came: %s", what)
}

// writes remembers what a Cluster announced.
type writes struct {
	mu  sync.Mutex
	all []cluster.Write
}

func (w *writes) hook(_ context.Context, x cluster.Write) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, x)
}

// sent counts the requests of a kind that were sent, without dry runs.
func (w *writes) sent(verb, kind string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.all {
		if x.Verb == verb && x.Kind == kind && !x.Done && !x.DryRun {
			n++
		}
	}
	return n
}

// accepted counts the requests of a kind that changed something.
func (w *writes) accepted(verb, kind string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.all {
		if x.Verb == verb && x.Kind == kind && x.Done && x.Err == nil && !x.DryRun {
			n++
		}
	}
	return n
}
