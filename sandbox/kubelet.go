package sandbox

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	leaseDuration  = 40 * time.Second // the kubelet's defaults
	leaseRenewal   = 10 * time.Second
	statusInterval = 5 * time.Minute
)

// kubelet is one boot of a node. Cancelling its context is the power cut: no word more goes to the API server, and its pods' processes
// are for the caller to kill.
type kubelet struct {
	node   *Node
	client kubernetes.Interface
	gpus   *gpuPool
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu   sync.Mutex
	pods map[types.UID]*podWorker
}

func (n *Node) startKubelet(ctx context.Context) error {
	client, err := n.client()
	if err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	k := &kubelet{node: n, client: client, gpus: newGPUPool(n.GPUs), cancel: cancel, pods: map[types.UID]*podWorker{}}
	port, err := k.serve(ctx)
	if err != nil {
		cancel()
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	resources, err := servePodResources(n.PodResources(), k.gpus)
	if err != nil {
		cancel()
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	if err := k.register(ctx, port); err != nil {
		cancel()
		resources.Stop()
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	k.tasks.Go(func() { k.renew(ctx) })
	k.tasks.Go(func() { k.watch(ctx) })
	k.tasks.Go(func() { <-ctx.Done(); resources.Stop() })
	n.mu.Lock()
	n.kubelet = k
	n.mu.Unlock()
	return nil
}

// serve answers on the kubelet's address, over TLS as a kubelet does: /healthz and /livez say ok to anyone.
func (k *kubelet) serve(ctx context.Context) (int, error) {
	pair, err := k.node.sandbox.plane.ca.issue("system:node:"+k.node.Name, []string{"system:nodes"}, k.node.IP)
	if err != nil {
		return 0, err
	}
	cert, err := tls.X509KeyPair(pair.cert, pair.key)
	if err != nil {
		return 0, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(k.node.IP, "0"))
	if err != nil {
		return 0, err
	}
	mux := http.NewServeMux()
	for _, path := range []string{"/healthz", "/livez"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	}
	srv := &http.Server{Handler: mux, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}}
	k.tasks.Go(func() { _ = srv.ServeTLS(listener{l, k.node.link}, "", "") })
	k.tasks.Go(func() { <-ctx.Done(); srv.Close() })
	return l.Addr().(*net.TCPAddr).Port, nil
}

// register creates the node or, after a boot, says that it is back.
func (k *kubelet) register(ctx context.Context, port int) error {
	want := k.object(port)
	nodes := k.client.CoreV1().Nodes()
	_, err := nodes.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = k.patchNodeStatus(ctx, want)
	}
	if err != nil {
		return err
	}
	return k.renewOnce(ctx)
}

func (k *kubelet) object(port int) *corev1.Node {
	n := k.node
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("96"), corev1.ResourceMemory: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("110"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"), gpuResource: *resource.NewQuantity(int64(len(n.GPUs)), resource.DecimalSI),
	}
	now := metav1.Now()
	condition := func(t corev1.NodeConditionType, s corev1.ConditionStatus, reason string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: t, Status: s, Reason: reason, LastHeartbeatTime: now, LastTransitionTime: now}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.labels()},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity,
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.IP}, {Type: corev1.NodeHostName, Address: n.Name}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(port)}},
			NodeInfo: corev1.NodeSystemInfo{BootID: n.BootID(), MachineID: n.Name, SystemUUID: n.Name, KubeletVersion: "v1.36.3-pitcrew-sandbox",
				OSImage: "pitcrew sandbox", OperatingSystem: "linux", Architecture: "amd64", ContainerRuntimeVersion: "sandbox://1", KernelVersion: "6.8.0-sandbox"},
			Conditions: []corev1.NodeCondition{
				condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady"),
				condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory"),
				condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure"),
				condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID"),
			},
		},
	}
}

func (n *Node) labels() map[string]string {
	labels := map[string]string{
		"kubernetes.io/hostname": n.Name, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
		"node.kubernetes.io/instance-type": "hgx-h100-8", "topology.kubernetes.io/zone": n.Zone, "topology.kubernetes.io/region": "sandbox",
		"fabric.topograph.run/tier-0": n.Rack, "fabric.topograph.run/tier-1": n.Spine,
		"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": GPUProduct, "nvidia.com/gpu.count": strconv.Itoa(len(n.GPUs)),
		"nvidia.com/gpu.memory": "81559", "nvidia.com/mig.strategy": "none", "nvidia.com/cuda.driver-version.major": "570",
		"nvidia.com/cuda.driver-version.full": DriverVersion,
	}
	for key, value := range n.Labels {
		labels[key] = value
	}
	return labels
}

func (k *kubelet) patchNodeStatus(ctx context.Context, want *corev1.Node) error {
	patch, err := json.Marshal(map[string]any{"status": want.Status})
	if err != nil {
		return err
	}
	_, err = k.client.CoreV1().Nodes().Patch(ctx, want.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// renew keeps the node's lease and, seldom, its heartbeat in the status.
func (k *kubelet) renew(ctx context.Context) {
	lease, status := time.NewTicker(leaseRenewal), time.NewTicker(statusInterval)
	defer lease.Stop()
	defer status.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-lease.C:
			_ = k.renewOnce(ctx) // the next tick tries again, as a kubelet does
		case <-status.C:
			now := metav1.Now()
			patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []map[string]any{
				{"type": corev1.NodeReady, "status": corev1.ConditionTrue, "reason": "KubeletReady", "lastHeartbeatTime": now}}}})
			if err == nil {
				_, _ = k.client.CoreV1().Nodes().Patch(ctx, k.node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
			}
		}
	}
}

func (k *kubelet) renewOnce(ctx context.Context) error {
	leases := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	seconds, now := int32(leaseDuration.Seconds()), metav1.NowMicro()
	lease, err := leases.Get(ctx, k.node.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: k.node.Name},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &k.node.Name, LeaseDurationSeconds: &seconds, RenewTime: &now}}, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	lease.Spec.RenewTime = &now
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	return err
}

// watch follows the pods bound to this node.
func (k *kubelet) watch(ctx context.Context) {
	lw := cache.NewListWatchFromClient(k.client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, fields.OneTermEqualSelector("spec.nodeName", k.node.Name))
	informer := cache.NewSharedInformer(lw, &corev1.Pod{}, 0)
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { k.observe(ctx, o.(*corev1.Pod), false) },
		UpdateFunc: func(_, o any) { k.observe(ctx, o.(*corev1.Pod), false) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if pod, ok := o.(*corev1.Pod); ok {
				k.observe(ctx, pod, true)
			}
		},
	})
	informer.RunWithContext(ctx)
}

func (k *kubelet) observe(ctx context.Context, pod *corev1.Pod, gone bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := k.pods[pod.UID]
	if w == nil {
		if gone {
			return
		}
		w = newPodWorker(k, pod)
		k.pods[pod.UID] = w
		k.tasks.Go(func() {
			w.run(ctx)
			k.mu.Lock()
			delete(k.pods, pod.UID)
			k.mu.Unlock()
		})
	}
	w.update(pod, gone)
}

// PodsDir is the kubelet's pod directory, in the form <PodsDir>/<uid>/volumes/kubernetes.io~empty-dir/<name>.
func (n *Node) PodsDir() string { return filepath.Join(n.dir, "kubelet", "pods") }

// PodResources is the path of the kubelet's pod-resources socket.
func (n *Node) PodResources() string {
	return filepath.Join(n.dir, "kubelet", "pod-resources", "kubelet.sock")
}
