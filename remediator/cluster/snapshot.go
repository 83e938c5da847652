package cluster

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobsetv1alpha2 "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/placement"
)

// Nodes copies FleetWithout for callers that change it.
func (c *Cluster) Nodes(without ...string) []placement.Node {
	views := c.FleetWithout(without...)
	out := make([]placement.Node, len(views))
	for i, n := range views {
		out[i] = *n
	}
	return out
}

// requestsOf is what a reservation counts against its node.
func requestsOf(m *corev1.ConfigMap) (asked map[string]int64) {
	if err := json.Unmarshal([]byte(m.Data[keyRequests]), &asked); err != nil {
		return nil
	}
	return asked
}

// reservedFor says, as the placement policy does, whether a reservation means this pod.
func reservedFor(m *corev1.ConfigMap, p *corev1.Pod) bool {
	if namespace, ok := m.Data[keyNamespace]; ok && p.Namespace != namespace {
		return false
	}
	if index, ok := m.Data[keyIndex]; ok && labelOf(p.ObjectMeta, completionIndex) != index {
		return false
	}
	if owner, ok := m.Data[keyOwner]; ok {
		return slices.ContainsFunc(p.OwnerReferences, func(r metav1.OwnerReference) bool { return string(r.UID) == owner })
	}
	set, named := m.Data[keyJobSet]
	job, ok := m.Data[keyJobIndex]
	return named && p.Labels[jobsetv1alpha2.JobSetUIDKey] == set && (!ok || p.Labels[jobsetv1alpha2.JobGlobalIndexKey] == job)
}

// ownersOf are the UIDs under which a reservation can mean a pod: of its owners and of its JobSet.
func ownersOf(p *corev1.Pod) []string {
	var uids []string
	for _, r := range p.OwnerReferences {
		uids = append(uids, string(r.UID))
	}
	if set := p.Labels[jobsetv1alpha2.JobSetUIDKey]; set != "" {
		uids = append(uids, set)
	}
	return uids
}

// PlacementRequest is what a member asks of its next node: its template's requests and constraints, and where the others are. The
// template is read, not the pod, which may carry a past reservation. The caller adds what it knows: incident, fault, policy.
func (g Gang) PlacementRequest(m Member) placement.Request {
	r := placement.Request{Faulty: m.Node, Requests: maps.Clone(m.Requests)}
	seen := map[string]int{}
	for _, other := range g.Members {
		if seen[other.Node]++; other.Index != m.Index && other.Node != "" {
			r.Peers = append(r.Peers, other.Node)
		}
	}
	for node, members := range seen {
		r.Share = r.Share || (node != "" && members > 1)
	}
	if m.template == nil {
		return r
	}
	spec := &m.template.Spec
	if r.Requests == nil {
		r.Requests = whole(requests(spec))
	}
	r.NodeSelector = maps.Clone(spec.NodeSelector)
	for _, t := range spec.Tolerations {
		r.Tolerations = append(r.Tolerations, placement.Toleration{Key: t.Key, Operator: string(t.Operator), Value: t.Value, Effect: string(t.Effect)})
	}
	for _, claim := range spec.ResourceClaims {
		r.Claims = append(r.Claims, claim.Name)
	}
	if len(m.volumes) > 0 {
		r.Volumes = func(n *fleet.Node) (bool, string) {
			for _, v := range m.volumes {
				if ok, why := v.reaches(n); !ok {
					return false, why
				}
			}
			return true, ""
		}
	}
	r.Apart, r.Barred = g.apart(m)
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		r.Affinity = func(n *fleet.Node) (bool, string) {
			if slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool { return satisfies(n, t) }) {
				return true, ""
			}
			return false, "none of its required node affinity's terms holds"
		}
	}
	return r
}

// satisfies follows the scheduler: within a term everything must hold, and an empty term holds for no node.
func satisfies(n *fleet.Node, term corev1.NodeSelectorTerm) bool {
	for _, want := range term.MatchExpressions {
		value, ok := n.Labels[want.Key]
		if !holds(want, value, ok) {
			return false
		}
	}
	for _, want := range term.MatchFields { // metadata.name is the only field there is
		if !holds(want, n.Name, want.Key == metav1.ObjectNameField) {
			return false
		}
	}
	return len(term.MatchExpressions)+len(term.MatchFields) > 0
}

func holds(want corev1.NodeSelectorRequirement, value string, present bool) bool {
	switch want.Operator {
	case corev1.NodeSelectorOpIn:
		return present && slices.Contains(want.Values, value)
	case corev1.NodeSelectorOpNotIn:
		return !present || !slices.Contains(want.Values, value)
	case corev1.NodeSelectorOpExists:
		return present
	case corev1.NodeSelectorOpDoesNotExist:
		return !present
	}
	have, err := strconv.ParseInt(value, 10, 64)
	if !present || err != nil || len(want.Values) != 1 {
		return false
	}
	than, err := strconv.ParseInt(want.Values[0], 10, 64)
	switch {
	case err != nil:
		return false
	case want.Operator == corev1.NodeSelectorOpGt:
		return have > than
	}
	return want.Operator == corev1.NodeSelectorOpLt && have < than
}
