package cluster

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// slimNode drops a node's list of images and volumes.
func slimNode(o any) (any, error) {
	if n, ok := o.(*corev1.Node); ok {
		n.Status.Images, n.Status.VolumesInUse, n.Status.VolumesAttached = nil, nil, nil
	}
	return slim(o)
}

// slimPod keeps who a pod is, where it is, whose it is, in what state, and what it asks for, as one container's requests. Its constraints
// are read from the job's template: a running pod may carry those of a past reservation.
func slimPod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	s := &corev1.Pod{TypeMeta: p.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Name: p.Name, Namespace: p.Namespace, UID: p.UID, ResourceVersion: p.ResourceVersion, Labels: p.Labels, Annotations: p.Annotations,
		OwnerReferences: p.OwnerReferences, Finalizers: p.Finalizers, CreationTimestamp: p.CreationTimestamp,
		DeletionTimestamp: p.DeletionTimestamp, DeletionGracePeriodSeconds: p.DeletionGracePeriodSeconds}}
	s.Spec.NodeName = p.Spec.NodeName
	s.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests(&p.Spec)}}}
	if host := p.Spec.NodeSelector[hostnameLabel]; host != "" { // of a replacement, where a reservation sent it
		s.Spec.NodeSelector = map[string]string{hostnameLabel: host}
	}
	s.Status = corev1.PodStatus{Phase: p.Status.Phase, Reason: p.Status.Reason, PodIP: p.Status.PodIP, StartTime: p.Status.StartTime,
		NominatedNodeName: p.Status.NominatedNodeName}
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodReady {
			s.Status.Conditions = append(s.Status.Conditions, cond)
		}
	}
	for _, cs := range p.Status.ContainerStatuses {
		if t := cs.State.Terminated; t != nil { // when a pod ended, as the Job controller reckons it
			s.Status.ContainerStatuses = append(s.Status.ContainerStatuses, corev1.ContainerStatus{Name: cs.Name,
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: t.ExitCode, FinishedAt: t.FinishedAt}}})
		}
	}
	return slim(s)
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
