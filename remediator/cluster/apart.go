package cluster

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// apart reads required pod anti-affinity, in both directions as the scheduler does: the topology labels that no two members may share a value
// of, and, by topology label, the values that other pods have taken, each with one such pod. Those are pods that the member's template avoids,
// and pods that avoid the member. Pods of DaemonSets are not judged, since the watch keeps no labels of them.
func (g Gang) apart(m Member) (members []string, barred map[string]map[string]string) {
	barred = map[string]map[string]string{}
	bar := func(key, value, pod string) {
		if barred[key] == nil {
			barred[key] = map[string]string{}
		}
		barred[key][value] = pod
	}
	g.avoiding(m, bar)
	for _, term := range antiAffinity(m.template.Spec.Affinity) {
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
			bar(term.TopologyKey, value, pod)
		}
	}
	return members, barred
}

func antiAffinity(a *corev1.Affinity) []corev1.PodAffinityTerm {
	if a == nil || a.PodAntiAffinity == nil {
		return nil
	}
	return a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// avoiders is the value of the index byAvoids: pods of one namespace with the same required anti-affinity share it. Labels count only if a
// term takes its selector from the pod's own.
func avoiders(p *corev1.Pod) []string {
	terms := antiAffinity(p.Spec.Affinity)
	if len(terms) == 0 {
		return nil
	}
	key := p.Namespace + "/" + p.Spec.Affinity.PodAntiAffinity.String()
	if slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool { return len(t.MatchLabelKeys)+len(t.MismatchLabelKeys) > 0 }) {
		key += labels.Set(p.Labels).String()
	}
	return []string{key}
}

// avoiding bars the places of pods outside the gang whose required anti-affinity selects the member.
func (g Gang) avoiding(m Member, bar func(key, value, pod string)) {
	if g.watched == nil {
		return
	}
	own := g.uids()
	for _, key := range g.watched.pods.GetIndexer().ListIndexFuncValues(byAvoids) {
		var against []string // the topology labels of the terms that select the member: the same for all pods under the key
		for i, p := range indexed[*corev1.Pod](g.watched.pods, byAvoids, key) {
			if i == 0 {
				against = g.against(m, p)
			}
			if len(against) == 0 {
				break
			}
			n, ok := cached[*corev1.Node](g.watched.nodes, p.Spec.NodeName)
			if !ok || ended(p) || own[string(p.UID)] {
				continue
			}
			for _, label := range against {
				if value := n.Labels[label]; value != "" {
					bar(label, value, p.Namespace+"/"+p.Name)
				}
			}
		}
	}
}

// against are the topology labels of a pod's required anti-affinity terms that select a member.
func (g Gang) against(m Member, p *corev1.Pod) (keys []string) {
	for _, term := range antiAffinity(p.Spec.Affinity) {
		selector, err := selectorOf(term, p.Labels)
		if err == nil && selector.Matches(labels.Set(m.labels)) && g.inNamespaces(term, p.Namespace, m.Namespace) {
			keys = append(keys, term.TopologyKey)
		}
	}
	return keys
}

// uids are the pods of the gang, also those that leave.
func (g Gang) uids() map[string]bool {
	own := map[string]bool{}
	for _, m := range slices.Concat(g.Members, g.Leaving) {
		own[m.PodUID] = true
	}
	return own
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
	own := g.uids()
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
