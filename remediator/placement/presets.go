package placement

import "slices"

// Preset names the topology labels of one provider, nearest first.
type Preset struct {
	Name  string
	Tiers []string
}

var presets = []Preset{
	{"topograph", []string{"accelerator.topograph.run/sub-domain", "accelerator.topograph.run/domain", "fabric.topograph.run/tier-0",
		"fabric.topograph.run/tier-1", "fabric.topograph.run/tier-2", "fabric.topograph.run/tier-3"}},
	{"topograph-old", []string{"network.topology.nvidia.com/accelerator", "network.topology.nvidia.com/leaf",
		"network.topology.nvidia.com/spine", "network.topology.nvidia.com/core"}},
	{"nvlink", []string{"nvidia.com/gpu.clique"}},
	{"aws", []string{"topology.k8s.aws/capacity-block-id", "topology.k8s.aws/network-node-layer-3",
		"topology.k8s.aws/network-node-layer-2", "topology.k8s.aws/network-node-layer-1"}},
	{"gcp", []string{"cloud.google.com/gce-topology-host", "cloud.google.com/gce-topology-subblock", "cloud.google.com/gce-topology-block"}},
	{"oci", []string{"oci.oraclecloud.com/host.rack_id", "oci.oraclecloud.com/host.network_block_id"}},
	{"kueue", []string{"cloud.provider.com/topology-rack", "cloud.provider.com/topology-block"}},
	{"zone", []string{"topology.kubernetes.io/zone", "topology.kubernetes.io/region"}},
}

// nvlinkLabels name NVLink domains. Their values are identities of their own, not places within a switch: two nodes of one domain
// may hang on different leaves and are still nearest to each other.
var nvlinkLabels = map[string]bool{
	"accelerator.topograph.run/sub-domain":    true,
	"accelerator.topograph.run/domain":        true,
	"network.topology.nvidia.com/accelerator": true,
	"nvidia.com/gpu.clique":                   true,
	"topology.k8s.aws/capacity-block-id":      true,
}

// Presets lists the known providers.
func Presets() []Preset {
	out := slices.Clone(presets)
	for i := range out {
		out[i].Tiers = slices.Clone(out[i].Tiers)
	}
	return out
}

// Tiers is the default order: NVLink domains of every provider first, then their networks, then zone and region. A cluster carries
// the labels of one or two providers, and labels that are not there are passed over.
func Tiers() []string {
	var near, far []string
	for _, p := range presets {
		for _, l := range p.Tiers {
			if nvlinkLabels[l] {
				near = append(near, l)
			} else {
				far = append(far, l)
			}
		}
	}
	return append(near, far...)
}

// HardLabels is the default class: GPU product and memory, MIG layout, driver major (both of GFD's spellings), what AMD's node labeller and
// Ascend's device plugin say of theirs, instance type, architecture and system. The count of GPUs and RDMA resources are judged by room, not
// by label: a node that lost a GPU also loses it in its label. Add topology.kubernetes.io/zone where volumes are bound to one.
func HardLabels() []string {
	return []string{
		"nvidia.com/gpu.product",
		"nvidia.com/gpu.memory",
		"nvidia.com/mig.strategy",
		"nvidia.com/mig.config",
		"nvidia.com/cuda.driver.major",
		"nvidia.com/cuda.driver-version.major",
		"amd.com/gpu.device-id",
		"amd.com/gpu.vram",
		"accelerator",
		"accelerator-type",
		"node.kubernetes.io/npu.chip.name",
		"node.kubernetes.io/instance-type",
		"kubernetes.io/arch",
		"kubernetes.io/os",
	}
}
