package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pitcrew/pitcrew/sandbox/simgpu"
)

const (
	GPUProduct    = "NVIDIA-H100-80GB-HBM3"
	DriverVersion = "570.172.08"
)

// NodeSpec describes one node. Its kubelet listens on an address of its own in 127.0.1.0/24.
type NodeSpec struct {
	Name, Rack, Spine, Zone string
	GPUCount                int
	Labels                  map[string]string // added to, and winning over, the labels that every node has
}

// TwoRacks is the default layout: rack-a with a1 to a3 and rack-b with b1 to b3, of which a two-node job leaves one spare in its rack.
func TwoRacks() []NodeSpec {
	var specs []NodeSpec
	for _, rack := range []string{"a", "b"} {
		for i := 1; i <= 3; i++ {
			specs = append(specs, NodeSpec{Name: fmt.Sprintf("%s%d", rack, i), Rack: "rack-" + rack, Spine: "spine-1", Zone: "zone-1", GPUCount: 8})
		}
	}
	return specs
}

// Options of Up. The zero value is a cluster of TwoRacks in a temporary directory.
type Options struct {
	Dir      string     // state directory, made if needed, emptied first, at most 48 bytes long; empty: a temporary one, gone after Stop
	Nodes    []NodeSpec // nil: TwoRacks
	JobSet   bool       // also run JobSet's controller
	Progress io.Writer  // nil: silent
	// Prepare creates objects after the API server is ready and before any controller runs. A cluster of thousands of nodes and pods is
	// created faster while nothing reacts to each object.
	Prepare func(context.Context, *Sandbox) error
	// Emulate is the Kubernetes minor version whose APIs and features the API server has, such as 1.35; empty: its own, 1.36.
	Emulate string
	NoAudit bool // the API server writes no audit log, which would cost more than the requests of a large cluster
}

// Sandbox is a running cluster. All methods may be called at any time from any goroutine.
type Sandbox struct {
	dir       string
	lock      *os.File // of dir, held until Stop
	temporary bool
	progress  io.Writer
	procs     *processes
	plane     *plane
	ctx       context.Context
	cancel    context.CancelFunc
	nodes     []*Node
	hosted    hostProcesses
	meetings  meetings
	stopOnce  sync.Once
	faults    sync.Mutex // one fault or repair at a time
	control   atomic.Pointer[http.Server]
}

// Node is one simulated machine.
type Node struct {
	NodeSpec
	IP   string
	GPUs []GPU
	DCGM *simgpu.Node // what the stub libdcgm answers on this node

	sandbox *Sandbox
	dir     string
	kmsg    kernelLog
	link    *link // to the front-end network

	troubled map[int]bool // GPUs of which the driver has complained since they were whole; guarded by Sandbox.faults

	mu      sync.Mutex
	kubelet *kubelet // nil while the node is lost
}

// Up starts a cluster and returns when its nodes can be scheduled to. Build time of the control plane (once) comes on top of the
// roughly three seconds that this takes. The cluster outlives ctx: end it with Stop.
func Up(ctx context.Context, o Options) (_ *Sandbox, err error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Nodes == nil {
		o.Nodes = TwoRacks()
	}
	bin, err := Binaries(ctx, o.Progress)
	if err != nil {
		return nil, err
	}
	jobset := ""
	if o.JobSet {
		if jobset, err = jobSetAssets(ctx, o.Progress); err != nil {
			return nil, err
		}
	}
	dir, lock, err := stateDir(o.Dir)
	if err != nil {
		return nil, err
	}
	s := &Sandbox{dir: dir, lock: lock, temporary: o.Dir == "", progress: o.Progress}
	s.hosted.byID = map[string]*hostProcess{}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if s.procs, err = newProcesses(dir, s.temporary); err != nil {
		lock.Close()
		return nil, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("sandbox: %w", err)
			s.Stop()
		}
	}()
	if err := os.WriteFile(filepath.Join(dir, "id"), []byte(s.procs.id+"\n"), 0o644); err != nil {
		return nil, err
	}
	for _, d := range []string{"logs", "v", "checkpoints", scratch} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	for i, spec := range o.Nodes {
		n, err := s.newNode(spec, fmt.Sprintf("127.0.1.%d", i+1))
		if err != nil {
			return nil, err
		}
		s.nodes = append(s.nodes, n)
	}
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if s.plane, err = startPlane(ready, s.procs, bin, dir, s.Logs(), o); err != nil {
		return nil, err
	}
	if o.Prepare != nil {
		if err := o.Prepare(ctx, s); err != nil {
			return nil, err
		}
		ready, cancel = context.WithTimeout(ctx, 5*time.Minute) // the controllers have all of it to read
		defer cancel()
	}
	if o.JobSet { // before the garbage collector lists, once in 30 s, what there is to collect
		if err := s.defineJobSet(ready, jobset); err != nil {
			return nil, err
		}
	}
	if err := s.plane.startControllers(bin); err != nil {
		return nil, err
	}
	var starts sync.WaitGroup
	errs := make([]error, len(s.nodes)+1)
	for i, n := range s.nodes {
		starts.Go(func() { errs[i] = n.startKubelet(s.ctx) })
	}
	if o.JobSet {
		starts.Go(func() { errs[len(s.nodes)] = s.startJobSet(ready, jobset) })
	}
	starts.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if err := s.awaitNodes(ready); err != nil {
		return nil, err
	}
	return s, s.awaitServiceAccount(ready, metav1.NamespaceDefault)
}

// stateDir makes an empty state directory and locks it. Its length matters: sockets lie below it.
func stateDir(dir string) (string, *os.File, error) {
	if dir == "" {
		dir, err := os.MkdirTemp(os.TempDir(), "pitcrew-sandbox-")
		if err != nil {
			return "", nil, err
		}
		lock, err := lockDir(dir)
		return dir, lock, err
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", nil, err
	}
	if len(dir) > 48 {
		return "", nil, fmt.Errorf("sandbox: state directory %s is longer than 48 bytes, and unix sockets below it would be refused: choose a shorter one", dir)
	}
	if _, err := os.Stat(filepath.Join(dir, "id")); err == nil {
		old, err := lockDir(dir)
		if err != nil {
			return "", nil, err
		}
		defer old.Close()
		if err := Clean(dir); err != nil {
			return "", nil, err
		}
	} else if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return "", nil, fmt.Errorf("sandbox: %s is not empty and is no sandbox: choose another state directory", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, err
	}
	// The administrator's key goes there, and a directory in /tmp can be anybody's.
	if st, err := os.Lstat(dir); err != nil {
		return "", nil, err
	} else if sys, ok := st.Sys().(*syscall.Stat_t); !ok || !st.IsDir() || int(sys.Uid) != os.Getuid() {
		return "", nil, fmt.Errorf("sandbox: %s is not a directory of this user: choose another state directory", dir)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return "", nil, err
	}
	lock, err := lockDir(dir)
	return dir, lock, err
}

// lockDir refuses a state directory whose sandbox still has its supervisor. The lock ends with the process that holds it, however that ends.
func lockDir(dir string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		d.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("a sandbox is up in %s already: `pitcrew sandbox down --dir %s` ends it, or choose another state directory by --dir", dir, dir)
		}
		return nil, fmt.Errorf("sandbox: lock %s: %w", dir, err)
	}
	return d, nil
}

// Clean ends whatever a sandbox with that state directory left running, and removes the directory. It needs no cooperation from the
// process that started it, and touches only processes that carry the sandbox's mark.
func Clean(dir string) error {
	id, err := os.ReadFile(filepath.Join(dir, "id"))
	if err != nil {
		return fmt.Errorf("sandbox: no sandbox in %s: %w", dir, err)
	}
	p := processes{id: string(id[:max(0, len(id)-1)])}
	if len(p.id) != 16 {
		return fmt.Errorf("sandbox: %s does not hold a sandbox's id", filepath.Join(dir, "id"))
	}
	p.kill("")
	return os.RemoveAll(dir)
}

func (s *Sandbox) newNode(spec NodeSpec, ip string) (*Node, error) {
	n := &Node{NodeSpec: spec, IP: ip, sandbox: s, link: newLink(), troubled: map[int]bool{}, dir: filepath.Join(s.dir, "nodes", spec.Name)}
	gpuDir := filepath.Join(n.dir, "gpu")
	devices := simgpu.H100s(spec.Name, spec.GPUCount)
	n.GPUs = gpusOf(devices, gpuDir)
	n.kmsg.path = n.Kmsg()
	for _, d := range []string{gpuDir, n.PodsDir(), filepath.Dir(n.PodResources())} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	var err error
	if n.DCGM, err = simgpu.New(n.DCGMScript(), devices); err != nil {
		return nil, err
	}
	return n, n.boot()
}

// Stop ends everything and, if the directory was temporary, removes it. It may be called more than once.
func (s *Sandbox) Stop() error {
	var err error
	s.stopOnce.Do(func() {
		s.cancel()
		s.procs.kill("node/")
		for _, n := range s.nodes {
			if k := n.powerOff(); k != nil {
				k.tasks.Wait()
			}
			n.kmsg.close()
		}
		s.closeControl()
		s.procs.close() // the clients first, then the rest: nothing here needs to be flushed
		if s.temporary {
			err = os.RemoveAll(s.dir)
		}
		s.lock.Close()
	})
	return err
}

// scratch is where everything that runs in the sandbox leaves what it would leave in /tmp: it is killed without a word, and goes with the rest.
const scratch = "tmp"

func (s *Sandbox) tmpdir() string { return "TMPDIR=" + filepath.Join(s.dir, scratch) }

func (s *Sandbox) Dir() string                  { return s.dir }
func (s *Sandbox) Logs() string                 { return filepath.Join(s.dir, "logs") }
func (s *Sandbox) Kubeconfig() string           { return s.plane.kube }  // path of the administrator's kubeconfig
func (s *Sandbox) AuditLog() string             { return s.plane.audit } // path of the API server's audit log, JSON lines
func (s *Sandbox) Config() *rest.Config         { return rest.CopyConfig(s.plane.config) }
func (s *Sandbox) Client() kubernetes.Interface { return s.plane.client }
func (s *Sandbox) Nodes() []*Node               { return s.nodes }
func (s *Sandbox) Checkpoints() string          { return filepath.Join(s.dir, "checkpoints") } // the cluster's shared file system

// Node finds a node by name.
func (s *Sandbox) Node(name string) (*Node, error) {
	for _, n := range s.nodes {
		if n.Name == name {
			return n, nil
		}
	}
	var names []string
	for _, n := range s.nodes {
		names = append(names, n.Name)
	}
	return nil, fmt.Errorf("sandbox: no node %q; there are %s", name, strings.Join(names, " "))
}

// CreateNamespace makes a namespace that pods can be created in at once.
func (s *Sandbox) CreateNamespace(ctx context.Context, name string, labels map[string]string) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	if _, err := s.Client().CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return err
	}
	return s.awaitServiceAccount(ctx, name)
}

func (s *Sandbox) awaitServiceAccount(ctx context.Context, namespace string) error {
	accounts := s.Client().CoreV1().ServiceAccounts(namespace)
	w, err := accounts.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "default").String()})
	if err != nil {
		return err
	}
	return await(ctx, w, "the default service account of "+namespace, func(watch.Event) bool { return true })
}

// awaitNodes returns when the node controller has lifted the taints that new nodes bear.
func (s *Sandbox) awaitNodes(ctx context.Context) error {
	if len(s.nodes) == 0 {
		return nil
	}
	w, err := s.Client().CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	ready := map[string]bool{}
	return await(ctx, w, "the nodes", func(e watch.Event) bool {
		if n, ok := e.Object.(*corev1.Node); ok {
			ready[n.Name] = len(n.Spec.Taints) == 0
		}
		for _, n := range s.nodes {
			if !ready[n.Name] {
				return false
			}
		}
		return true
	})
}

func await(ctx context.Context, w watch.Interface, what string, done func(watch.Event) bool) error {
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not ready: %w", what, ctx.Err())
		case e, ok := <-w.ResultChan():
			if !ok {
				return fmt.Errorf("%s: the watch ended", what)
			}
			if e.Type != watch.Error && done(e) {
				return nil
			}
		}
	}
}
