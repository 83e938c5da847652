package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Options configure a Cluster. The zero value works.
type Options struct {
	Namespace   string        // Pitcrew's own; default pitcrew-system
	Cluster     string        // the cluster's name, as events carry it
	QPS         float32       // client-side limit; default 500, so that 500 cordons do not wait for the client
	Burst       int           // default 1000
	CallTimeout time.Duration // of one request; default 5 s
	Now         func() time.Time
	Logger      *slog.Logger
	Audit       func(context.Context, Write) // called before and after each write, possibly from several goroutines
}

func (o *Options) defaults() {
	if o.Namespace == "" {
		o.Namespace = "pitcrew-system"
	}
	if o.Cluster == "" {
		o.Cluster = "default"
	}
	if o.QPS == 0 {
		o.QPS = 500
	}
	if o.Burst == 0 {
		o.Burst = 1000
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = 5 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Cluster is the view. All methods may be called from any goroutine; those that read need a finished WaitForSync.
type Cluster struct {
	opts Options
	cfg  *rest.Config
	kube kubernetes.Interface
	dyn  dynamic.Interface
	lock coordinationv1.CoordinationV1Interface // for the leader's lease alone: no other traffic delays its renewal
	log  *slog.Logger

	nodes, pods, jobs, namespaces, leases, reservations cache.SharedIndexInformer

	handled []cache.InformerSynced // the handlers have been told of everything that was listed first
	views   *views
	slimmer *slimmer
	jobsets jobsetWatch
	changes signals
	steers  steering
	renewed renewals
	allowed allowances
	claims  volumes
	holds   atomic.Pointer[lease] // of the last term of leadership; nil in a process that never led
}

// New prepares a view on the cluster that cfg leads to; it does not connect.
func New(cfg *rest.Config, opts Options) (*Cluster, error) {
	opts.defaults()
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst, cfg.RateLimiter = opts.QPS, opts.Burst, nil
	cfg.UserAgent = fieldManager
	typed := rest.CopyConfig(cfg)
	typed.ContentType = runtime.ContentTypeProtobuf
	typed.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	kube, err := kubernetes.NewForConfig(typed)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	lock, err := kubernetes.NewForConfig(typed) // has a rate limiter of its own
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	c := &Cluster{opts: opts, cfg: cfg, kube: kube, dyn: dyn, lock: lock.CoordinationV1(), log: opts.Logger}
	return c, c.prepare()
}

// Run watches until ctx ends. An API server that is away is waited for.
func (c *Cluster) Run(ctx context.Context) error {
	ctx = c.logged(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	for _, informer := range c.informers() {
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	running.Go(func() { c.jobsets.run(ctx, c) })
	<-ctx.Done()
	return ctx.Err()
}

// WaitForSync returns when everything has been listed once, or with ctx's error.
func (c *Cluster) WaitForSync(ctx context.Context) error {
	synced := make([]cache.InformerSynced, 0, 8)
	for _, informer := range c.informers() {
		synced = append(synced, informer.HasSynced)
	}
	synced = append(append(synced, c.handled...), c.jobsets.synced)
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return fmt.Errorf("the cluster's objects were not listed: %w; is the API server at %s reachable, and deploy/rbac.yaml applied?",
			errors.Join(context.Cause(ctx), c.jobsets.err()), c.cfg.Host)
	}
	return nil
}

// logged makes client-go log where we do.
func (c *Cluster) logged(ctx context.Context) context.Context {
	return klog.NewContext(ctx, logr.FromSlogHandler(c.log.Handler()))
}

func (c *Cluster) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{c.nodes, c.pods, c.jobs, c.namespaces, c.leases, c.reservations}
}
