package cluster

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// slimmer makes what the caches keep small: it drops what nobody here reads, and keeps one copy of what many objects say alike. 100,000 pods
// have a few dozen combinations of requests, and 5,000 nodes the same label names. What it returns is shared and must not be changed.
// It may be called from several goroutines.
type slimmer struct {
	mu         sync.Mutex
	strings    map[string]string
	containers map[string][]corev1.Container
	resources  map[string]corev1.ResourceList
	owners     map[string][]metav1.OwnerReference
	avoided    map[string]*corev1.Affinity // required pod anti-affinity alone
	ready      map[corev1.ConditionStatus][]corev1.PodCondition
}

// maxShared bounds each table; what is forgotten is only stored twice.
const maxShared = 100_000

func newSlimmer() *slimmer {
	return &slimmer{strings: map[string]string{}, containers: map[string][]corev1.Container{}, resources: map[string]corev1.ResourceList{},
		owners: map[string][]metav1.OwnerReference{}, avoided: map[string]*corev1.Affinity{}, ready: map[corev1.ConditionStatus][]corev1.PodCondition{}}
}

// shared returns the value under a key, and makes it if there is none yet.
func shared[K comparable, V any](table map[K]V, key K, make func() V) V {
	if v, ok := table[key]; ok {
		return v
	}
	if len(table) >= maxShared {
		clear(table)
	}
	v := make()
	table[key] = v
	return v
}

func (s *slimmer) str(v string) string {
	return shared(s.strings, v, func() string { return strings.Clone(v) })
}

func (s *slimmer) strMap(m map[string]string, keep func(key string) bool) map[string]string {
	n := 0
	for k := range m {
		if keep(k) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	out := make(map[string]string, n)
	for k, v := range m {
		if keep(k) {
			out[s.str(k)] = s.str(v)
		}
	}
	return out
}

func (s *slimmer) list(l corev1.ResourceList) corev1.ResourceList {
	return shared(s.resources, listKey(l), func() corev1.ResourceList { return l })
}

// listKey is the same for lists that ask for the same.
func listKey(l corev1.ResourceList) string {
	names := make([]string, 0, len(l))
	for name := range l {
		names = append(names, string(name))
	}
	slices.Sort(names)
	var key strings.Builder
	for _, name := range names {
		q := l[corev1.ResourceName(name)]
		fmt.Fprintf(&key, "%s=%s,", name, q.String())
	}
	return key.String()
}

// podAnnotations are those of a pod that are read from the cache.
var podAnnotations = []string{completionIndex, AnnotationFastReplace}

// pod keeps who a pod is, where it is, whose it is, in what state, and what it asks for, as one container's requests. Its constraints are read
// from the job's template: a running pod may carry those of a past reservation. A DaemonSet's pod becomes a bystander.
func (s *slimmer) pod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	owner := metav1.GetControllerOfNoCopy(p)
	if owner != nil && owner.Kind == "DaemonSet" {
		return s.bystander(p), nil
	}
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: s.str(p.Namespace), UID: p.UID, ResourceVersion: p.ResourceVersion,
		CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp, DeletionGracePeriodSeconds: p.DeletionGracePeriodSeconds}}
	out.Annotations = s.strMap(p.Annotations, func(k string) bool { return slices.Contains(podAnnotations, k) })
	out.Labels = s.strMap(p.Labels, func(string) bool { return true })
	if len(p.OwnerReferences) == 1 {
		ref := p.OwnerReferences[0]
		out.OwnerReferences = shared(s.owners, ref.Kind+"/"+ref.Name+"/"+string(ref.UID)+"/"+fmt.Sprint(owner != nil), func() []metav1.OwnerReference { return p.OwnerReferences })
	} else {
		out.OwnerReferences = p.OwnerReferences
	}
	for _, f := range p.Finalizers {
		out.Finalizers = append(out.Finalizers, s.str(f))
	}
	out.Spec.NodeName = s.str(p.Spec.NodeName)
	if terms := antiAffinity(p.Spec.Affinity); len(terms) > 0 {
		kept := &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
		out.Spec.Affinity = shared(s.avoided, kept.String(), func() *corev1.Affinity { return &corev1.Affinity{PodAntiAffinity: kept} })
	}
	asked := requests(&p.Spec)
	out.Spec.Containers = shared(s.containers, listKey(asked), func() []corev1.Container {
		return []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: asked}}}
	})
	if host := p.Spec.NodeSelector[hostnameLabel]; host != "" { // of a replacement, where a reservation sent it
		out.Spec.NodeSelector = map[string]string{hostnameLabel: host}
	}
	out.Status = corev1.PodStatus{Phase: corev1.PodPhase(s.str(string(p.Status.Phase))), PodIP: p.Status.PodIP, NominatedNodeName: s.str(p.Status.NominatedNodeName)}
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodReady {
			out.Status.Conditions = shared(s.ready, cond.Status, func() []corev1.PodCondition {
				return []corev1.PodCondition{{Type: corev1.PodReady, Status: cond.Status}}
			})
		}
	}
	for _, cs := range p.Status.ContainerStatuses {
		if t := cs.State.Terminated; t != nil { // when a pod ended, as the Job controller reckons it
			out.Status.ContainerStatuses = append(out.Status.ContainerStatuses, corev1.ContainerStatus{Name: cs.Name,
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: t.ExitCode, FinishedAt: t.FinishedAt}}})
		}
	}
	return out, nil
}

// bulkyAnnotations are those of a node that feature discovery and drivers keep for themselves.
var bulkyAnnotations = []string{"nfd.node.kubernetes.io/", "csi.volume.kubernetes.io/", corev1.LastAppliedConfigAnnotation}

// node drops a node's images, volumes, capacity and bulky annotations.
func (s *slimmer) node(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n.ManagedFields = nil
	n.Labels = s.strMap(n.Labels, func(string) bool { return true })
	n.Annotations = s.strMap(n.Annotations, func(k string) bool {
		return !slices.ContainsFunc(bulkyAnnotations, func(prefix string) bool { return strings.HasPrefix(k, prefix) })
	})
	n.Status.Images, n.Status.VolumesInUse, n.Status.VolumesAttached, n.Status.Capacity = nil, nil, nil, nil
	n.Status.Allocatable = s.list(n.Status.Allocatable)
	for i := range n.Status.Conditions {
		c := &n.Status.Conditions[i]
		c.Type, c.Status = corev1.NodeConditionType(s.str(string(c.Type))), corev1.ConditionStatus(s.str(string(c.Status)))
		c.Reason, c.Message = s.str(c.Reason), s.str(c.Message)
	}
	return n, nil
}
