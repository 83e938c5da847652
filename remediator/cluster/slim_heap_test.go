package cluster

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// realPod is a pod with what an API server sends of it, encoded and decoded as on the wire, so that no string is shared with another.
func realPod(t testing.TB, k, i int) *corev1.Pod {
	t.Helper()
	controller := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("nvidia-dcgm-exporter-%d-%d", i, k), Namespace: "gpu-operator", GenerateName: fmt.Sprintf("nvidia-dcgm-exporter-%d-", i),
		UID: types.UID(fmt.Sprintf("11111111-2222-3333-%04d-%012d", i, k)), ResourceVersion: fmt.Sprint(1_000_000 + k),
		Labels:      map[string]string{"app.kubernetes.io/name": "dcgm", "controller-revision-hash": "6d4cf56db6", "pod-template-generation": "1", "app.kubernetes.io/part-of": "gpu-operator"},
		Annotations: map[string]string{"kubernetes.io/config.source": "api", "cni.projectcalico.org/podIP": "10.0.0.1/32", "cni.projectcalico.org/containerID": "0123456789012345678901234567890123456789"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: fmt.Sprint("ds-", i), UID: types.UID(fmt.Sprint("ds-uid-", i)),
			Controller: &controller, BlockOwnerDeletion: &controller}}}}
	if i == 0 {
		p.OwnerReferences[0] = metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: fmt.Sprint("job-", k/16), UID: types.UID(fmt.Sprint("job-uid-", k/16)), Controller: &controller}
		p.Annotations[completionIndex] = fmt.Sprint(k % 16)
		p.Finalizers = []string{jobTrackingFinalizer}
	}
	p.Spec.NodeName = fmt.Sprintf("gpu-node-%04d", k)
	for _, name := range []string{"main", "sidecar"} {
		c := corev1.Container{Name: name, Image: "registry.example/team/image:v1.2.3", Env: []corev1.EnvVar{{Name: "A", Value: "b"}}, Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("128Mi")}}}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	p.Status.Phase, p.Status.PodIP = corev1.PodRunning, fmt.Sprintf("10.1.%d.%d", k/256, k%256)
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}, {Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
	now := metav1.Now()
	p.Status.StartTime, p.CreationTimestamp = &now, now
	raw, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	out := &corev1.Pod{}
	if err := out.Unmarshal(raw); err != nil {
		t.Fatal(err)
	}
	return out
}

func realNode(t testing.TB, k int) *corev1.Node {
	t.Helper()
	labels := map[string]string{"network.topology.nvidia.com/leaf": fmt.Sprint("leaf-", k/32), "pitcrew.dev/pool": "train", hostnameLabel: fmt.Sprintf("gpu-node-%04d", k)}
	for i := range 50 {
		labels[fmt.Sprintf("feature.node.kubernetes.io/cpu-cpuid.F%02d", i)] = "true"
	}
	n := testNode(fmt.Sprintf("gpu-node-%04d", k), 8, labels)
	n.Annotations = map[string]string{"csi.volume.kubernetes.io/nodeid": `{"ebs.csi.aws.com":"i-0123456789abcdef0"}`, "volumes.kubernetes.io/controller-managed-attach-detach": "true",
		"nfd.node.kubernetes.io/feature-labels": fmt.Sprint(labels)}
	for _, kind := range []corev1.NodeConditionType{"MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficient", Message: "kubelet has sufficient of it"})
	}
	n.Status.Capacity = n.Status.Allocatable.DeepCopy()
	raw, err := n.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	out := &corev1.Node{}
	if err := out.Unmarshal(raw); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestTheCacheOfALargeClusterIsSmall fills the caches and views as informers do and weighs the heap. A tenth of the size is weighed unless
// PITCREW_HEAP is set to 1, which weighs 5,000 nodes and 100,000 pods.
func TestTheCacheOfALargeClusterIsSmall(t *testing.T) {
	nodes := 500
	if os.Getenv("PITCREW_HEAP") == "1" {
		nodes = 5000
	}
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 20)
	}
	before := heap()
	c := still(t)
	for k := range nodes {
		n, err := c.slimmer.node(realNode(t, k))
		if err != nil {
			t.Fatal(err)
		}
		c.set(n.(*corev1.Node))
		for i := range 20 {
			p, err := c.slimmer.pod(realPod(t, k, i))
			if err != nil {
				t.Fatal(err)
			}
			c.set(p)
		}
	}
	c.Fleet()
	got := heap() - before
	runtime.KeepAlive(c)
	scaled := got * 5000 / float64(nodes)
	t.Logf("%d nodes, %d pods: %.1f MiB; %.0f MiB at 5,000 nodes and 100,000 pods", nodes, nodes*20, got, scaled)
	if scaled > 160 {
		t.Errorf("%.0f MiB at 5,000 nodes and 100,000 pods, want at most 160", scaled)
	}
}
