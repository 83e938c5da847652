// Package fleet holds the one view of a node that the cluster watch, placement, policies and guards share.
//
// A Node is immutable. The watch replaces a node's view when the node, a pod on it or a reservation of it changes, so a pointer can be
// kept and read from any goroutine without a lock. The package decides nothing and talks to no API server.
package fleet

import (
	"slices"
	"strings"
	"time"
)

// Node is a node as the watches show it. Nobody may change it, its maps or its slices: all readers share them.
type Node struct {
	Name   string
	UID    string
	BootID string
	Pool   string // PoolOf its labels; empty: no label names a pool

	Labels      map[string]string
	Annotations map[string]string

	Ready         bool
	Unschedulable bool
	OutOfService  string // the evidence that the node is off: the taint that says so; empty: none
	Quarantined   string // the incident in Pitcrew's taint; empty: not quarantined by Pitcrew
	FoundCordoned bool   // quarantined by Pitcrew, cordoned before by someone else
	Reserved      string // the incident that reserved it; empty: none
	Held          string // why nobody may touch it; empty: no hold
	Healthy       string // status of the condition PitcrewHealthy: True, False or Unknown; empty: never set
	KubeletAddr   string // host:port; empty if the node has no InternalIP

	Taints []Taint
	// Free is what is left of each allocatable resource, in base units (cpu in thousandths), after the requests of the pods that are
	// bound or nominated to the node and of reservations whose pod is not there yet. A resource that is missing does not exist here.
	Free map[string]int64

	GPUs GPUs // that it offers; how many of them are free is in Free

	Condition string    // what its agent reports to be wrong with its hardware; empty: nothing
	LastFault time.Time // zero if none is known
}

// GPUs are the whole GPUs of a node, under the resource by which pods ask for them.
type GPUs struct {
	Resource string // empty: the node offers none
	Total    int64
}

// Taint is a taint of a node.
type Taint struct{ Key, Value, Effect string }

// Taints that mark a node as off. Its pods no longer run, and Kubernetes ends them without asking the kubelet.
const (
	TaintOutOfService = "node.kubernetes.io/out-of-service"
	TaintShutdown     = "node.cloudprovider.kubernetes.io/shutdown"
)

// OutOfService returns the taint that says the node is off, as key=value; empty if there is none.
func OutOfService(taints []Taint) string {
	i := slices.IndexFunc(taints, func(t Taint) bool { return t.Key == TaintOutOfService || t.Key == TaintShutdown })
	switch {
	case i < 0:
		return ""
	case taints[i].Value == "":
		return taints[i].Key
	}
	return taints[i].Key + "=" + taints[i].Value
}

// poolLabels are the labels that name a node's pool, the operator's own first.
var poolLabels = []string{
	"pitcrew.dev/pool",
	"cloud.google.com/gke-nodepool",
	"eks.amazonaws.com/nodegroup",
	"karpenter.sh/nodepool",
	"kubernetes.azure.com/agentpool",
	"oci.oraclecloud.com/oke-node-pool",
}

// PoolOf returns the pool of a node with these labels; empty if no label names one.
func PoolOf(labels map[string]string) string {
	for _, l := range poolLabels {
		if pool := labels[l]; pool != "" {
			return pool
		}
	}
	return ""
}

// Find returns the node of that name in a slice sorted by name, as Cluster.Fleet returns it; nil if there is none.
func Find(nodes []*Node, name string) *Node {
	i, ok := slices.BinarySearchFunc(nodes, name, func(n *Node, name string) int { return strings.Compare(n.Name, name) })
	if !ok {
		return nil
	}
	return nodes[i]
}

// String writes a taint as kubectl does: key=value:effect.
func (t Taint) String() string {
	s := t.Key
	if t.Value != "" {
		s += "=" + t.Value
	}
	return s + ":" + t.Effect
}
