// Package placement chooses the node that takes a failed gang member: one of the same class, with room, and not farther from the
// rest of the gang than the node it replaces.
//
// Choose is a pure function. It promises the same answer for the same facts in any order, a typed reason for every node it did not
// choose, never a node that a hard constraint forbids, and never a silent downgrade: where nothing fits it chooses nothing and says
// what stood in the way. It reserves nothing and evicts nothing; the caller does, after asking.
package placement

import (
	"time"

	"github.com/pitcrew/pitcrew/remediator/fleet"
)

// Taints that Pitcrew writes.
const (
	QuarantineTaint = "pitcrew.dev/quarantine"
	ReservedTaint   = "pitcrew.dev/reserved" // its value is the incident that holds the node
	// SpareLabel marks nodes that are kept free for replacements; "true" is preferred among equals.
	SpareLabel = "pitcrew.dev/spare"
)

// RecentFault is how long a node's last fault counts against it among equals.
const RecentFault = 24 * time.Hour

// Node and Taint are the shared view of a node. Free counts out the pod to be replaced, see Cluster.FleetWithout.
type (
	Node  = fleet.Node
	Taint = fleet.Taint
)

// Toleration is a toleration of the pod, as Kubernetes reads it.
type Toleration struct{ Key, Operator, Value, Effect string }

// Mode says how near the replacement must be.
type Mode string

// The modes. The hard class holds in all of them.
const (
	Equivalent Mode = "equivalent" // not farther from the gang than the node it replaces, MaxTierLoss aside
	Any        Mode = "any"        // wherever there is room
	SameNode   Mode = "same-node"  // where it was
)

// NodeScope is the failed scope of a fault that concerns only its node.
const NodeScope = "node"

// Request is what is to be placed.
type Request struct {
	Incident string // a node reserved for it is free for it
	Faulty   string // the node to be replaced; it must be among the nodes, with its last known labels if it is gone
	// Failed is how far the fault reaches: NodeScope (or ""), or a label; then all nodes that share the faulty one's value are out.
	Failed string
	// Peers are the nodes of the gang's other members, one entry a member. A node that holds one takes no second, unless Share.
	Peers        []string
	Share        bool
	Requests     map[string]int64
	NodeSelector map[string]string
	Tolerations  []Toleration
	// Affinity is whatever else the pod asks of a node, nil for nothing. It must be a pure function of the node.
	Affinity func(*fleet.Node) (ok bool, why string)
	// Volumes reports whether a node can mount the pod's persistent volumes, and if not, why; nil: it has none. A pure function of the node.
	Volumes func(*fleet.Node) (ok bool, why string)
	// Apart are topology labels that no two members of the gang may share a value of, as the required anti-affinity of its pods says.
	Apart []string
	// Barred are, by topology label, the values that other pods have taken which the pod must not be near, each with the name of one.
	Barred map[string]map[string]string
	// Unfit is what is wrong with a node's hardware if its view does not say so; nil for nothing. Empty: nothing.
	Unfit func(node string) string
	// Claims are the pod's DRA resource claims. Where their devices are cannot be judged, so no other node is chosen for it.
	Claims []string
	// Exclude are nodes that are faulty as well, whatever is said of them now.
	Exclude []string
	// Keep bounds the candidates of a decision; 0 keeps all. The others are counted by reason.
	Keep int
	// Tiers are topology labels, nearest first; nil means Tiers(). One that neither the faulty node nor a peer carries says nothing and
	// is passed over.
	Tiers []string
	// HardLabels must be the same as on the faulty node (or, where that has lost one, as on all peers); nil means HardLabels().
	HardLabels  []string
	MaxTierLoss int
	Mode        Mode
	Now         time.Time
}

// Reason says why a node was not chosen.
type Reason string

// The reasons, in the order in which they are looked for.
const (
	Chosen        Reason = "chosen"
	NotSameNode   Reason = "not-same-node"
	Faulty        Reason = "faulty"
	FailedDomain  Reason = "failed-domain"
	NotReady      Reason = "not-ready"
	Quarantined   Reason = "quarantined"
	Cordoned      Reason = "cordoned"
	Held          Reason = "held"
	OpenCondition Reason = "open-condition"
	ReservedOther Reason = "reserved"
	HoldsPeer     Reason = "holds-peer"
	Tainted       Reason = "tainted"
	Selector      Reason = "node-selector"
	AffinityNo    Reason = "affinity"
	VolumeAway    Reason = "volume"
	AntiAffinity  Reason = "anti-affinity"
	DRAClaim      Reason = "dra-claim"
	Class         Reason = "class"
	NoRoom        Reason = "no-room"
	TooFar        Reason = "too-far"
	RankedLower   Reason = "ranked-lower"
)

// Candidate is a node and what became of it.
type Candidate struct {
	Node   string `json:"node"`
	Chosen bool   `json:"chosen,omitempty"`
	Reason Reason `json:"reason"`
	Detail string `json:"detail,omitempty"`
	// MaxDistance and SumDistance are over the gang's peers, in tiers: 0 is the nearest domain, the number of tiers is "nothing in
	// common". Without peers they are the distance to the faulty node.
	MaxDistance int `json:"maxDistance"`
	SumDistance int `json:"sumDistance"`
	TierLoss    int `json:"tierLoss"`
}

// Decision is the choice with its whole path.
type Decision struct {
	Node       string `json:"node,omitempty"` // "" when nothing fits
	TierLoss   int    `json:"tierLoss"`
	Equivalent bool   `json:"equivalent"` // of the same class and not farther than the node it replaces
	Reason     string `json:"reason"`
	// Candidates are the eligible nodes by rank, then the others by name; Request.Keep bounds them.
	Candidates []Candidate    `json:"candidates"`
	Eligible   int            `json:"eligible,omitempty"` // how many nodes would do
	Rejected   map[Reason]int `json:"rejected,omitempty"` // how many would not, by the reason
}
