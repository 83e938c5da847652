package remediator_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

// movingPolicy moves a job off a node.
const movingPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
metadata: {name: moving}
spec:
  mode: enforce
  order: 1
  guards: {maxNodesQuarantined: {count: 3, percent: 100}}
  rules:
  - name: move
    when: {signal: xid/79}
    steps:
    - do: cordon
    - do: restart-job
      with: {placement: equivalent, maxTierLoss: 0, fastReplace: true}
    verify: {signal: train/stepping, within: 1s}
`

// moving is a job of one sleeping pod on rack a, under a remediator that moves it. Of the nodes that it does not stand on, one of rack a and
// the one that is named are open.
type moving struct {
	*testing.T
	s         *sandbox.Sandbox
	job       event.Job
	first     corev1.Pod
	incidents bus.Bucket[incident.Incident]
	publish   func(node, xid string, severity event.Severity)
	audit     string
}

func newMoving(t *testing.T, launcher bool, open string, change ...func(*remediator.Options)) *moving {
	t.Helper()
	m := &moving{T: t, s: sandboxtest.Cluster(t)}
	t.Cleanup(m.tidy)
	m.open("a1", "a2")
	m.first = m.submit(launcher)
	m.open("a1", "a2", open)
	var url string
	m.audit, m.publish = leading(t, m.s, &times{at: map[string]time.Time{}}, movingPolicy, append(change, func(o *remediator.Options) { url = o.NATS })...)
	b, err := bus.Connect(bus.Options{URL: url, Cluster: "bench"})
	m.must(err)
	t.Cleanup(b.Close)
	m.incidents = bus.NewBucket[incident.Incident](b, bus.IncidentBucket)
	if launcher { // nobody can ask the pod, so it takes a record to know how many ranks it has
		m.eventually("a bus", func() bool {
			return b.Attempts().Set(t.Context(), m.job.UID, bus.Attempt{Job: m.job, Attempt: 1, NProc: 1, WorldSize: 1}) == nil
		})
	}
	return m
}

func (m *moving) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

func (m *moving) eventually(what string, ok func() bool) {
	m.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			m.Fatalf("never came: %s", what)
		}
	}
}

// open lets the scheduler use these nodes alone.
func (m *moving) open(names ...string) {
	m.Helper()
	for _, n := range m.s.Nodes() {
		body, err := json.Marshal(map[string]any{"spec": map[string]any{"unschedulable": !slices.Contains(names, n.Name)}})
		m.must(err)
		_, err = m.s.Client().CoreV1().Nodes().Patch(m.Context(), n.Name, types.MergePatchType, body, metav1.PatchOptions{})
		m.must(err)
	}
}

func (m *moving) submit(launcher bool) corev1.Pod {
	m.Helper()
	one, mode, limit, grace := int32(1), batchv1.IndexedCompletion, int32(0), int64(1)
	replace := batchv1.TerminatingOrFailed
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{GenerateName: "moving-", Namespace: "default", Annotations: map[string]string{cluster.LabelHeal: "true"}},
		Spec: batchv1.JobSpec{Parallelism: &one, Completions: &one, CompletionMode: &mode, BackoffLimit: &limit, PodReplacementPolicy: &replace}}
	if launcher {
		job.Spec.Template.Annotations = map[string]string{cluster.AnnotationLauncher: "true"}
	}
	job.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{
		Name: "train", Image: "none", Command: []string{"/bin/sleep", "600"},
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}}}}}
	made, err := m.s.Client().BatchV1().Jobs("default").Create(m.Context(), job, metav1.CreateOptions{})
	m.must(err)
	m.job = event.Job{APIVersion: "batch/v1", Kind: "Job", Namespace: "default", Name: made.Name, UID: string(made.UID)}
	return m.bound()
}

func jobPods(name string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: "batch.kubernetes.io/job-name=" + name}
}

// bound is the job's pod that runs and is none of those before.
func (m *moving) bound(before ...types.UID) corev1.Pod {
	m.Helper()
	return m.pod("a pod that runs", func(p corev1.Pod) bool {
		return p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil && !slices.Contains(before, p.UID)
	})
}

func (m *moving) pod(what string, is func(corev1.Pod) bool) (found corev1.Pod) {
	m.Helper()
	m.eventually(what, func() bool {
		pods, err := m.s.Client().CoreV1().Pods("default").List(m.Context(), jobPods(m.job.Name))
		m.must(err)
		k := slices.IndexFunc(pods.Items, is)
		if k >= 0 {
			found = pods.Items[k]
		}
		return k >= 0
	})
	return found
}

// steers says whether the API server stamps pods of the job's namespace. Pitcrew's own, where it asks, are stamped always: so it is where
// one of several API servers has not heard of a reservation.
func (m *moving) steers(on bool) {
	m.Helper()
	dyn, err := dynamic.NewForConfig(m.s.Config())
	m.must(err)
	match := `null`
	if !on {
		match = `{"namespaceSelector":{"matchExpressions":[{"key":"kubernetes.io/metadata.name","operator":"NotIn","values":["default"]}]}}`
	}
	bindings := dyn.Resource(admissionv1.SchemeGroupVersion.WithResource("mutatingadmissionpolicybindings"))
	defer func() {
		m.must(m.s.Client().CoreV1().ConfigMaps(own).Delete(context.Background(), asks, metav1.DeleteOptions{}))
	}()
	if !on { // else the pod that asks would be let through for not being known yet
		m.eventually("an API server that stamps", m.stamped)
	}
	m.eventually("the policy's binding, which the remediator makes", func() bool {
		_, err := bindings.Patch(context.Background(), cluster.PlacementPolicyName, types.MergePatchType, []byte(`{"spec":{"matchResources":`+match+`}}`), metav1.PatchOptions{})
		if !apierrors.IsNotFound(err) {
			m.must(err)
		}
		return err == nil
	})
	m.eventually("an API server that has heard of it: it looks once a second", func() bool { return m.stamped() == on })
}

const asks, own = "asks", "pitcrew-system"

// stamped asks the API server, without making it, for a pod that a reservation names.
func (m *moving) stamped() bool {
	m.Helper()
	meta := metav1.ObjectMeta{Name: asks, Namespace: own, Labels: map[string]string{cluster.LabelReservation: "true"}}
	_, err := m.s.Client().CoreV1().ConfigMaps(own).Create(context.Background(), &corev1.ConfigMap{ObjectMeta: meta,
		Data: map[string]string{"ownerUID": asks, "hostname": asks, "incident": asks}}, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) { // no namespace yet
		return false
	}
	if !apierrors.IsAlreadyExists(err) {
		m.must(err)
	}
	pod, err := m.s.Client().CoreV1().Pods("default").Create(context.Background(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: asks, OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: asks, UID: asks}}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: asks, Image: "none"}}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	m.must(err)
	return pod.Spec.NodeSelector[corev1.LabelHostname] == asks
}

// reaches waits for the one incident to be as wanted.
func (m *moving) reaches(ok func(incident.Incident) bool) (found incident.Incident) {
	m.Helper()
	m.eventually("the incident's step", func() bool {
		all, err := m.incidents.List(m.Context())
		if errors.Is(err, bus.ErrNotFound) {
			return false
		}
		m.must(err)
		if len(all) > 1 {
			m.Fatalf("%d incidents: %s", len(all), stories(all))
		}
		for _, c := range all {
			found = c.Value
			return ok(found)
		}
		return false
	})
	return found
}

func stories(all []bus.Change[incident.Incident]) string {
	var b strings.Builder
	for _, c := range all {
		c.Value.Write(&b)
	}
	return b.String()
}

func restarted(i incident.Incident) bool {
	return slices.ContainsFunc(i.Notes, func(n incident.Note) bool { return n.State == incident.Restarted && n.TookS > 0 })
}

// tidy leaves the cluster as it was.
func (m *moving) tidy() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	background, now := metav1.DeletePropagationBackground, int64(0)
	kube := m.s.Client()
	if m.job.Name != "" {
		_ = kube.BatchV1().Jobs("default").Delete(ctx, m.job.Name, metav1.DeleteOptions{PropagationPolicy: &background})
	}
	for left := 1; left > 0 && m.job.Name != ""; time.Sleep(20 * time.Millisecond) {
		pods, err := kube.CoreV1().Pods("default").List(ctx, jobPods(m.job.Name))
		if err != nil {
			m.Error(err)
			return
		}
		left = len(pods.Items)
		for _, p := range pods.Items {
			_ = kube.CoreV1().Pods("default").Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		}
	}
	_ = kube.CoreV1().ConfigMaps("pitcrew-system").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: cluster.LabelReservation + "=true"})
	for _, n := range m.s.Nodes() {
		body := `{"metadata":{"annotations":{"pitcrew.dev/cordon":null,"pitcrew.dev/quarantined-by":null}},"spec":{"unschedulable":null,"taints":null}}`
		if _, err := kube.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
			m.Error(err)
		}
	}
}

var paths = map[string]bool{"launcher": true, "recreate": false}

func TestAReplacementThatTheAPIServerDidNotStampIsSentAwayFromANodeThatWouldNotDo(t *testing.T) {
	for name, launcher := range paths {
		t.Run(name, func(t *testing.T) {
			m := newMoving(t, launcher, "b1") // what is too far alone is left for a pod that nobody sends anywhere
			t.Cleanup(func() { m.steers(true) })
			m.steers(false)
			m.publish(m.first.Spec.NodeName, "79", event.Fatal)
			stray := m.pod("a stray with a node", func(p corev1.Pod) bool { return p.Spec.NodeName != "" && p.UID != m.first.UID }) // it may be on its way out already
			m.steers(true)
			if stray.Spec.NodeName != "b1" {
				t.Fatalf("it came down on %s, so nothing was tried", stray.Spec.NodeName)
			}
			i := m.reaches(restarted)
			if !slices.Contains(i.Strays, string(stray.UID)) || i.Restarts != 1 || i.Path != name {
				t.Errorf("strays %v, %d restarts, by %s", i.Strays, i.Restarts, i.Path)
			}
			last := m.pod("the last of its pods", func(p corev1.Pod) bool {
				return p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil && !slices.Contains(append(i.Strays, string(m.first.UID)), string(p.UID))
			})
			if want := i.Moves[0]; last.Spec.NodeName != want.To || string(last.UID) != want.NewUID || want.To == "b1" || want.To == m.first.Spec.NodeName {
				t.Errorf("pod %s on %s, move %+v", last.UID, last.Spec.NodeName, want)
			}
			job, err := m.s.Client().BatchV1().Jobs("default").Get(t.Context(), m.job.Name, metav1.GetOptions{})
			if m.must(err); job.Status.Failed > 0 {
				t.Errorf("the Job counts %d failures", job.Status.Failed)
			}
		})
	}
}

func TestAReplacementThatTheAPIServerDidNotStampStaysOnANodeAsGood(t *testing.T) {
	for name, launcher := range paths {
		t.Run(name, func(t *testing.T) {
			m := newMoving(t, launcher, "a3")
			t.Cleanup(func() { m.steers(true) })
			m.steers(false)
			m.publish(m.first.Spec.NodeName, "79", event.Fatal)
			found := m.bound(m.first.UID)
			i := m.reaches(restarted)
			if to := i.Moves[0].To; len(i.Strays) > 0 || i.Restarts != 1 || to != found.Spec.NodeName || i.Moves[0].NewUID != string(found.UID) {
				t.Errorf("strays %v, %d restarts, move %+v; it came down on %s", i.Strays, i.Restarts, i.Moves[0], found.Spec.NodeName)
			}
			if launcher { // it tries again for as long as nobody says that it steps
				return
			}
			i = m.reaches(func(i incident.Incident) bool { return !i.Open() })
			maps, err := m.s.Client().CoreV1().ConfigMaps("pitcrew-system").List(t.Context(), metav1.ListOptions{LabelSelector: cluster.LabelReservation + "=true"})
			if m.must(err); len(maps.Items) > 0 {
				t.Errorf("%d reservations are left of %s", len(maps.Items), i.Outcome)
			}
		})
	}
}
