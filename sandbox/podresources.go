package sandbox

import (
	"context"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// podResources answers the kubelet's pod-resources API (v1) from the GPU pool.
type podResources struct {
	podresources.UnimplementedPodResourcesListerServer
	pool *gpuPool
}

func servePodResources(socket string, pool *gpuPool) (*grpc.Server, error) {
	_ = os.Remove(socket) // of an earlier boot
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	srv := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(srv, &podResources{pool: pool})
	go func() { _ = srv.Serve(l) }()
	return srv, nil
}

func (p *podResources) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: p.pods()}, nil
}

func (p *podResources) Get(_ context.Context, r *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	for _, pod := range p.pods() {
		if pod.Name == r.PodName && pod.Namespace == r.PodNamespace {
			return &podresources.GetPodResourcesResponse{PodResources: pod}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "pod %s/%s has no devices on this node", r.PodNamespace, r.PodName)
}

func (p *podResources) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	resp := &podresources.AllocatableResourcesResponse{}
	for _, g := range p.pool.gpus {
		resp.Devices = append(resp.Devices, &podresources.ContainerDevices{ResourceName: gpuResource, DeviceIds: []string{g.UUID}})
	}
	return resp, nil
}

func (p *podResources) pods() []*podresources.PodResources {
	var pods []*podresources.PodResources
	index := map[gpuOwner]*podresources.ContainerDevices{}
	gpus, owners := p.pool.assigned()
	for i, o := range owners {
		if index[o] == nil {
			index[o] = &podresources.ContainerDevices{ResourceName: gpuResource}
			c := &podresources.ContainerResources{Name: o.container, Devices: []*podresources.ContainerDevices{index[o]}}
			if n := len(pods); n > 0 && pods[n-1].Name == o.name && pods[n-1].Namespace == o.namespace {
				pods[n-1].Containers = append(pods[n-1].Containers, c)
			} else {
				pods = append(pods, &podresources.PodResources{Name: o.name, Namespace: o.namespace, Containers: []*podresources.ContainerResources{c}})
			}
		}
		index[o].DeviceIds = append(index[o].DeviceIds, gpus[i].UUID)
	}
	return pods
}
