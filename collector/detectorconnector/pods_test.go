package detectorconnector

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/pitcrew/pitcrew/event"
)

// kubelet serves pod-resources as the kubelet does.
type kubelet struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	pods []*podresourcesv1.PodResources
}

func (k *kubelet) List(context.Context, *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	return &podresourcesv1.ListPodResourcesResponse{PodResources: k.pods}, nil
}

func (k *kubelet) serve(t *testing.T, socket string) {
	t.Helper()
	serve(t, k, socket)
}

func serve(t *testing.T, k podresourcesv1.PodResourcesListerServer, socket string) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	podresourcesv1.RegisterPodResourcesListerServer(s, k)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
}

func pod(ns, name string, gpus ...string) *podresourcesv1.PodResources {
	return &podresourcesv1.PodResources{Namespace: ns, Name: name, Containers: []*podresourcesv1.ContainerResources{
		{Name: "main", Devices: []*podresourcesv1.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: gpus}}},
	}}
}

func TestAGpuIsNamedByThePodThatHoldsIt(t *testing.T) {
	cases := map[string]struct {
		pods []*podresourcesv1.PodResources
		want string
	}{
		"held by one pod":       {[]*podresourcesv1.PodResources{pod("train", "llm-1", "GPU-0", "GPU-1")}, "train/llm-1"},
		"a time-sliced replica": {[]*podresourcesv1.PodResources{pod("train", "llm-1", "GPU-1::3")}, "train/llm-1"},
		"shared by two pods":    {[]*podresourcesv1.PodResources{pod("a", "x", "GPU-1::0"), pod("b", "y", "GPU-1::1")}, "/"},
		"free":                  {[]*podresourcesv1.PodResources{pod("train", "llm-1", "GPU-0")}, "/"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			cfg := config(t)
			cfg.PodResourcesSocket = filepath.Join(t.TempDir(), "k.sock")
			(&kubelet{pods: c.pods}).serve(t, cfg.PodResourcesSocket)
			r := start(t, cfg)
			r.line(t, xid79("hw.id", "GPU-1"))
			d := r.want(t, "xid/79")[0].Data.Target
			if got := d.Namespace + "/" + d.Pod; got != c.want {
				t.Errorf("pod %s, want %s", got, c.want)
			}
		})
	}
}

func TestTheProcessOfALineTellsWhoseFaultItIsWhereSeveralShareTheGPU(t *testing.T) {
	const uid = "1f2e3d4c-5b6a-4798-8697-a5b4c3d2e1f0"
	shared := []*podresourcesv1.PodResources{pod("a", "x", "GPU-1::0"), pod("b", "y", "GPU-1::1")}
	for name, c := range map[string]struct {
		pods []*podresourcesv1.PodResources
		code int
		want event.Target
	}{
		"the application's own fault on a shared GPU": {shared, 31, event.Target{PodUID: uid}},
		"a lost GPU is lost to all who share it":      {shared, 79, event.Target{}},
		"the GPU is one pod's":                        {[]*podresourcesv1.PodResources{pod("a", "x", "GPU-1")}, 31, event.Target{Namespace: "a", Pod: "x"}},
		"nobody was given the GPU":                    {nil, 31, event.Target{PodUID: uid}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t)
			cfg.PodResourcesSocket = filepath.Join(t.TempDir(), "k.sock")
			(&kubelet{pods: c.pods}).serve(t, cfg.PodResourcesSocket)
			r := start(t, cfg)
			r.line(t, kernelLine("pitcrew.kernel.xid", map[string]any{
				"pitcrew.xid.code": c.code, "pitcrew.kmsg.seq": 7, "hw.pci": "0000:1a:00", "hw.id": "GPU-1", "k8s.pod.uid": uid}))
			es, _ := r.found(t)
			if got := es[0].Data.Target; got.Namespace != c.want.Namespace || got.Pod != c.want.Pod || got.PodUID != c.want.PodUID {
				t.Errorf("target %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestAGpusFaultNamesTheRankThatUsesIt(t *testing.T) {
	cfg := config(t)
	cfg.PodResourcesSocket = filepath.Join(t.TempDir(), "k.sock")
	(&kubelet{pods: []*podresourcesv1.PodResources{pod("a", "x", "GPU-1", "GPU-2")}}).serve(t, cfg.PodResourcesSocket)
	r := start(t, cfg)
	r.sample(t, samples(t0, point{"pitcrew.train.step", 7, map[string]any{"hw.id": "GPU-1", "k8s.pod.uid": "u", "pitcrew.rank": 5}}))
	r.line(t, xid79("hw.id", "GPU-1"))
	r.line(t, xid79("hw.id", "GPU-2"))
	es, _ := r.found(t)
	if got := es[0].Data.Target.Rank; got == nil || *got != 5 {
		t.Errorf("rank %v, want 5", got)
	}
	if got := es[1].Data.Target.Rank; got != nil {
		t.Errorf("the other GPU's rank is %d, and nobody said so", *got)
	}
}
