package cluster_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/placement"
	"github.com/pitcrew/pitcrew/sandbox"
)

func TestAGangIsFoundByAnyOfItsPodsAndByItsJob(t *testing.T) {
	s := kube(t)
	c := start(t, asRemediator(s), cluster.Options{})
	job, g := gang(t, s, c, 2, func(j *batchv1.Job) {
		j.Annotations = map[string]string{cluster.LabelHeal: "true", cluster.AnnotationHold: "benchmark"}
		j.Spec.Template.Spec.Containers[0].Command = []string{"/bin/sh", "-c", "sleep 600 # python -m pitcrew_torch.run"}
		j.Spec.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/arch": "amd64"}
		j.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "nvidia.com/gpu.count", Operator: corev1.NodeSelectorOpGt, Values: []string{"4"}}}}}}}}
	})
	if g.Kind != cluster.KindIndexedJob || g.Size != 2 || len(g.Members) != 2 || !g.Launcher || !g.OptIn || g.Held != "benchmark" || g.Finished != "" || g.Suspended {
		t.Fatalf("%+v", g)
	}
	for i, m := range g.Members {
		if m.Index != i || m.CompletionIndex != i || m.Node == "" || m.Phase != "Running" || m.Requests[gpu] != 8 || m.OwnerUID != job.UID {
			t.Errorf("member %d: %+v", i, m)
		}
		byName, err := c.GangOfPod(within(t), m.Namespace, m.Pod)
		if err != nil || byName.Job != job {
			t.Errorf("%+v, %v", byName.Job, err)
		}
		byUID, err := c.GangOfPodUID(within(t), m.PodUID)
		if err != nil || byUID.Job != job {
			t.Errorf("%+v, %v", byUID.Job, err)
		}
	}
	unwatched, err := cluster.New(asRemediator(s), cluster.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if live, err := unwatched.Gang(within(t), job); err != nil || live.Size != 2 {
		t.Errorf("what the watch lacks is not read live: %+v, %v", live, err)
	}
	r := g.PlacementRequest(g.Members[0])
	if r.Faulty != g.Members[0].Node || len(r.Peers) != 1 || r.Peers[0] != g.Members[1].Node || r.Share || r.Requests[gpu] != 8 || r.NodeSelector["kubernetes.io/arch"] != "amd64" {
		t.Errorf("%+v", r)
	}
	for count, want := range map[string]bool{"8": true, "4": false, "": false} {
		if ok, _ := r.Affinity(&placement.Node{Labels: map[string]string{"nvidia.com/gpu.count": count}}); ok != want {
			t.Errorf("affinity with %q GPUs: %v", count, ok)
		}
	}
	other := job
	other.UID = "11111111-2222-3333-4444-555555555555"
	if _, err := c.Gang(within(t), other); !errors.Is(err, cluster.ErrStale) {
		t.Errorf("a job of that name with another UID: %v", err)
	}
}

func TestANamespaceOptsInAndAJobMayOptOut(t *testing.T) {
	s := kube(t)
	c := start(t, asRemediator(s), cluster.Options{})
	label := func(v string) {
		body := `{"metadata":{"labels":{"pitcrew.dev/heal":` + v + `}}}`
		if _, err := s.Client().CoreV1().Namespaces().Patch(context.Background(), "default", types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	job, g := gang(t, s, c, 1)
	if g.OptIn {
		t.Error("healed without being asked")
	}
	t.Cleanup(func() { label("null") })
	label(`"true"`)
	eventually(t, "the namespace's consent", func() bool { g, err := c.Gang(within(t), job); return err == nil && g.OptIn })
	if _, err := s.Client().BatchV1().Jobs("default").Patch(t.Context(), job.Name, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"pitcrew.dev/heal":"false"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the job's refusal", func() bool { g, err := c.Gang(within(t), job); return err == nil && !g.OptIn })
}

func TestAnOwnerThatPitcrewCannotRestartIsNamed(t *testing.T) {
	s := kube(t)
	c := start(t, asRemediator(s), cluster.Options{})
	owner, err := s.Client().CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name(t)}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Client().CoreV1().ConfigMaps("default").Delete(context.Background(), owner.Name, metav1.DeleteOptions{})
	})
	yes := true
	job := submit(t, s, 1, func(j *batchv1.Job) {
		j.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, Controller: &yes}}
	})
	if _, err := c.Gang(within(t), job); !errors.Is(err, cluster.ErrUnsupported) || !strings.Contains(err.Error(), "ConfigMap default/"+owner.Name) {
		t.Errorf("a Job with an owner of its own: %v", err)
	}
	job = submit(t, s, 1, func(j *batchv1.Job) {
		mode := batchv1.NonIndexedCompletion
		j.Name += "-plain"
		j.Spec.CompletionMode = &mode
	})
	if _, err := c.Gang(within(t), job); !errors.Is(err, cluster.ErrUnsupported) || !strings.Contains(err.Error(), "completionMode: Indexed") {
		t.Errorf("a Job without indices: %v", err)
	}
	if _, err := c.Gang(within(t), event.Job{Kind: "TrainJob", Namespace: "default", Name: "llama"}); !errors.Is(err, cluster.ErrUnsupported) || !strings.Contains(err.Error(), "TrainJob default/llama") {
		t.Errorf("a TrainJob: %v", err)
	}
	grace := int64(0)
	bare, err := s.Client().CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name(t)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none", Command: []string{"/bin/sleep", "60"}}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Client().CoreV1().Pods("default").Delete(context.Background(), bare.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace})
	})
	if _, err := c.GangOfPod(within(t), "default", bare.Name); !errors.Is(err, cluster.ErrUnsupported) {
		t.Errorf("a pod on its own: %v", err)
	}
	if _, err := c.GangOfPod(within(t), "default", "nobody"); !errors.Is(err, cluster.ErrNotFound) {
		t.Errorf("no pod: %v", err)
	}
}

// jobset runs a JobSet of replicas Jobs with pods sleeping pods each.
func jobset(t *testing.T, s *sandbox.Sandbox, c *cluster.Cluster, replicas, pods int64, template map[string]any) (event.Job, cluster.Gang) {
	t.Helper()
	dyn, err := dynamic.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	sets := dyn.Resource(sandbox.JobSetResource).Namespace("default")
	mode, grace := batchv1.IndexedCompletion, int64(1)
	p, none := int32(pods), int32(0)
	n := name(t)
	spec := batchv1.JobSpec{Parallelism: &p, Completions: &p, CompletionMode: &mode, BackoffLimit: &none}
	spec.Template.Labels = map[string]string{"gang": n}
	spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace,
		Containers: []corev1.Container{{Name: "train", Image: "none", Command: []string{"/bin/sleep", "600"}}}}
	job, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec)
	if err != nil {
		t.Fatal(err)
	}
	set, err := sets.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
		"metadata": map[string]any{"name": n, "namespace": "default"},
		"spec": map[string]any{"failurePolicy": template, "replicatedJobs": []any{map[string]any{
			"name": "w", "replicas": replicas, "template": map[string]any{"spec": job}}}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		background := metav1.DeletePropagationBackground
		_ = sets.Delete(context.Background(), n, metav1.DeleteOptions{PropagationPolicy: &background})
		endJob(t, s, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: n, Namespace: "default"}})
	})
	ref := event.Job{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet", Namespace: "default", Name: n, UID: string(set.GetUID())}
	return ref, whole(t, c, ref)
}

func TestAJobSetsMembersCountThroughItsJobs(t *testing.T) {
	s := kube(t)
	c := start(t, asRemediator(s), cluster.Options{})
	ref, g := jobset(t, s, c, 2, 2, map[string]any{"maxRestarts": int64(3)})
	if g.Kind != cluster.KindJobSet || g.Size != 4 || len(g.Members) != 4 || g.RestartsMax != 3 {
		t.Fatalf("%+v", g)
	}
	for i, m := range g.Members {
		if m.Index != i || m.JobIndex != i/2 || m.CompletionIndex != i%2 || !strings.Contains(m.Owner, "-w-") {
			t.Errorf("member %d: %+v", i, m)
		}
	}
	unwatched, err := cluster.New(asRemediator(s), cluster.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if live, err := unwatched.Gang(within(t), ref); err != nil || live.Size != 4 {
		t.Errorf("what the watch lacks is not read live: %+v, %v", live, err)
	}
	found, err := c.GangOfPod(within(t), "default", g.Members[3].Pod)
	if err != nil || found.Job != ref {
		t.Errorf("%+v, %v", found.Job, err)
	}
}

func TestRecreatingAGangReplacesEveryPodAndCountsNoFailure(t *testing.T) {
	s := kube(t)
	c := start(t, asRemediator(s), cluster.Options{})
	for what, allow := range map[cluster.Way]bool{cluster.ByFastReplace: true, cluster.BySuspend: false} {
		t.Run(string(what), func(t *testing.T) {
			job, g := gang(t, s, c, 3)
			recreate(t, c, job, g, what, allow)
			j, err := s.Client().BatchV1().Jobs("default").Get(t.Context(), job.Name, metav1.GetOptions{})
			if err != nil || j.Status.Failed != 0 || *j.Spec.Suspend {
				t.Errorf("%+v, %v", j.Status, err)
			}
		})
	}
}

func TestASuspendedGangIsNotWaitedForWithThePodsOwnLongGrace(t *testing.T) {
	s := kube(t)
	c := start(t, asRemediator(s), cluster.Options{})
	job, g := gang(t, s, c, 2, func(j *batchv1.Job) {
		grace := int64(60)
		j.Spec.Template.Spec.TerminationGracePeriodSeconds = &grace
		j.Spec.Template.Spec.Containers[0].Command = []string{"/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.2; done"}
	})
	recreate(t, c, job, g, cluster.BySuspend, false)
	j, err := s.Client().BatchV1().Jobs("default").Get(t.Context(), job.Name, metav1.GetOptions{})
	if err != nil || j.Status.Failed != 0 {
		t.Errorf("%+v, %v", j.Status, err)
	}
}

func recreate(t *testing.T, c *cluster.Cluster, job event.Job, g cluster.Gang, want cluster.Way, allow bool) cluster.Gang {
	t.Helper()
	var intended cluster.Way
	done, err := c.RecreateGang(within(t), g, cluster.RecreateOptions{Incident: "inc-1", FastReplace: allow,
		Intent: func(_ context.Context, w cluster.Way) error { intended = w; return nil }})
	if err != nil || done.Way != want || intended != want || done.Backoff > 0 {
		t.Fatalf("%+v, intended %s, %v", done, intended, err)
	}
	var old []string
	for _, m := range g.Members {
		old = append(old, m.PodUID)
	}
	for i := range g.Size {
		if _, err := c.AwaitReplacement(within(t), g, i, cluster.Running, old...); err != nil {
			t.Fatalf("%s: %v", want, err)
		}
	}
	now, err := c.Gang(within(t), job)
	if err != nil || len(now.Members) != g.Size {
		t.Fatalf("%+v, %v", now, err)
	}
	return now
}

func TestRecreatingAJobSetUsesTheGentlestWayThatIsAllowed(t *testing.T) {
	s := kube(t)
	c := start(t, asRemediator(s), cluster.Options{})
	ref, g := jobset(t, s, c, 1, 2, map[string]any{"maxRestarts": int64(1)})
	g = recreate(t, c, ref, g, cluster.ByFastReplace, true)
	if g.Restarts != 0 {
		t.Errorf("fastReplace cost %d restarts", g.Restarts)
	}
	g = recreate(t, c, ref, g, cluster.ByRestart, false)
	eventually(t, "the restart counted", func() bool { g, err := c.Gang(within(t), ref); return err == nil && g.Restarts == 1 })
	if g, _ = c.Gang(within(t), ref); g.Restarts != 1 {
		t.Errorf("%d restarts", g.Restarts)
	}
	g = recreate(t, c, ref, g, cluster.BySuspend, false) // no restart is left
	if g.Restarts != 1 || g.Suspended {
		t.Errorf("%+v", g)
	}
}

func TestAGangWithAFailedPodSaysHowLongItsJobBacksOff(t *testing.T) {
	s := kube(t)
	c := start(t, asRemediator(s), cluster.Options{})
	job, g := gang(t, s, c, 2, func(j *batchv1.Job) {
		j.Spec.Template.Spec.Containers[0].Command = []string{"/bin/sh", "-c", "[ $JOB_COMPLETION_INDEX = 0 ] || sleep 3; [ $JOB_COMPLETION_INDEX = 0 ] && sleep 600; exit 1"}
	})
	eventually(t, "the failure", func() bool {
		now, err := c.Gang(within(t), job)
		g = now
		return err == nil && len(now.Members) == 2 && now.Members[1].Phase == "Failed"
	})
	done, err := c.RecreateGang(within(t), g, cluster.RecreateOptions{Incident: "inc-1", FastReplace: true})
	if err != nil || done.Way != cluster.BySuspend {
		t.Fatalf("%+v, %v", done, err)
	}
	if done.Backoff < 5e9 || done.Backoff > 11e9 {
		t.Errorf("it says %v of the Job controller's 10 s", done.Backoff)
	}
}
