package witness

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
)

// Kind is what a piece of evidence is. Its text is on the wire.
type Kind string

// The kinds of evidence beyond the silence of an agent and its kubelet.
const (
	PeersStalled Kind = "peers-stalled"  // ranks of a job across the node stand still beyond their own pace
	OutOfService Kind = "out-of-service" // the Node object is gone, or a taint says that the node is off
	ClaimSilent  Kind = "claim-silent"   // the claim on the job's checkpoint directory shows no progress
	ProcessGone  Kind = "process-gone"   // the node reported that the job's processes ended
)

// Evidence is one thing that is known of a silent node.
type Evidence struct {
	Kind   Kind
	Detail string // for people: what was seen, where
}

// Proof is what a kind of evidence proves.
type Proof struct {
	Kind Kind
	// Lost: with a silent agent and a silent kubelet it proves that the node is lost, without waiting for Options.LeaseWait.
	Lost bool
	// DespiteRack: also if the whole rack or pool is silent at once. DespiteFleet: also if most of the fleet is.
	DespiteRack, DespiteFleet bool
	// SecondAttempt: it proves that nothing of the job trains there, so that a second attempt may start without asking an operator.
	SecondAttempt bool
	Reason        string
}

// proofs is the table of what each kind proves.
var proofs = []Proof{
	{PeersStalled, true, true, false, true, "the job makes no step, so nothing trains across the node; a fabric that failed for everyone would look the same, so it proves nothing while most nodes are silent"},
	{OutOfService, true, true, true, true, "an operator or the cloud declared that nothing runs there"},
	{ClaimSilent, false, true, false, true, "no writer makes progress on the storage that both sides see; it says nothing about the node itself, and an outage of the storage would look the same"},
	{ProcessGone, false, false, false, true, "the node itself reported the end of the processes; it says nothing about the node afterwards"},
}

// Proofs is the table of what each kind of evidence proves.
func Proofs() []Proof { return slices.Clone(proofs) }

// Proves is the row of the table for a kind; the zero value, which proves nothing, for an unknown one.
func (k Kind) Proves() Proof {
	if i := slices.IndexFunc(proofs, func(p Proof) bool { return p.Kind == k }); i >= 0 {
		return proofs[i]
	}
	return Proof{Kind: k}
}

// AllowsSecondAttempt reports whether any of the evidence proves that nothing of the job trains on the node. Without it an operator has to be
// asked: a node behind a partition may train on over RDMA and write checkpoints.
func AllowsSecondAttempt(all []Evidence) bool {
	return slices.ContainsFunc(all, func(e Evidence) bool { return e.Kind.Proves().SecondAttempt })
}

// silenceAlone ends the text of an event without evidence.
const silenceAlone = "no evidence beyond silence"

// EvidenceOf reads the evidence that a node/lost event carries; none means that it rests on silence alone.
func EvidenceOf(e event.Event) (out []Evidence) {
	parts := strings.Split(e.Data.Evidence.Raw, separator)
	for _, s := range e.Data.Evidence.Signals {
		k := Kind(s.Signal)
		if k.Proves().Reason == "" {
			continue
		}
		found := Evidence{Kind: k}
		for _, p := range parts {
			if detail, ok := strings.CutPrefix(p, s.Signal+": "); ok {
				found.Detail = detail
			}
		}
		out = append(out, found)
	}
	return out
}

const separator = "; "

// sorted gives each kind once, in the order of the table.
func sorted(in []Evidence) (out []Evidence) {
	for _, p := range proofs {
		if i := slices.IndexFunc(in, func(e Evidence) bool { return e.Kind == p.Kind }); i >= 0 {
			e := in[i]
			e.Detail = strings.ReplaceAll(e.Detail, separator, ", ")
			out = append(out, e)
		}
	}
	return out
}

// Peers is what the surviving ranks of a node's jobs say together.
type Peers string

// What peers can say.
const (
	PeersUnknown  Peers = ""         // none can be read, or none is where standing still would mean something
	PeersStepping Peers = "stepping" // a rank that trains makes its steps, and none stands still: the node's ranks take part
	PeersStill    Peers = "stalled"
)

const (
	// stallFloor is the least time without a step that speaks for a stalled rank; stallPaces how many of its own slowest steps it must last.
	stallFloor = 700 * time.Millisecond
	stallPaces = 3
)

// training are the sections of the training loop in which a rank makes steps, so that standing still means something. In the others (setup,
// checkpoint, evaluation, held by a round of ours) a rank makes none, for minutes.
var training = map[string]bool{"step": true, "out": true, "other": true}

// JudgePeers is what ranks say that are not on the silent node. Ranks in a checkpoint are neither stalled nor stepping. A rank that ended with
// an exception makes no step either; one that ended well says nothing.
func JudgePeers(ranks map[int]bus.RankStatus) (Peers, string) {
	said, detail := PeersUnknown, ""
	for _, n := range slices.Sorted(maps.Keys(ranks)) {
		r := ranks[n]
		if r.Exit == "exception" {
			return PeersStill, fmt.Sprintf("rank %d ended with an exception", n)
		}
		if !training[r.Section] || r.Exit == "clean" {
			continue
		}
		if limit := max(stallFloor.Seconds(), stallPaces*r.P99StepS); r.StepAgeS > limit {
			return PeersStill, fmt.Sprintf("rank %d made no step for %.1f s, its slowest take %.2f s", n, r.StepAgeS, r.P99StepS)
		}
		if said == PeersUnknown {
			said, detail = PeersStepping, fmt.Sprintf("rank %d makes its steps", n)
		}
	}
	return said, detail
}
