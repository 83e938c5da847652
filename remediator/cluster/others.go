package cluster

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Said is what a node's object says of it, whoever wrote that there. Its maps are shared with the watch and must not be changed.
type Said struct {
	Node, UID, BootID   string
	Conditions          []Condition
	Taints              []Taint
	Labels, Annotations map[string]string
	Gone                bool // the node is no more; nothing but its name is set
}

// Condition is a condition of a node.
type Condition struct {
	Type, Status, Reason, Message string
	Since                         time.Time // of its last transition; zero where its writer says none
}

// Taint is a taint of a node.
type Taint struct {
	Key, Value string
	Since      time.Time // zero but for NoExecute
}

// OnNodes tells each node as it is, and again at each change, until ctx ends. hear is called by one goroutine and may block.
func (c *Cluster) OnNodes(ctx context.Context, hear func(Said)) error {
	gone := func(o any) {
		if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = d.Obj
		}
		if n, ok := o.(*corev1.Node); ok && ctx.Err() == nil {
			hear(Said{Node: n.Name, Gone: true})
		}
	}
	there := func(o any) {
		if n, ok := o.(*corev1.Node); ok && ctx.Err() == nil {
			hear(said(n))
		}
	}
	handler, err := c.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: there, UpdateFunc: func(_, o any) { there(o) }, DeleteFunc: gone})
	if err != nil {
		return wrap("watch what is said of nodes", err)
	}
	<-ctx.Done()
	return c.nodes.RemoveEventHandler(handler)
}

// Said tells what a node's object says of it; ErrNotFound where the watch knows none.
func (c *Cluster) Said(node string) (Said, error) {
	n, ok := cached[*corev1.Node](c.nodes, node)
	if !ok {
		return Said{}, ErrNotFound
	}
	return said(n), nil
}

func said(n *corev1.Node) Said {
	s := Said{Node: n.Name, UID: string(n.UID), BootID: n.Status.NodeInfo.BootID, Labels: n.Labels, Annotations: n.Annotations}
	for _, cond := range n.Status.Conditions {
		s.Conditions = append(s.Conditions, Condition{string(cond.Type), string(cond.Status), cond.Reason, cond.Message, cond.LastTransitionTime.Time})
	}
	for _, t := range n.Spec.Taints {
		taint := Taint{Key: t.Key, Value: t.Value}
		if t.TimeAdded != nil {
			taint.Since = t.TimeAdded.Time
		}
		s.Taints = append(s.Taints, taint)
	}
	return s
}

// Warned is a Kubernetes Event of type Warning about a node.
type Warned struct {
	Node, UID, Reason, Message string
	By                         string // the component that said it
	At                         time.Time
}

// OnWarnings tells each Warning about a node, those of the last hour or so first, until ctx ends. An account that may not read Events hears
// none. hear is called by one goroutine and may block.
func (c *Cluster) OnWarnings(ctx context.Context, hear func(Warned)) error {
	informer := coreinformers.NewFilteredEventInformer(c.kube, metav1.NamespaceAll, 0, nil, func(o *metav1.ListOptions) {
		o.FieldSelector = "involvedObject.kind=Node,type=Warning"
	})
	if err := informer.SetTransform(slim); err != nil {
		return wrap("watch warnings about nodes", err)
	}
	there := func(o any) {
		e, ok := o.(*corev1.Event)
		if !ok || e.Source.Component == fieldManager || ctx.Err() != nil {
			return
		}
		w := Warned{Node: e.InvolvedObject.Name, UID: string(e.UID), Reason: e.Reason, Message: e.Message, By: e.Source.Component, At: e.LastTimestamp.Time}
		if w.By == "" {
			w.By = e.ReportingController
		}
		if w.At.IsZero() {
			w.At = e.EventTime.Time
		}
		if w.At.IsZero() {
			w.At = e.CreationTimestamp.Time
		}
		hear(w)
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: there, UpdateFunc: func(_, o any) { there(o) }}); err != nil {
		return wrap("watch warnings about nodes", err)
	}
	informer.RunWithContext(c.logged(ctx))
	return ctx.Err()
}
