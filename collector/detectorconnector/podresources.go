package detectorconnector

import (
	"context"
	"os"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/pitcrew/pitcrew/event"
)

const (
	freshFor    = time.Second            // a finding asks the kubelet again after this
	touchAfter  = 5 * time.Second        // a sample asks it after this, aside, so that the mapping is there before the fault
	keepFor     = 10 * time.Minute       // a pod that lost its GPU is named for so long: the fault may have ended it
	askDeadline = 100 * time.Millisecond // on the path of a finding
	maxDevices  = 4096
)

type podName struct{ namespace, name string }

type holding struct {
	pod    podName
	shared bool // by several pods: none of them is named
	seen   time.Time
}

// podResources maps GPUs to pods by the kubelet's pod-resources API.
type podResources struct {
	socket string
	log    *zap.Logger
	now    func() time.Time

	asking sync.Mutex // one question at a time; taken before mu; guards conn and client
	conn   *grpc.ClientConn
	client podresourcesv1.PodResourcesListerClient

	group   sync.WaitGroup
	mu      sync.Mutex
	started bool
	ended   bool
	touched time.Time // when the last question aside began
	asked   time.Time // when the last answer came, or failed to
	failed  bool
	byGPU   map[string]holding
}

func newPodResources(socket string, log *zap.Logger) *podResources {
	return &podResources{socket: strings.TrimPrefix(socket, "unix://"), log: log, now: time.Now, byGPU: map[string]holding{}}
}

func (p *podResources) start() error {
	if p.socket != "" {
		p.mu.Lock()
		p.started = true
		p.mu.Unlock()
		p.touch()
	}
	return nil
}

// dial connects once the kubelet's socket is there. The caller holds asking.
func (p *podResources) dial() error {
	if p.client != nil {
		return nil
	}
	if _, err := os.Stat(p.socket); err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+p.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}, MinConnectTimeout: time.Second,
		}))
	if err != nil {
		return err
	}
	p.conn, p.client = conn, podresourcesv1.NewPodResourcesListerClient(conn)
	return nil
}

func (p *podResources) stop() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.group.Wait()
	if p.conn != nil {
		_ = p.conn.Close()
	}
}

// touch refreshes the mapping aside when it has grown old.
func (p *podResources) touch() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.started || p.ended || p.now().Sub(p.touched) < touchAfter {
		return
	}
	p.touched = p.now()
	p.group.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		p.asking.Lock()
		defer p.asking.Unlock()
		p.list(ctx)
	})
}

// enrich names the pod that holds the target's GPU. It asks the kubelet when the answer it has is older than a second, and does
// with the answer it has when the kubelet is slow or gone.
func (p *podResources) enrich(ctx context.Context, t *event.Target) {
	if t.GPU == "" || t.Pod != "" || p.socket == "" {
		return
	}
	p.refresh(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if h, ok := p.byGPU[t.GPU]; ok && !h.shared && p.now().Sub(h.seen) <= keepFor {
		t.Namespace, t.Pod = h.pod.namespace, h.pod.name
	}
}

func (p *podResources) refresh(ctx context.Context) {
	p.asking.Lock()
	defer p.asking.Unlock()
	p.mu.Lock()
	fresh := p.now().Sub(p.asked) < freshFor
	p.mu.Unlock()
	if fresh {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askDeadline)
	defer cancel()
	p.list(ctx)
}

func (p *podResources) list(ctx context.Context) {
	err := p.dial()
	var r *podresourcesv1.ListPodResourcesResponse
	if err == nil {
		r, err = p.client.List(ctx, &podresourcesv1.ListPodResourcesRequest{})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = p.now()
	if err != nil {
		if !p.failed {
			p.log.Warn("kubelet's pod resources cannot be read; GPUs are not mapped to pods (is the socket mounted?)",
				zap.String("pod_resources_socket", p.socket), zap.Error(err))
		}
		p.failed = true
		return
	}
	p.failed = false
	now := p.now()
	fresh := map[string]holding{}
	for _, pod := range r.GetPodResources() {
		name := podName{pod.GetNamespace(), pod.GetName()}
		for _, c := range pod.GetContainers() {
			for _, d := range c.GetDevices() {
				for _, id := range d.GetDeviceIds() {
					id, _, _ = strings.Cut(id, "::") // a replica of a time-sliced GPU
					h, ok := fresh[id]
					fresh[id] = holding{name, h.shared || ok && h.pod != name, now}
				}
			}
		}
	}
	for id, h := range p.byGPU {
		if now.Sub(h.seen) > keepFor {
			delete(p.byGPU, id)
		}
	}
	for id, h := range fresh {
		if _, known := p.byGPU[id]; known || len(p.byGPU) < maxDevices {
			p.byGPU[id] = h
		}
	}
}
