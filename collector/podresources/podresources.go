// Package podresources says which pods hold a GPU, by the kubelet's pod-resources API.
//
// It promises that nobody waits for the kubelet longer than the deadline he gives; that a mapping is remembered for ten minutes
// after its pod is gone, unless another pod was given the GPU, since the fault that is asked about may have ended the pod; and that
// a GPU held by several containers names them all. What the kubelet says about is bounded.
//
// It does not know which GPU an opaque MIG device (MIG-<uuid>) is cut from: only the driver does. A DRA claim names a device by its
// number in a pool, which is the GPU's number where NVIDIA's driver for DRA names it gpu-<n>.
package podresources

import (
	"context"
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
	maxHolders = 64 // of one device: as many replicas as a device plugin makes
)

// Holder is a container that was given a device.
type Holder struct{ Namespace, Pod, Container string }

// holding is what is known of one device, or of one part of it.
type holding struct {
	by   []Holder
	seen time.Time
}

// Client asks one kubelet. Its methods may be called by any goroutine; without a socket it knows nothing and asks nobody.
type Client struct {
	socket string
	log    *zap.Logger
	now    func() time.Time

	asking sync.Mutex // one question at a time; taken before mu; guards conn and client
	conn   *grpc.ClientConn
	client podresourcesv1.PodResourcesListerClient

	group    sync.WaitGroup
	mu       sync.Mutex
	started  bool
	ended    bool
	touched  time.Time // when the last question aside began
	asked    time.Time // when the last answer came, or failed to
	failed   bool
	byDevice map[string]holding
	index    map[string]int // GPU's UUID → its number
}

// New makes a client of the kubelet behind the socket; it asks nothing before Start. now is time.Now but in tests.
func New(socket string, log *zap.Logger, now func() time.Time) *Client {
	return &Client{socket: strings.TrimPrefix(socket, "unix://"), log: log, now: now, byDevice: map[string]holding{}, index: map[string]int{}}
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

// Stop ends what is under way and closes the connection.
func (c *Client) Stop() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.group.Wait()
	c.asking.Lock()
	defer c.asking.Unlock()
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
		c.asking.Lock()
		defer c.asking.Unlock()
		c.list(ctx)
	})
}

// Refresh asks the kubelet now unless the answer at hand is younger than FreshFor, and waits no longer than ctx and deadline say.
func (c *Client) Refresh(ctx context.Context, deadline time.Duration) {
	if c.socket == "" {
		return
	}
	c.asking.Lock()
	defer c.asking.Unlock()
	c.mu.Lock()
	fresh := c.now().Sub(c.asked) < FreshFor
	c.mu.Unlock()
	if fresh {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	c.list(ctx)
}

// Learn notes a GPU's number, by which some holders name it.
func (c *Client) Learn(uuid string, index int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.index[uuid]; known || len(c.index) < maxDevices {
		c.index[uuid] = index
	}
}

// Holders lists the containers that hold the GPU or a part of it, in the kubelet's order; where nobody does now, those that did last,
// for KeepFor.
func (c *Client) Holders(uuid string) []Holder {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.byDevice[uuid]
	if n, known := c.index[uuid]; known {
		switch other := c.byDevice[numbered(n)]; {
		case other.seen.After(out.seen):
			out = other
		case other.seen.Equal(out.seen):
			out.by = slices.Concat(out.by, other.by)
		}
	}
	if c.now().Sub(out.seen) > KeepFor {
		return nil
	}
	return out.by
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
	c.failed = false
	for d, h := range c.byDevice {
		if now.Sub(h.seen) > KeepFor {
			delete(c.byDevice, d)
		}
	}
	for d, by := range holdersOf(r) {
		if _, known := c.byDevice[d]; known || len(c.byDevice) < maxDevices {
			c.byDevice[d] = holding{by, now}
		}
	}
}
