package cluster

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
)

// slim drops what nobody here reads and what is often the bulk of an object.
func slim(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
		if a := m.GetAnnotations(); a[corev1.LastAppliedConfigAnnotation] != "" {
			delete(a, corev1.LastAppliedConfigAnnotation)
		}
	}
	return o, nil
}

// requests is what the scheduler sets aside for a pod: its containers and sidecars together, or what its greediest init container needs
// beside the sidecars that run by then, plus the pod's overhead; or the pod's own requests, where it has them.
func requests(spec *corev1.PodSpec) corev1.ResourceList {
	sum, sidecars, peak := corev1.ResourceList{}, corev1.ResourceList{}, corev1.ResourceList{}
	for i := range spec.Containers {
		add(sum, spec.Containers[i].Resources.Requests)
	}
	for i := range spec.InitContainers {
		init := &spec.InitContainers[i]
		if init.RestartPolicy != nil && *init.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(sum, init.Resources.Requests)
			add(sidecars, init.Resources.Requests)
			raise(peak, sidecars)
			continue
		}
		need := sidecars.DeepCopy()
		add(need, init.Resources.Requests)
		raise(peak, need)
	}
	raise(sum, peak)
	if spec.Resources != nil {
		for name, q := range spec.Resources.Requests {
			sum[name] = q
		}
	}
	add(sum, spec.Overhead)
	return sum
}

// asksFor is what a slimmed pod asks for.
func asksFor(p *corev1.Pod) corev1.ResourceList {
	if len(p.Spec.Containers) == 0 {
		return nil
	}
	return p.Spec.Containers[0].Resources.Requests
}

func add(to, more corev1.ResourceList) {
	for name, q := range more {
		have := to[name]
		have = have.DeepCopy()
		have.Add(q)
		to[name] = have
	}
}

func raise(to, least corev1.ResourceList) {
	for name, q := range least {
		if have, ok := to[name]; !ok || have.Cmp(q) < 0 {
			to[name] = q.DeepCopy()
		}
	}
}

// whole gives quantities as integers in base units, cpu in thousandths.
func whole(list corev1.ResourceList) map[string]int64 {
	out := make(map[string]int64, len(list))
	for name, q := range list {
		out[string(name)] = quantity(name, q)
	}
	return out
}

func quantity(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}
