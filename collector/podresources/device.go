package podresources

import (
	"slices"
	"strconv"
	"strings"

	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// numbered is the key of a device that is told by the GPU's number and not by its UUID.
func numbered(i int) string { return "#" + strconv.Itoa(i) }

// deviceOf says which GPU a device id means.
//
//	GPU-<uuid>                  the whole GPU
//	GPU-<uuid>::3               a replica of a shared one (time slicing, MPS)
//	MIG-GPU-<uuid>/5/0          an instance, as drivers before R470 name it
//	MIG-<uuid>                  an instance: only the driver knows whose; kept under its own name
//	nvidia0, nvidia0/gi3        GKE: by number, whole or an instance
//	nvidia0/gi3/vgpu1           GKE: a share of an instance
func deviceOf(id string) string {
	id, _, _ = strings.Cut(id, "::")
	if rest, ok := strings.CutPrefix(id, "MIG-GPU-"); ok {
		uuid, _, _ := strings.Cut(rest, "/")
		return "GPU-" + uuid
	}
	if rest, ok := strings.CutPrefix(id, "nvidia"); ok {
		number, _, _ := strings.Cut(rest, "/")
		if n, err := strconv.ParseUint(number, 10, 16); err == nil {
			return numbered(int(n))
		}
	}
	return id
}

// draDriver is NVIDIA's driver for dynamic resource allocation; it names a GPU gpu-<n>, an instance of one gpu-<n>-mig-<profile>-<place>.
const draDriver = "gpu.nvidia.com"

func claimed(r *podresourcesv1.ClaimResource) (string, bool) {
	if r.GetDriverName() != draDriver {
		return "", false
	}
	rest, ok := strings.CutPrefix(r.GetDeviceName(), "gpu-")
	if !ok {
		return "", false
	}
	number, _, _ := strings.Cut(rest, "-")
	n, err := strconv.ParseUint(number, 10, 16)
	return numbered(int(n)), err == nil
}

// holdersOf turns an answer round: who holds each device. A container that holds several parts of one is named once.
func holdersOf(r *podresourcesv1.ListPodResourcesResponse) map[string][]Holder {
	out := map[string][]Holder{}
	add := func(d string, h Holder) {
		if d != "" && len(out[d]) < maxHolders && !slices.Contains(out[d], h) {
			out[d] = append(out[d], h)
		}
	}
	for _, pod := range r.GetPodResources() {
		for _, c := range pod.GetContainers() {
			h := Holder{pod.GetNamespace(), pod.GetName(), c.GetName()}
			for _, d := range c.GetDevices() {
				for _, id := range d.GetDeviceIds() {
					add(deviceOf(id), h)
				}
			}
			for _, claim := range c.GetDynamicResources() {
				for _, res := range claim.GetClaimResources() {
					if d, ok := claimed(res); ok {
						add(d, h)
					}
				}
			}
		}
	}
	return out
}
