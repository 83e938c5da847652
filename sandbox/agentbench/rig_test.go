package agentbench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/hook/hooktest"
	"github.com/pitcrew/pitcrew/sandbox/freeport"
	"github.com/pitcrew/pitcrew/sandbox/simgpu"
)

const gpus = 8

// parts are where the built binary and the stub are.
type parts struct{ collector, library string }

// envCollector names a built pitcrew-collector that is run in place of the tree's: an earlier one, to compare with.
const envCollector = "COLLECTOR"

// build makes the binary and the stub once, into a folder that ends with the package's tests.
var build = sync.OnceValues(func() (parts, error) {
	dir, err := os.MkdirTemp("", "agentbench-")
	if err != nil {
		return parts{}, err
	}
	cleanup = append(cleanup, dir)
	collector, steps := os.Getenv(envCollector), [][]string{{"../libdcgm/build.sh", dir}}
	if collector == "" {
		collector = filepath.Join(dir, "pitcrew-collector")
		linked := collector + ".linked" // and copied, as an image is unpacked: how the file is cached decides how much of it is mapped at once
		steps = append(steps, []string{"go", "build", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", linked, "../../cmd/pitcrew-collector"}, []string{"cp", linked, collector})
	}
	for _, argv := range steps {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return parts{}, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
		}
	}
	return parts{collector, dir}, nil
})

var cleanup []string

func TestMain(m *testing.M) {
	hooktest.Main()
	floodMain()
	code := m.Run()
	for _, d := range cleanup {
		_ = os.RemoveAll(d)
	}
	os.Exit(code)
}

// node is one GPU node's Pitcrew.
type node struct {
	t          testing.TB
	dir        string
	gpus       *simgpu.Node
	kubelet    *kubelet
	bus        *bus.Bus
	agent      *process
	dcgm       *process
	prometheus string
	collector  string   // the binary
	env        []string // of both processes
	kmsg       *os.File
	seq        int
}

// startNode starts both processes and returns when the DCGM process's samples have arrived at the agent's endpoint.
func startNode(t testing.TB, env ...string) *node {
	t.Helper()
	return startNodeOf(t, "", func(string) []string { return env })
}

// startNodeOf does so with another program than the tree's where exe names one. env gives what each of the two modes is told beside the rest.
func startNodeOf(t testing.TB, exe string, env func(mode string) []string) *node {
	t.Helper()
	p, err := build()
	if err != nil {
		t.Fatal(err)
	}
	if exe != "" {
		p.collector = exe
	}
	n := &node{t: t, dir: t.TempDir(), prometheus: strings.Replace(freeport.Loopback(t), "127.0.0.1", "127.0.0.7", 1)} // as a pod's address: not the default's
	if n.gpus, err = simgpu.New(filepath.Join(n.dir, "dcgm.script"), simgpu.H100s("node-a", gpus)); err != nil {
		t.Fatal(err)
	}
	dev := filepath.Join(n.dir, "dev") // its own folder, which is watched for a log that is replaced; on a node the log is a device
	if err := os.Mkdir(dev, 0o755); err != nil {
		t.Fatal(err)
	}
	if n.kmsg, err = os.OpenFile(filepath.Join(dev, "kmsg"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.kmsg.Close() })
	socket := filepath.Join(n.dir, "kubelet.sock")
	n.kubelet = serveKubelet(t, socket)
	server := bustest.Server(t)
	n.bus = bustest.Connect(t, server.URL())
	common := append([]string{
		"PITCREW_NATS=" + server.URL(), "PITCREW_CLUSTER=c", "PITCREW_NODE=node-a", "PITCREW_KMSG=" + n.kmsg.Name(),
		"PITCREW_RUN_DIR=" + filepath.Join(n.dir, "run"), "PITCREW_STATE_DIR=" + filepath.Join(n.dir, "state"),
		"PITCREW_KUBELET_ROOT=" + n.kubeletRoot(), "PITCREW_POD_RESOURCES=" + socket, "PITCREW_PROMETHEUS=" + n.prometheus,
		"PITCREW_DCGM_MODE=embedded", fmt.Sprintf("PITCREW_EXPECTED_GPUS=%d", gpus), simgpu.EnvScript + "=" + n.gpus.Path(),
		"LD_LIBRARY_PATH=" + p.library, "PATH=" + os.Getenv("PATH"), "HOME=" + n.dir,
	}, env("")...)
	n.collector, n.env = p.collector, common
	if _, bench := t.(*testing.B); !bench { // whose figures are of the defaults
		common = append(common, "PITCREW_PROMETHEUS_INTERVAL=1s")
	}
	n.agent = n.start(p.collector, "agent", append(slices.Clip(common), env("agent")...))
	n.eventually("the agent to serve", func() bool { _, code := healthOf(n.agent); return code == http.StatusOK })
	n.dcgm = n.start(p.collector, "dcgm", append(slices.Clip(common), env("dcgm")...)) // a round that finds no agent is not kept: the next one brings newer values
	n.eventually("a sample of each GPU on the agent's endpoint", func() bool {
		return strings.Count(n.scrape(), "\nDCGM_FI_DEV_GPU_TEMP{") >= gpus
	})
	return n
}

func (n *node) kubeletRoot() string { return filepath.Join(n.dir, "kubelet") }

// process is one of the two.
type process struct {
	cmd    *exec.Cmd
	health string
	self   string // where its own metrics are
	log    *os.File
}

func (n *node) start(exe, mode string, env []string) *process {
	n.t.Helper()
	p := &process{cmd: exec.Command(exe, mode), health: freeport.Loopback(n.t), self: freeport.Loopback(n.t)}
	var err error
	if p.log, err = os.Create(filepath.Join(n.dir, mode+".log")); err != nil {
		n.t.Fatal(err)
	}
	p.cmd.Env = append([]string{"PITCREW_HEALTH=" + p.health, "PITCREW_SELF=" + p.self}, env...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		_ = p.cmd.Wait()
		_ = p.log.Close()
		if raw, err := os.ReadFile(p.log.Name()); err == nil && n.t.Failed() {
			n.t.Logf("%s said:\n%s", mode, raw[max(0, len(raw)-4000):])
		}
	})
	return p
}

func (n *node) eventually(what string, ok func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("not within a minute: %s", what)
		}
	}
}

func get(url string) (string, int) {
	r, err := http.Get(url)
	if err != nil {
		return "", 0
	}
	defer r.Body.Close()
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return "", 0
	}
	return string(raw), r.StatusCode
}

// scrape is what the agent's endpoint says; empty while it does not answer.
func (n *node) scrape() string {
	s, _ := get("http://" + n.prometheus + "/metrics")
	return "\n" + s
}

// xid writes a line of the driver to the kernel log.
func (n *node) xid(gpu, code int) {
	n.t.Helper()
	raw, err := os.ReadFile("/proc/uptime")
	if err != nil {
		n.t.Fatal(err)
	}
	var up float64
	if _, err := fmt.Sscan(string(raw), &up); err != nil {
		n.t.Fatal(err)
	}
	n.seq++
	pci := strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(n.gpus.GPUs()[gpu].PCI, "0000"), ".0"))
	if _, err := fmt.Fprintf(n.kmsg, "4,%d,%d,-;NVRM: Xid (PCI:%s): %d, pid=77, name=python, told by a test\n", n.seq, int64(up*1e6), pci, code); err != nil {
		n.t.Fatal(err)
	}
}

// events collects what arrives on the bus until the test ends.
type events struct {
	mu  sync.Mutex
	all []event.Event
	at  []time.Time // when each arrived
}

func (n *node) listen() *events {
	n.t.Helper()
	es := &events{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- n.bus.Events(ctx, "test", func(_ context.Context, d bus.Delivery) error {
			es.mu.Lock()
			defer es.mu.Unlock()
			es.all, es.at = append(es.all, d.Event), append(es.at, time.Now())
			return nil
		}, func(string, error) {})
	}()
	n.t.Cleanup(func() { cancel(); <-done })
	return es
}

// about lists the events of a signal.
func (es *events) about(signal string) []event.Event {
	es.mu.Lock()
	defer es.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(es.all), func(e event.Event) bool { return e.Data.Cause.Signal() != signal })
}

// kubelet serves pod-resources as the kubelet does.
type kubelet struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	mu   sync.Mutex
	pods []*podresourcesv1.PodResources
}

func (k *kubelet) List(context.Context, *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &podresourcesv1.ListPodResourcesResponse{PodResources: k.pods}, nil
}

// give hands devices to a container, by the ids that a device plugin gives out.
func (k *kubelet) give(ns, pod, container string, ids ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = append(k.pods, &podresourcesv1.PodResources{Namespace: ns, Name: pod, Containers: []*podresourcesv1.ContainerResources{
		{Name: container, Devices: []*podresourcesv1.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: ids}}},
	}})
}

// claim hands a GPU to a container by dynamic resource allocation.
func (k *kubelet) claim(ns, pod, container, device string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = append(k.pods, &podresourcesv1.PodResources{Namespace: ns, Name: pod, Containers: []*podresourcesv1.ContainerResources{
		{Name: container, DynamicResources: []*podresourcesv1.DynamicResource{{ClaimName: pod, ClaimNamespace: ns, ClaimResources: []*podresourcesv1.ClaimResource{
			{DriverName: "gpu.nvidia.com", PoolName: "node-a", DeviceName: device},
		}}}},
	}})
}

func serveKubelet(t testing.TB, socket string) *kubelet {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	k := &kubelet{}
	s := grpc.NewServer()
	podresourcesv1.RegisterPodResourcesListerServer(s, k)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return k
}

// healthOf is what a process's health endpoint says of each component.
func healthOf(p *process) (string, int) {
	s, code := get("http://" + p.health + "/?verbose")
	return string(bytes.TrimSpace([]byte(s))), code
}
