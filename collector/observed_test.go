package collector

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
	"github.com/pitcrew/pitcrew/receivers/process/proctest"
)

// holders serves pod-resources: pod train/owner was given GPU-a.
type holders struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
}

func (holders) List(context.Context, *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	return &podresourcesv1.ListPodResourcesResponse{PodResources: []*podresourcesv1.PodResources{{Namespace: "train", Name: "owner", Containers: []*podresourcesv1.ContainerResources{
		{Name: "main", Devices: []*podresourcesv1.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-a"}}}}}}}}, nil
}

func TestTheAgentTellsOfAProcessOnAnothersGPUAndOfAPortThatGoesDown(t *testing.T) {
	s := bustest.Server(t)
	dir := t.TempDir()
	surround(t, dir, s.URL())

	socket := filepath.Join(dir, "kubelet.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	kubelet := grpc.NewServer()
	podresourcesv1.RegisterPodResourcesListerServer(kubelet, holders{})
	go func() { _ = kubelet.Serve(l) }()
	defer kubelet.Stop()

	proc, logs := proctest.New(t), filepath.Join(dir, "containers")
	proc.GPU(0, "GPU-a", "0000:1a:00")
	if err := os.Mkdir(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	for k, c := range []struct{ pod, uid, id string }{
		{"owner", "11111111-2222-3333-4444-555555555555", strings.Repeat("a", 64)}, {"thief", "66666666-7777-8888-9999-aaaaaaaaaaaa", strings.Repeat("b", 64)},
	} {
		proc.Process(100+k, 1000, "python3", "/kubepods/pod"+c.uid+"/"+c.id, []string{"python3", c.pod + ".py"}, "/dev/nvidia0")
		if err := os.WriteFile(filepath.Join(logs, c.pod+"_train_main-"+c.id+".log"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	proc.Process(99, 10, "nv-hostengine", "/system.slice/nvidia-dcgm.service", []string{"nv-hostengine"}, "/dev/nvidia0")

	port := filepath.Join(dir, "sys/class/infiniband/mlx5_0/ports/1")
	put := func(file, content string) {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(filepath.Join(dir, "sys/class/infiniband/mlx5_0/fw_ver"), "28.39.1002")
	for file, content := range map[string]string{"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"} {
		put(filepath.Join(port, file), content)
	}
	for k, v := range map[string]string{"PITCREW_PROC": proc.Root, "PITCREW_CONTAINER_LOGS": logs, "PITCREW_SYS": filepath.Join(dir, "sys"), "PITCREW_POD_RESOURCES": socket} {
		t.Setenv(k, v)
	}
	b := bustest.Connect(t, s.URL())
	defer run(t, Agent)()
	down := time.AfterFunc(2*time.Second, func() { put(filepath.Join(port, "state"), "1: DOWN") })
	defer down.Stop()

	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	got := map[string]string{}
	err = b.Events(ctx, "", func(_ context.Context, d bus.Delivery) error {
		e := d.Event.Data
		if e.Cause.Kind == "isolation" && e.Target.Pod != "thief" {
			t.Errorf("told of %s: %s", e.Target.Pod, e.Evidence.Raw)
		}
		got[e.Cause.Signal()] = e.Target.GPU + " " + e.Target.Pod + " " + e.Evidence.Raw
		if len(got) == 2 {
			cancel()
		}
		return nil
	}, func(subject string, err error) { t.Errorf("%s: %v", subject, err) })
	if ctx.Err() == nil || len(got) != 2 {
		t.Fatalf("got %v, %v", got, err)
	}
	if raw := got["isolation/foreign-process"]; !strings.HasPrefix(raw, "GPU-a thief ") || !strings.Contains(raw, "thief.py") {
		t.Errorf("isolation: %q", raw)
	}
	if raw := got["fabric/port-down"]; !strings.Contains(raw, "mlx5_0/1: DOWN, before ACTIVE") {
		t.Errorf("fabric: %q", raw)
	}
}
