package policy

import (
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/remediator/fleet"
)

// The facts that a decision may read besides the event. Their JSON names are also the CEL names. The table in facttable.go declares who
// fills each. A fact that is not known is zero, and a selector that asks for it does not match.

// Node is what is known of the event's node.
type Node struct {
	Name          string            `json:"name"`
	Pool          string            `json:"pool,omitempty"` // PoolOf(Labels) when empty
	Rack          string            `json:"rack,omitempty"` // RackOf(Labels) when empty
	Labels        map[string]string `json:"labels,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
	Ready         bool              `json:"ready,omitempty"`
	Unschedulable bool              `json:"unschedulable,omitempty"`
	Quarantined   bool              `json:"quarantined,omitempty"` // by Pitcrew
}

// Job is what is known of the gang that the event concerns; zero when none does.
type Job struct {
	APIVersion      string            `json:"apiVersion,omitempty"`
	Kind            string            `json:"kind,omitempty"`
	Namespace       string            `json:"namespace,omitempty"`
	Name            string            `json:"name,omitempty"`
	UID             string            `json:"uid,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	NamespaceLabels map[string]string `json:"namespaceLabels,omitempty"`
	PriorityClass   string            `json:"priorityClass,omitempty"` // of its pods
	WorldSize       int               `json:"worldSize,omitempty"`
	Attempt         int               `json:"attempt,omitempty"`
	Restarts        int               `json:"restarts,omitempty"`    // by Pitcrew, within 24 hours
	Launcher        bool              `json:"launcher,omitempty"`    // runs under pitcrew_torch.run
	RestartCost     float64           `json:"restartCost,omitempty"` // GPU-seconds; DefaultRestart of all ranks until the job has shown another
}

// Incident is what is known of the incident that the event joined.
type Incident struct {
	ID      string    `json:"id,omitempty"`
	Opened  time.Time `json:"opened,omitzero"`
	Signals []string  `json:"signals,omitempty"` // all that joined it, the cause first
	Events  int       `json:"events,omitempty"`
	Nodes   []string  `json:"nodes,omitempty"`
}

// rackLabels are the labels that name a node's rack, or what shares one leaf switch, the operator's own first. All but that one are among
// the tiers of package placement.
var rackLabels = []string{
	"pitcrew.dev/rack",
	"cloud.provider.com/topology-rack",
	"oci.oraclecloud.com/host.rack_id",
	"cloud.google.com/gce-topology-subblock",
	"topology.k8s.aws/network-node-layer-3",
	"fabric.topograph.run/tier-0",
	"network.topology.nvidia.com/leaf",
}

// RackLabels lists the labels that RackOf reads, the operator's own first.
func RackLabels() []string { return slices.Clone(rackLabels) }

// RackOf names the rack of a node with these labels, "" if none is given. The label is part of the name, so that equal values of different
// labels stay apart.
func RackOf(labels map[string]string) string {
	for _, l := range rackLabels {
		if v := labels[l]; v != "" {
			return l + "=" + v
		}
	}
	return ""
}

// PoolOf returns the pool of a node with these labels, "" if no label names one.
func PoolOf(labels map[string]string) string { return fleet.PoolOf(labels) }

// Includes reports whether the policy speaks for a node, and if not, why. Namespaces are not asked.
func (a AppliesTo) Includes(n Node) (why string, ok bool) {
	if len(a.Pools) > 0 {
		pool := n.Pool
		if pool == "" {
			pool = PoolOf(n.Labels)
		}
		if pool == "" {
			return "node " + quoted(n.Name) + " names no pool", false
		}
		if !anyGlob(a.Pools, pool) {
			return "pool " + pool + " is not in appliesTo.pools", false
		}
	}
	for _, k := range sortedKeys(a.Nodes) {
		if got, has := n.Labels[k]; !has {
			return "node " + quoted(n.Name) + " has no label " + k, false
		} else if want := a.Nodes[k]; got != want {
			return "node label " + k + " is " + quoted(got) + ", wanted " + quoted(want), false
		}
	}
	return "", true
}
