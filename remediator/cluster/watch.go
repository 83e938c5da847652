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
	byNode   = "node"   // pods: spec.nodeName, or nominated+name before they are bound; reservations: their node
	byOwner  = "owner"  // pods and jobs: UID of the controller; reservations: UID of the Job or JobSet
	byUID    = "uid"    // pods and jobs
	byAvoids = "avoids" // pods: their required anti-affinity, if they have any
)

// nominated precedes, in the index byNode, the node that a pod is nominated to and not bound to yet.
const nominated = "nominated/"

// prepare builds the watches; none of them resyncs by a timer. Objects are slimmed before they are kept.
func (c *Cluster) prepare() error {
	uid := func(o any) ([]string, error) { return []string{string(o.(metav1.Object).GetUID())}, nil }
	owner := func(o any) ([]string, error) {
		if ref := metav1.GetControllerOf(o.(metav1.Object)); ref != nil {
			return []string{string(ref.UID)}, nil
		}
		return nil, nil
	}
	node := func(o any) ([]string, error) {
		p, ok := o.(*corev1.Pod)
		if !ok {
			return nil, nil // of a bystander nobody asks by its node
		}
		if p.Spec.NodeName == "" && p.Status.NominatedNodeName != "" {
			return []string{nominated + p.Status.NominatedNodeName}, nil
		}
		return []string{p.Spec.NodeName}, nil
	}
	avoids := func(o any) ([]string, error) {
		if p, ok := o.(*corev1.Pod); ok {
			return avoiders(p), nil
		}
		return nil, nil
	}
	promised := func(o any) ([]string, error) { return []string{o.(*corev1.ConfigMap).Data[keyNode]}, nil }
	all := metav1.NamespaceAll
	c.nodes = coreinformers.NewNodeInformer(c.kube, 0, nil)
	c.pods = coreinformers.NewPodInformer(c.kube, all, 0, cache.Indexers{byNode: node, byOwner: owner, byUID: uid, byAvoids: avoids})
	c.jobs = batchinformers.NewJobInformer(c.kube, all, 0, cache.Indexers{byOwner: owner, byUID: uid})
	c.namespaces = coreinformers.NewNamespaceInformer(c.kube, 0, nil)
	c.leases = coordinationinformers.NewLeaseInformer(c.kube, corev1.NamespaceNodeLease, 0, nil)
	reserved := func(o any) ([]string, error) {
		data := o.(*corev1.ConfigMap).Data
		return []string{data[keyOwner] + data[keyJobSet]}, nil
	}
	c.reservations = coreinformers.NewFilteredConfigMapInformer(c.kube, c.opts.Namespace, 0, cache.Indexers{byNode: promised, byOwner: reserved}, func(o *metav1.ListOptions) {
		o.LabelSelector = LabelReservation + "=true"
	})
	c.jobsets.init(dynamicinformer.NewFilteredDynamicInformer(c.dyn, jobsetResource, all, 0, nil, nil).Informer())
	c.views, c.slimmer = newViews(c.promised), newSlimmer()
	return errors.Join(
		c.nodes.SetTransform(c.slimmer.node), c.pods.SetTransform(c.slimmer.pod), c.jobs.SetTransform(slim), c.namespaces.SetTransform(slim),
		c.leases.SetTransform(slim), c.reservations.SetTransform(slim), c.jobsets.informer.SetTransform(slim),
		c.watchSteering(),
		onChange(c, c.pods, c.podChanged),
		onChange(c, c.pods, func(b *bystander, gone bool) {
			if gone {
				c.views.podGone(b.uid)
			} else {
				c.views.place(b.uid, b.node, b.asked, b.ended)
			}
		}),
		onChange(c, c.jobs, func(j *batchv1.Job, _ bool) { c.jobChanged(j) }),
		onChange(c, c.nodes, c.nodeChanged),
		onChange(c, c.reservations, c.reservationChanged),
		onChange(c, c.leases, func(l *coordinationv1.Lease, _ bool) {
			if l.Spec.RenewTime != nil {
				c.renewed.saw(l.Name, l.Spec.RenewTime.Time, c.opts.Now())
			}
		}))
}

func (c *Cluster) nodeChanged(n *corev1.Node, gone bool) {
	if gone {
		c.views.nodeGone(n.Name)
	} else {
		c.views.node(n)
	}
	c.changes.notify(nodeKey(n.Name))
	c.changes.notify(anyNode)
}

func (c *Cluster) reservationChanged(m *corev1.ConfigMap, gone bool) {
	node := m.Data[keyNode]
	if gone {
		node = ""
	}
	c.views.promise(m.Name, node)
}

func (c *Cluster) podChanged(p *corev1.Pod, gone bool) {
	if gone {
		c.views.podGone(p.UID)
	} else {
		c.views.pod(p)
	}
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

// onChange calls do for every object that is new, changed or gone. WaitForSync waits until it has been called for all that there is.
func onChange[T any](c *Cluster, informer cache.SharedIndexInformer, do func(o T, gone bool)) error {
	call := func(o any, gone bool) {
		if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = last.Obj
		}
		if t, ok := o.(T); ok {
			do(t, gone)
		}
	}
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) { call(o, false) },
		UpdateFunc: func(_, o any) { call(o, false) }, DeleteFunc: func(o any) { call(o, true) }})
	if err == nil {
		c.handled = append(c.handled, handler.HasSynced)
	}
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
