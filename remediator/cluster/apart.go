package cluster

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// apart reads the required pod anti-affinity of a member's template: the topology labels that no two members may share a value of, and, by
// topology label, the values that other pods have taken, each with one such pod. Pods of DaemonSets are not judged, since the watch keeps no
// labels of them, nor is the anti-affinity of the other pods.
func (g Gang) apart(m Member) (members []string, barred map[string]map[string]string) {
	a := m.template.Spec.Affinity
	if a == nil || a.PodAntiAffinity == nil {
		return nil, nil
	}
	barred = map[string]map[string]string{}
	for _, term := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		selector, err := selectorOf(term, m.labels)
		if err != nil {
			continue // the API server refuses such a pod
		}
		if g.inNamespaces(term, m.Namespace, m.Namespace) && slices.ContainsFunc(g.Members, func(o Member) bool {
			return o.Index != m.Index && selector.Matches(labels.Set(o.labels))
		}) && !slices.Contains(members, term.TopologyKey) {
			members = append(members, term.TopologyKey)
		}
		for value, pod := range g.taken(m, term, selector) {
			if barred[term.TopologyKey] == nil {
				barred[term.TopologyKey] = map[string]string{}
			}
			barred[term.TopologyKey][value] = pod
		}
	}
	return members, barred
}

// selectorOf is a term's selector with what matchLabelKeys and mismatchLabelKeys add to it from the pod's own labels.
func selectorOf(term corev1.PodAffinityTerm, own map[string]string) (labels.Selector, error) {
	selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
	if err != nil {
		return nil, err
	}
	for op, keys := range map[selection.Operator][]string{selection.In: term.MatchLabelKeys, selection.NotIn: term.MismatchLabelKeys} {
		for _, key := range keys {
			value, ok := own[key]
			if !ok {
				continue
			}
			r, err := labels.NewRequirement(key, op, []string{value})
			if err != nil {
				return nil, err
			}
			selector = selector.Add(*r)
		}
	}
	return selector, nil
}

// inNamespaces reports whether a term of a pod in namespace own speaks of pods in a namespace.
func (g Gang) inNamespaces(term corev1.PodAffinityTerm, own, namespace string) bool {
	if len(term.Namespaces) == 0 && term.NamespaceSelector == nil {
		return namespace == own
	}
	if slices.Contains(term.Namespaces, namespace) {
		return true
	}
	if term.NamespaceSelector == nil || g.watched == nil {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(term.NamespaceSelector)
	ns, ok := cached[*corev1.Namespace](g.watched.namespaces, namespace)
	return err == nil && ok && selector.Matches(labels.Set(ns.Labels))
}

// taken are the values of a term's topology label on nodes where a pod of no member matches the term, with the pod.
func (g Gang) taken(m Member, term corev1.PodAffinityTerm, selector labels.Selector) map[string]string {
	out := map[string]string{}
	if g.watched == nil {
		return out
	}
	own := map[string]bool{}
	for _, o := range slices.Concat(g.Members, g.Leaving) {
		own[o.PodUID] = true
	}
	for _, o := range g.watched.pods.GetStore().List() {
		p, ok := o.(*corev1.Pod)
		if !ok || p.Spec.NodeName == "" || ended(p) || own[string(p.UID)] || !selector.Matches(labels.Set(p.Labels)) || !g.inNamespaces(term, m.Namespace, p.Namespace) {
			continue
		}
		if n, ok := cached[*corev1.Node](g.watched.nodes, p.Spec.NodeName); ok && n.Labels[term.TopologyKey] != "" {
			out[n.Labels[term.TopologyKey]] = p.Namespace + "/" + p.Name
		}
	}
	return out
}
