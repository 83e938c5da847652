package cluster

import (
	"errors"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic/dynamicinformer"
	batchinformers "k8s.io/client-go/informers/batch/v1"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	jobsetv1alpha2 "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// Indices of the caches.
const (
	byNode  = "node"  // pods: spec.nodeName
	byOwner = "owner" // pods and jobs: UID of the controller
	byUID   = "uid"   // pods and jobs
)

// prepare builds the watches; none of them resyncs by a timer. Objects are slimmed before they are kept.
func (c *Cluster) prepare() error {
	uid := func(o any) ([]string, error) { return []string{string(o.(metav1.Object).GetUID())}, nil }
	owner := func(o any) ([]string, error) {
		if ref := metav1.GetControllerOf(o.(metav1.Object)); ref != nil {
			return []string{string(ref.UID)}, nil
		}
		return nil, nil
	}
	node := func(o any) ([]string, error) { return []string{o.(*corev1.Pod).Spec.NodeName}, nil }
	all := metav1.NamespaceAll
	c.nodes = coreinformers.NewNodeInformer(c.kube, 0, nil)
	c.pods = coreinformers.NewPodInformer(c.kube, all, 0, cache.Indexers{byNode: node, byOwner: owner, byUID: uid})
	c.jobs = batchinformers.NewJobInformer(c.kube, all, 0, cache.Indexers{byOwner: owner, byUID: uid})
	c.namespaces = coreinformers.NewNamespaceInformer(c.kube, 0, nil)
	c.leases = coordinationinformers.NewLeaseInformer(c.kube, corev1.NamespaceNodeLease, 0, nil)
	c.reservations = coreinformers.NewFilteredConfigMapInformer(c.kube, c.opts.Namespace, 0, nil, func(o *metav1.ListOptions) {
		o.LabelSelector = LabelReservation + "=true"
	})
	c.jobsets.init(dynamicinformer.NewFilteredDynamicInformer(c.dyn, jobsetResource, all, 0, nil, nil).Informer())
	return errors.Join(
		c.nodes.SetTransform(slimNode), c.pods.SetTransform(slimPod), c.jobs.SetTransform(slim), c.namespaces.SetTransform(slim),
		c.leases.SetTransform(slim), c.reservations.SetTransform(slim), c.jobsets.informer.SetTransform(slim),
		onChange(c.pods, c.podChanged),
		onChange(c.jobs, c.jobChanged),
		onChange(c.nodes, func(n *corev1.Node) {
			c.changes.notify(nodeKey(n.Name))
			c.changes.notify(anyNode)
		}),
		onChange(c.leases, func(l *coordinationv1.Lease) {
			if l.Spec.RenewTime != nil {
				c.renewed.saw(l.Name, l.Spec.RenewTime.Time, c.opts.Now())
			}
		}))
}

func (c *Cluster) podChanged(p *corev1.Pod) {
	ref := metav1.GetControllerOf(p)
	if ref == nil {
		return
	}
	c.changes.notify(string(ref.UID))
	if set := p.Labels[jobsetv1alpha2.JobSetUIDKey]; set != "" {
		c.changes.notify(set)
	} else if job, ok := cached[*batchv1.Job](c.jobs, p.Namespace+"/"+ref.Name); ok {
		c.jobChanged(job)
	}
}

func (c *Cluster) jobChanged(j *batchv1.Job) {
	c.changes.notify(string(j.UID))
	if ref := metav1.GetControllerOf(j); ref != nil {
		c.changes.notify(string(ref.UID))
	}
}

// onChange calls do for every object that is new, changed or gone.
func onChange[T any](informer cache.SharedIndexInformer, do func(T)) error {
	call := func(o any) {
		if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		if t, ok := o.(T); ok {
			do(t)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: call, UpdateFunc: func(_, o any) { call(o) }, DeleteFunc: call})
	return err
}

// cached looks an object up by its key, "namespace/name" or "name". What it returns is shared and must not be changed.
func cached[T any](informer cache.SharedIndexInformer, key string) (T, bool) {
	var none T
	o, ok, err := informer.GetStore().GetByKey(key)
	if !ok || err != nil {
		return none, false
	}
	t, ok := o.(T)
	return t, ok
}

// indexed lists the objects under a value of an index.
func indexed[T any](informer cache.SharedIndexInformer, index, value string) []T {
	found, err := informer.GetIndexer().ByIndex(index, value)
	if err != nil {
		return nil
	}
	out := make([]T, 0, len(found))
	for _, o := range found {
		if t, ok := o.(T); ok {
			out = append(out, t)
		}
	}
	return out
}
