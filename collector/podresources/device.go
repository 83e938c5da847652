package podresources

import (
	"slices"
	"strconv"
	"strings"

	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// part is a device, or a part of one, as something names it.
type part struct {
	device   string // a GPU's UUID, an instance's, or the name under which another source will explain it
	instance string // GPU instance, or GPU instance/compute instance, where the name says it
}

// numbered is the name of a GPU that is told by its number and not by its UUID.
func numbered(i int) string { return "#" + strconv.Itoa(i) }

// claimed is the name of a device of a DRA claim.
func claimed(driver, pool, device string) string { return "dra:" + driver + "/" + pool + "/" + device }

// deviceOf says which GPU a device id means.
//
//	GPU-<uuid>                  the whole GPU
//	GPU-<uuid>::3               a replica of a shared one (time slicing, MPS)
//	MIG-GPU-<uuid>/5/0          an instance, as drivers before R470 name it
//	MIG-<uuid>                  an instance: kept under its own name, until somebody says whose it is
//	nvidia0, nvidia0/gi3        GKE: by number, whole or an instance
//	nvidia0/gi3/vgpu1           GKE: a share of an instance
func deviceOf(id string) part {
	id, _, _ = strings.Cut(id, "::")
	if rest, ok := strings.CutPrefix(id, "MIG-GPU-"); ok {
		uuid, instance, _ := strings.Cut(rest, "/")
		return part{"GPU-" + uuid, instance}
	}
	if rest, ok := strings.CutPrefix(id, "nvidia"); ok {
		number, rest, _ := strings.Cut(rest, "/")
		if n, err := strconv.ParseUint(number, 10, 16); err == nil {
			gi, _, _ := strings.Cut(rest, "/")
			gi, found := strings.CutPrefix(gi, "gi")
			if !found {
				gi = ""
			}
			return part{numbered(int(n)), gi}
		}
	}
	return part{id, ""}
}

// draDriver is NVIDIA's driver for dynamic resource allocation. It names a GPU gpu-<minor>, an instance of one gpu-<minor>-mig-…; where no
// ResourceSlice says more, the minor number is taken for DCGM's number of the GPU.
const draDriver = "gpu.nvidia.com"

func claimedNumber(driver, device string) (string, bool) {
	rest, ok := strings.CutPrefix(device, "gpu-")
	if driver != draDriver || !ok {
		return "", false
	}
	number, _, _ := strings.Cut(rest, "-")
	n, err := strconv.ParseUint(number, 10, 16)
	return numbered(int(n)), err == nil
}

// sameInstance says whether two names of instances of one GPU can mean one instance: a name without a compute instance means all of its
// GPU instance, an empty one all of the GPU.
func sameInstance(a, b string) bool {
	gi1, ci1, _ := strings.Cut(a, "/")
	gi2, ci2, _ := strings.Cut(b, "/")
	return gi1 == "" || gi2 == "" || gi1 == gi2 && (ci1 == "" || ci2 == "" || ci1 == ci2)
}

// share is a container's hold on a device or on a part of it.
type share struct {
	Holder
	instance string
	claim    string // under which name of a claim; empty: by the device plugin
}

// sharesOf turns an answer round: who holds each device. A container that holds several parts of one alike is named once.
func sharesOf(r *podresourcesv1.ListPodResourcesResponse) map[string][]share {
	out := map[string][]share{}
	add := func(d string, s share) {
		if d != "" && len(out) < maxDevices && len(out[d]) < maxHolders && !slices.Contains(out[d], s) {
			out[d] = append(out[d], s)
		}
	}
	for _, pod := range r.GetPodResources() {
		for _, c := range pod.GetContainers() {
			h := Holder{pod.GetNamespace(), pod.GetName(), c.GetName()}
			for _, d := range c.GetDevices() {
				for _, id := range d.GetDeviceIds() {
					p := deviceOf(id)
					add(p.device, share{Holder: h, instance: p.instance})
				}
			}
			for _, claim := range c.GetDynamicResources() {
				for _, res := range claim.GetClaimResources() {
					name := claimed(res.GetDriverName(), res.GetPoolName(), res.GetDeviceName())
					add(name, share{Holder: h})
					if n, ok := claimedNumber(res.GetDriverName(), res.GetDeviceName()); ok {
						add(n, share{Holder: h, claim: name})
					}
				}
			}
		}
	}
	return out
}
