package storm

import (
	"context"
	"fmt"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"golang.org/x/sync/errgroup"

	"github.com/pitcrew/pitcrew/sandbox"
)

// Names on the cluster.
const (
	clusterName     = "storm"
	systemNamespace = "pitcrew-system"
	jobNamespace    = "training"

	gpuResource      = corev1.ResourceName("nvidia.com/gpu")
	completionIndex  = "batch.kubernetes.io/job-completion-index"
	trackedFinalizer = "batch.kubernetes.io/job-tracking"
	launcherMark     = "pitcrew.dev/launcher"
	healLabel        = "pitcrew.dev/heal"
)

// writers is how many requests that create objects are under way at once.
const writers = 32

// create makes namespaces, nodes, Jobs and their bound pods, in this order. No controller may run yet: the Job controller would create
// pods of its own for a Job whose pods are still on their way.
func (f fleet) create(ctx context.Context, kube kubernetes.Interface) error {
	for name, labels := range map[string]map[string]string{systemNamespace: nil, jobNamespace: {healLabel: "true"}} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		if _, err := kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			return err
		}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		if _, err := kube.CoreV1().ServiceAccounts(name).Create(ctx, account, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if err := each(ctx, len(f.nodes), func(ctx context.Context, i int) error {
		want := f.nodes[i].object()
		have, err := kube.CoreV1().Nodes().Create(ctx, want, metav1.CreateOptions{})
		if err == nil {
			have.Status = want.Status
			_, err = kube.CoreV1().Nodes().UpdateStatus(ctx, have, metav1.UpdateOptions{})
		}
		return err
	}); err != nil {
		return fmt.Errorf("create nodes: %w", err)
	}
	jobs := make([]*batchv1.Job, len(f.gangs))
	if err := each(ctx, len(f.gangs), func(ctx context.Context, i int) (err error) {
		jobs[i], err = kube.BatchV1().Jobs(jobNamespace).Create(ctx, f.gangs[i].job(), metav1.CreateOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("create jobs: %w", err)
	}
	type seat struct{ gang, index int }
	var seats []seat
	for g := range f.gangs {
		for index := range f.gangs[g].members {
			seats = append(seats, seat{g, index})
		}
	}
	if err := each(ctx, len(seats), func(ctx context.Context, i int) error {
		g := f.gangs[seats[i].gang]
		return createRunning(ctx, kube, jobNamespace, member(jobs[seats[i].gang], seats[i].index, f.nodes[g.members[seats[i].index]].name), i)
	}); err != nil {
		return fmt.Errorf("create the gangs' pods: %w", err)
	}
	if err := each(ctx, f.fill*len(f.nodes), func(ctx context.Context, i int) error {
		return createRunning(ctx, kube, systemNamespace, filler(f.nodes[i/f.fill].name, i%f.fill), len(seats)+i)
	}); err != nil {
		return fmt.Errorf("create the other pods: %w", err)
	}
	return nil
}

// createRunning creates a bound pod and reports it as running, in kwok's place: kwok takes minutes for tens of thousands.
func createRunning(ctx context.Context, kube kubernetes.Interface, namespace string, want *corev1.Pod, number int) error {
	pod, err := kube.CoreV1().Pods(namespace).Create(ctx, want, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	now := metav1.Now()
	name := pod.Spec.Containers[0].Name
	pod.Status.Phase, pod.Status.StartTime, pod.Status.HostIP = corev1.PodRunning, &now, "127.0.0.1"
	pod.Status.PodIP = fmt.Sprintf("10.%d.%d.%d", number>>16&127, number>>8&255, number&255)
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: name, Image: pod.Spec.Containers[0].Image, Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}}
	_, err = kube.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

// filler is a pod that belongs to no gang. It tolerates every taint, as pods of DaemonSets do.
func filler(node string, k int) *corev1.Pod {
	token := false
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-agent-%d-%s", k, node), Labels: map[string]string{"app.kubernetes.io/name": fmt.Sprintf("node-agent-%d", k)}},
		Spec: corev1.PodSpec{NodeName: node, AutomountServiceAccountToken: &token, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{Name: "agent", Image: "registry.example/agent",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}}}},
	}
}

// each calls do for 0 … n−1, several at once, until one fails.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

func (n node) object() *corev1.Node {
	capacity := corev1.ResourceList{gpuResource: resource.MustParse("8"), corev1.ResourceCPU: resource.MustParse("192"),
		corev1.ResourceMemory: resource.MustParse("2Ti"), corev1.ResourcePods: resource.MustParse("110")}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{
			"kubernetes.io/hostname": n.name, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
			"node.kubernetes.io/instance-type": "hgx-h100-8", "topology.kubernetes.io/zone": "zone-1", "topology.kubernetes.io/region": "storm",
			"fabric.topograph.run/tier-0": n.rack, "fabric.topograph.run/tier-1": n.spine,
			"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": sandbox.GPUProduct, "nvidia.com/gpu.count": strconv.Itoa(GPUs),
			"nvidia.com/gpu.memory": "81559", "nvidia.com/mig.strategy": "none", "nvidia.com/cuda.driver-version.major": "570",
			"nvidia.com/cuda.driver-version.full": sandbox.DriverVersion}},
		Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
	}
}

func (g gang) job() *batchv1.Job {
	pods, backoff, mode, replace := int32(len(g.members)), int32(1<<20), batchv1.IndexedCompletion, batchv1.TerminatingOrFailed
	return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: g.name},
		Spec: batchv1.JobSpec{Parallelism: &pods, Completions: &pods, CompletionMode: &mode, BackoffLimit: &backoff, PodReplacementPolicy: &replace,
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{launcherMark: "true"}}, Spec: podSpec()}}}
}

func podSpec() corev1.PodSpec {
	grace, token := int64(1), false
	return corev1.PodSpec{RestartPolicy: corev1.RestartPolicyOnFailure, TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &token,
		Containers: []corev1.Container{{Name: "train", Image: "registry.example/train",
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{gpuResource: resource.MustParse("8")}}}}}
}

// member is a pod as the Job controller would have created it, bound already.
func member(job *batchv1.Job, index int, node string) *corev1.Pod {
	at := strconv.Itoa(index)
	spec := podSpec()
	spec.NodeName = node
	spec.Hostname = job.Name + "-" + at
	yes, uid := true, string(job.UID)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: job.Name + "-" + at + "-", Finalizers: []string{trackedFinalizer},
			Labels: map[string]string{"batch.kubernetes.io/controller-uid": uid, "controller-uid": uid, "batch.kubernetes.io/job-name": job.Name,
				"job-name": job.Name, completionIndex: at},
			Annotations:     map[string]string{completionIndex: at, launcherMark: "true"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID, Controller: &yes, BlockOwnerDeletion: &yes}}},
		Spec: spec,
	}
}
