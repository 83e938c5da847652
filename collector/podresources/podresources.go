// Package podresources says which pods hold a GPU, by the kubelet's pod-resources API.
//
// It promises that nobody waits for the kubelet longer than the deadline he gives; that a mapping is remembered for ten minutes
// after its pod is gone, unless another pod was given the GPU, since the fault that is asked about may have ended the pod; and that
// a GPU held by several containers names them all. What the kubelet says about is bounded.
//
// Which GPU an opaque MIG device (MIG-<uuid>) is cut from, only the driver knows: LearnInstance takes it from DCGM's side. Which GPU a DRA
// claim's device is, and whose job a pod is, only the API server knows: a Directory is asked aside, and never on the path of a finding.
package podresources

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	// FreshFor is how old an answer may be for Refresh to be content with it.
	FreshFor = time.Second
	// KeepFor is how long a mapping outlives its pod.
	KeepFor = 10 * time.Minute

	touchAfter = 5 * time.Second // a sample asks after this, aside, so that the mapping is there before the fault
	maxDevices = 4096
	maxHolders = 64       // of one device: as many replicas as a device plugin makes
	maxAnswer  = 16 << 20 // bytes, as the kubelet's own clients take
)

// Holder is a container that was given a device.
type Holder struct{ Namespace, Pod, Container string }

// holding is what is known of one device, or of one part of it.
type holding struct {
	by   []share
	seen time.Time
}

// Client asks one kubelet. Its methods may be called by any goroutine; without a socket it knows nothing and asks nobody.
type Client struct {
	socket    string
	directory Directory
	of        source // of a shared client; guarded by opened, as users is
	users     int
	log       *zap.Logger
	now       func() time.Time

	asking chan struct{} // one question at a time: who asks has put a token in; before mu; guards conn and client
	conn   *grpc.ClientConn
	client podresourcesv1.PodResourcesListerClient

	group    sync.WaitGroup
	mu       sync.Mutex
	started  bool
	ended    bool
	touched  time.Time // when the last question aside began
	asked    time.Time // when the last answer came, or failed to
	answered time.Time // when the last good answer came
	failed   bool
	byDevice map[string]holding
	index    map[string]int     // GPU's UUID → its number
	parts    map[string][]part  // GPU's UUID → its instances, by the names under which they are held
	claims   map[string]string  // claim's device → UUID of a GPU or an instance
	told     map[string]holding // by a device's exporter, of what the kubelet names in ways that say nothing here
	pods     map[podName]Pod    // what the directory said of the node's pods
	consult  consultation
}

// New makes a client of the kubelet behind the socket; it asks nothing before Start. directory may be nil. now is time.Now but in tests.
func New(socket string, directory Directory, log *zap.Logger, now func() time.Time) *Client {
	return &Client{
		socket: strings.TrimPrefix(socket, "unix://"), asking: make(chan struct{}, 1), directory: directory, log: log, now: now, byDevice: map[string]holding{},
		index: map[string]int{}, parts: map[string][]part{}, claims: map[string]string{}, pods: map[podName]Pod{}, told: map[string]holding{},
	}
}

// Start asks for the first time, aside.
func (c *Client) Start() {
	if c.socket == "" {
		return
	}
	c.mu.Lock()
	c.started = true
	c.mu.Unlock()
	c.Touch()
}

// Stop ends what is under way and closes the connection, when all who opened the client have stopped it.
func (c *Client) Stop() {
	if c.left() {
		return
	}
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.group.Wait()
	c.asking <- struct{}{}
	defer func() { <-c.asking }()
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn, c.client = nil, nil
	}
}

// Touch has the mapping asked for again, aside, when it has grown old. It never waits.
func (c *Client) Touch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.started || c.ended || c.now().Sub(c.touched) < touchAfter {
		return
	}
	c.touched = c.now()
	c.group.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c.asking <- struct{}{}
		c.list(ctx)
		<-c.asking
		c.look()
	})
}

// Refresh asks the kubelet now unless the answer at hand is younger than FreshFor, and waits no longer than ctx and deadline say.
func (c *Client) Refresh(ctx context.Context, deadline time.Duration) {
	if c.socket == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	select {
	case c.asking <- struct{}{}:
	case <-ctx.Done(): // the question of somebody with more patience is under way
		return
	}
	defer func() { <-c.asking }()
	c.mu.Lock()
	fresh := c.now().Sub(c.asked) < FreshFor
	c.mu.Unlock()
	if !fresh {
		c.list(ctx)
	}
}

// Learn notes a GPU's number, by which some holders name it.
func (c *Client) Learn(uuid string, index int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.index[uuid]; known || len(c.index) < maxDevices {
		c.index[uuid] = index
	}
}

// LearnInstance notes that a MIG device is cut from a GPU: instance is its GPU instance, or GPU instance/compute instance.
func (c *Client) LearnInstance(mig, gpu, instance string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.learnPart(gpu, part{mig, instance})
}

// learnPart notes a part; one that was cut anew from elsewhere moves. The caller holds mu.
func (c *Client) learnPart(gpu string, p part) {
	if slices.Contains(c.parts[gpu], p) || gpu == "" || p.device == "" {
		return
	}
	n := 0
	for of, ps := range c.parts {
		if ps = slices.DeleteFunc(ps, func(o part) bool { return o.device == p.device }); len(ps) == 0 {
			delete(c.parts, of)
			continue
		}
		c.parts[of] = ps
		n += len(ps)
	}
	if n < maxDevices {
		c.parts[gpu] = append(c.parts[gpu], p)
	}
}

// Holders lists the containers that hold the GPU or a part of it, in the kubelet's order; where nobody does now, those that did last,
// for KeepFor. A MIG device may be asked for by its own UUID.
func (c *Client) Holders(uuid string) []Holder { return c.HoldersOf(uuid, "") }

// HoldersOf lists the containers that hold an instance of the GPU (GPU instance, or GPU instance/compute instance), or the whole of it;
// with an empty instance it is Holders.
func (c *Client) HoldersOf(uuid, instance string) []Holder {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, by := c.sharesOf(uuid, instance)
	return distinct(by)
}

// HoldersNow lists the containers that hold the whole GPU by the newest answer, or the instance; none where the GPU is held in parts.
func (c *Client) HoldersNow(uuid, instance string) []Holder {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen, by := c.sharesOf(uuid, instance)
	if len(by) == 0 || !seen.Equal(c.answered) || instance == "" && slices.ContainsFunc(by, func(s share) bool { return s.instance != "" }) {
		return nil
	}
	return distinct(by)
}

// UUID is what CUDA, and so a training process, calls the GPU or its instance: the instance's own UUID where one alone is meant and known, of an
// instance of which that is not so nothing.
func (c *Client) UUID(gpu, instance string) string {
	if instance == "" {
		return gpu
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	found := ""
	for _, p := range c.parts[gpu] {
		if p.instance == "" || !sameInstance(p.instance, instance) {
			continue
		}
		if found != "" {
			return ""
		}
		found = p.device
	}
	return found
}

// givenWithin is how old an answer may be that says who was not given a GPU: on a node whose GPUs nobody samples, the kubelet is asked when a
// process is seen, once a minute.
const givenWithin = 90 * time.Second

// Given reports whether a pod holds the GPU or a part of it now; known is false where the kubelet has not answered lately.
func (c *Client) Given(uuid, namespace, pod string) (given, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed || c.answered.IsZero() || c.now().Sub(c.answered) > givenWithin {
		return false, false
	}
	seen, by := c.sharesOf(uuid, "")
	return seen.Equal(c.answered) && slices.ContainsFunc(by, func(s share) bool { return s.Namespace == namespace && s.Pod == pod }), true
}

func distinct(by []share) (out []Holder) {
	for _, s := range by {
		if !slices.Contains(out, s.Holder) {
			out = append(out, s.Holder)
		}
	}
	return out
}

// sharesOf lists who holds the GPU or the instance by the newest answer that named any of them. The caller holds mu.
func (c *Client) sharesOf(uuid, instance string) (newest time.Time, out []share) {
	names := append([]part{{uuid, ""}}, c.parts[uuid]...)
	if n, known := c.index[uuid]; known {
		names = append(names, part{numbered(n), ""})
	}
	direct := len(names)
	for _, claim := range slices.Sorted(maps.Keys(c.claims)) {
		if k := slices.IndexFunc(names[:direct], func(p part) bool { return p.device == c.claims[claim] }); k >= 0 {
			names = append(names, part{claim, names[k].instance})
		}
	}
	for _, n := range names {
		held, ok := c.byDevice[n.device]
		if !ok || held.seen.Before(newest) || c.now().Sub(held.seen) > KeepFor {
			continue
		}
		for _, s := range held.by {
			_, explained := c.claims[s.claim]
			if explained || !sameInstance(instance, s.instance) || !sameInstance(instance, n.instance) {
				continue // a claim that is explained is held under its device's own name
			}
			if held.seen.After(newest) {
				newest, out = held.seen, nil
			}
			if s.instance == "" {
				s.instance = n.instance
			}
			if s.instance == "" && strings.HasPrefix(n.device, "MIG-") && n.device != uuid {
				s.instance = n.device
			}
			out = append(out, s)
		}
	}
	if h, ok := c.told[uuid]; ok && len(out) == 0 && c.now().Sub(h.seen) <= KeepFor {
		return h.seen, slices.Clone(h.by)
	}
	return newest, out
}

// dial connects once the kubelet's socket is there. The caller holds asking.
func (c *Client) dial() error {
	if c.client != nil {
		return nil
	}
	if _, err := os.Stat(c.socket); err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+c.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}, MinConnectTimeout: time.Second,
		}))
	if err != nil {
		return err
	}
	c.conn, c.client = conn, podresourcesv1.NewPodResourcesListerClient(conn)
	return nil
}

// list asks and remembers. The caller holds asking.
func (c *Client) list(ctx context.Context) {
	err := c.dial()
	var r *podresourcesv1.ListPodResourcesResponse
	if err == nil {
		r, err = c.client.List(ctx, &podresourcesv1.ListPodResourcesRequest{})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.asked = now
	if err != nil {
		if !c.failed {
			c.log.Warn("kubelet's pod resources cannot be read; GPUs are not mapped to pods (is the socket's folder mounted?)",
				zap.String("pod_resources_socket", c.socket), zap.Error(err))
		}
		c.failed = true
		return
	}
	c.failed, c.answered = false, now
	for d, h := range c.byDevice {
		if now.Sub(h.seen) > KeepFor {
			delete(c.byDevice, d)
		}
	}
	shares := sharesOf(r)
	c.consult.note(c, shares)
	for d, by := range shares {
		if _, known := c.byDevice[d]; known || len(c.byDevice) < maxDevices {
			c.byDevice[d] = holding{by, now}
		}
	}
}
