package cluster

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobsetv1alpha2 "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/pitcrew/pitcrew/remediator/placement"
)

// Nodes is the cluster as the chooser sees it, by name: labels and taints are shared with the watch and must not be changed. Free counts
// out the pods whose UIDs are given, and the reservations made for them: they are what is to be placed. LastFault is not known here.
func (c *Cluster) Nodes(without ...string) []placement.Node {
	used := c.used(without)
	list := c.nodes.GetStore().List()
	out := make([]placement.Node, 0, len(list))
	for _, o := range list {
		n, ok := o.(*corev1.Node)
		if !ok {
			continue
		}
		free := whole(n.Status.Allocatable)
		for name, q := range used[n.Name] {
			if _, have := free[name]; have {
				free[name] -= q
			}
		}
		taints := make([]placement.Taint, 0, len(n.Spec.Taints))
		for _, t := range n.Spec.Taints {
			taints = append(taints, placement.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
		}
		out = append(out, placement.Node{Name: n.Name, Labels: n.Labels, Ready: conditionOf(n, corev1.NodeReady) == corev1.ConditionTrue,
			Unschedulable: n.Spec.Unschedulable, Taints: taints, Free: free, Reserved: taintValue(n, TaintReserved)})
	}
	slices.SortFunc(out, func(a, b placement.Node) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// used sums, by node, what is asked for by pods that have not ended, by pods nominated to a node, and by reservations whose pod is not
// there yet.
func (c *Cluster) used(without []string) map[string]map[string]int64 {
	used := map[string]map[string]int64{}
	count := func(node string, requests map[string]int64) {
		if used[node] == nil {
			used[node] = map[string]int64{}
		}
		for name, q := range requests {
			used[node][name] += q
		}
	}
	out := map[string]bool{}
	for _, uid := range without {
		out[uid] = true
	}
	var excluded []*corev1.Pod
	bound := map[string][]*corev1.Pod{} // by owner: only those can fulfil a reservation
	for _, o := range c.pods.GetStore().List() {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			continue
		}
		if out[string(pod.UID)] {
			excluded = append(excluded, pod)
			continue
		}
		node := pod.Spec.NodeName
		if node == "" {
			node = pod.Status.NominatedNodeName
		}
		if node == "" || ended(pod) {
			continue
		}
		asked := whole(pod.Spec.Containers[0].Resources.Requests)
		asked[string(corev1.ResourcePods)] = 1
		count(node, asked)
		if pod.DeletionTimestamp == nil && metav1.GetControllerOf(pod) != nil {
			bound[node] = append(bound[node], pod)
		}
	}
	for _, o := range c.reservations.GetStore().List() {
		m, ok := o.(*corev1.ConfigMap)
		if !ok {
			continue
		}
		fulfils := func(p *corev1.Pod) bool { return reservedFor(m, p) }
		if slices.ContainsFunc(excluded, fulfils) || slices.ContainsFunc(bound[m.Data[keyNode]], fulfils) {
			continue
		}
		var asked map[string]int64
		if err := json.Unmarshal([]byte(m.Data[keyRequests]), &asked); err == nil {
			count(m.Data[keyNode], asked)
		}
	}
	return used
}

// reservedFor says, as the placement policy does, whether a reservation means this pod.
func reservedFor(m *corev1.ConfigMap, p *corev1.Pod) bool {
	if index, ok := m.Data[keyIndex]; ok && labelOf(p.ObjectMeta, completionIndex) != index {
		return false
	}
	if owner, ok := m.Data[keyOwner]; ok {
		return slices.ContainsFunc(p.OwnerReferences, func(r metav1.OwnerReference) bool { return string(r.UID) == owner })
	}
	job, ok := m.Data[keyJobIndex]
	return p.Labels[jobsetv1alpha2.JobSetUIDKey] == m.Data[keyJobSet] && (!ok || p.Labels[jobsetv1alpha2.JobGlobalIndexKey] == job)
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
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		r.Affinity = func(n placement.Node) (bool, string) {
			if slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool { return satisfies(n, t) }) {
				return true, ""
			}
			return false, "none of its required node affinity's terms holds"
		}
	}
	return r
}

// satisfies follows the scheduler: within a term everything must hold, and an empty term holds for no node.
func satisfies(n placement.Node, term corev1.NodeSelectorTerm) bool {
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
