package cluster

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	jobsetv1alpha2 "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

var jobsetResource = jobsetv1alpha2.GroupVersion.WithResource("jobsets")

// jobsetWatch watches JobSets once their CRD exists. It looks for it when the watch begins and whenever a JobSet is asked for.
type jobsetWatch struct {
	informer cache.SharedIndexInformer
	mu       sync.Mutex
	started  bool
	probed   bool
	last     error
	look     chan struct{}
}

func (w *jobsetWatch) init(informer cache.SharedIndexInformer) {
	w.informer, w.look = informer, make(chan struct{}, 1)
}

func (w *jobsetWatch) run(ctx context.Context, c *Cluster) {
	var running sync.WaitGroup
	defer running.Wait()
	retry := time.NewTimer(0) // only an API server that is away is asked again by the clock
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-retry.C:
		case <-w.look:
		}
		found, err := c.served(ctx, jobsetResource)
		w.mu.Lock()
		w.last, w.started, w.probed = err, found, w.probed || err == nil
		w.mu.Unlock()
		if err != nil {
			retry.Reset(time.Second)
		}
		if found {
			running.Go(func() { w.informer.RunWithContext(ctx) })
			return
		}
	}
}

// get returns a JobSet from the watch; known is false while there is no watch to ask.
func (w *jobsetWatch) get(namespace, name string) (set *unstructured.Unstructured, known bool) {
	w.mu.Lock()
	started := w.started
	w.mu.Unlock()
	if !started {
		select {
		case w.look <- struct{}{}:
		default:
		}
		return nil, false
	}
	if !w.informer.HasSynced() {
		return nil, false
	}
	o, ok, _ := w.informer.GetStore().GetByKey(namespace + "/" + name)
	if !ok {
		return nil, true
	}
	return o.(*unstructured.Unstructured), true
}

func (w *jobsetWatch) synced() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.probed && (!w.started || w.informer.HasSynced())
}

func (w *jobsetWatch) err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// served says whether the API server offers a resource at this version.
func (c *Cluster) served(ctx context.Context, r schema.GroupVersionResource) (bool, error) {
	raw, err := read(ctx, c, func(ctx context.Context) ([]byte, error) {
		return c.kube.Discovery().RESTClient().Get().AbsPath("/apis", r.Group, r.Version).SetHeader("Accept", "application/json").Do(ctx).Raw()
	})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, wrap("look for "+r.String(), err)
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(raw, &list); err != nil {
		return false, wrap("look for "+r.String(), err)
	}
	for _, have := range list.APIResources {
		if have.Name == r.Resource {
			return true, nil
		}
	}
	return false, nil
}

// jobset reads a JobSet from the watch, or live while there is none. A UID, where given, must match.
func (c *Cluster) jobset(ctx context.Context, namespace, name, uid string) (*jobsetv1alpha2.JobSet, error) {
	op := "JobSet " + namespace + "/" + name
	u, known := c.jobsets.get(namespace, name)
	if !known || u == nil || (uid != "" && string(u.GetUID()) != uid) {
		var err error
		u, err = read(ctx, c, func(ctx context.Context) (*unstructured.Unstructured, error) {
			return c.dyn.Resource(jobsetResource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		})
		if err != nil {
			return nil, wrap(op, err)
		}
	}
	if uid != "" && string(u.GetUID()) != uid {
		return nil, staleUID(op, uid, string(u.GetUID()))
	}
	set := &jobsetv1alpha2.JobSet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, set); err != nil {
		return nil, wrap(op, err)
	}
	return set, nil
}
