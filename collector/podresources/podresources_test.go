package podresources

import (
	"context"
	"net"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// kubelet serves pod-resources as the kubelet does.
type kubelet struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	mu    sync.Mutex
	pods  []*podresourcesv1.PodResources
	slow  time.Duration
	calls int
}

func (k *kubelet) List(ctx context.Context, _ *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	k.mu.Lock()
	k.calls++
	pods, slow := k.pods, k.slow
	k.mu.Unlock()
	select {
	case <-time.After(slow):
	case <-ctx.Done():
	}
	return &podresourcesv1.ListPodResourcesResponse{PodResources: pods}, nil
}

func (k *kubelet) set(slow time.Duration, pods ...*podresourcesv1.PodResources) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.slow, k.pods = slow, pods
}

func (k *kubelet) asked() int { k.mu.Lock(); defer k.mu.Unlock(); return k.calls }

func (k *kubelet) serve(t *testing.T, socket string) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	podresourcesv1.RegisterPodResourcesListerServer(s, k)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
}

// clock is a time that the test moves.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.at }
func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

type rig struct {
	*Client
	kubelet   *kubelet
	clock     *clock
	directory *directory
}

func newRig(t *testing.T, serve bool, pods ...*podresourcesv1.PodResources) *rig {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "k.sock")
	r := &rig{kubelet: &kubelet{pods: pods}, clock: &clock{at: time.Unix(1700000000, 0)}}
	if serve {
		r.kubelet.serve(t, socket)
	}
	r.directory = &directory{}
	r.Client = New(socket, r.directory, zap.NewNop(), r.clock.now)
	t.Cleanup(r.Stop)
	return r
}

// ask has the kubelet asked for certain.
func (r *rig) ask(t *testing.T) {
	t.Helper()
	r.clock.pass(FreshFor)
	r.Refresh(t.Context(), 10*time.Second)
}

func container(ns, pod, name string, devices ...string) *podresourcesv1.PodResources {
	return &podresourcesv1.PodResources{Namespace: ns, Name: pod, Containers: []*podresourcesv1.ContainerResources{
		{Name: name, Devices: []*podresourcesv1.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: devices}}},
	}}
}

func claim(ns, pod, driver, device string) *podresourcesv1.PodResources {
	return &podresourcesv1.PodResources{Namespace: ns, Name: pod, Containers: []*podresourcesv1.ContainerResources{
		{Name: "main", DynamicResources: []*podresourcesv1.DynamicResource{
			{ClaimName: "c", ClaimNamespace: ns, ClaimResources: []*podresourcesv1.ClaimResource{{DriverName: driver, PoolName: "n1", DeviceName: device}}},
		}},
	}}
}

func names(hs []Holder) []string {
	var out []string
	for _, h := range hs {
		out = append(out, h.Namespace+"/"+h.Pod+"/"+h.Container)
	}
	return out
}

func TestEachSpellingOfADeviceNamesTheHoldersOfItsGPU(t *testing.T) {
	for name, c := range map[string]struct {
		pods []*podresourcesv1.PodResources
		want []string
	}{
		"a whole GPU":                          {[]*podresourcesv1.PodResources{container("t", "a", "main", "GPU-0", "GPU-1")}, []string{"t/a/main"}},
		"another GPU":                          {[]*podresourcesv1.PodResources{container("t", "a", "main", "GPU-0")}, nil},
		"a replica of a time-sliced GPU":       {[]*podresourcesv1.PodResources{container("t", "a", "main", "GPU-1::3")}, []string{"t/a/main"}},
		"replicas in two pods":                 {[]*podresourcesv1.PodResources{container("t", "a", "main", "GPU-1::0"), container("u", "b", "x", "GPU-1::1")}, []string{"t/a/main", "u/b/x"}},
		"two replicas in one container":        {[]*podresourcesv1.PodResources{container("t", "a", "main", "GPU-1::0", "GPU-1::1")}, []string{"t/a/main"}},
		"an instance as old drivers name it":   {[]*podresourcesv1.PodResources{container("t", "a", "main", "MIG-GPU-1/5/0")}, []string{"t/a/main"}},
		"an instance only the driver knows":    {[]*podresourcesv1.PodResources{container("t", "a", "main", "MIG-1f2e")}, nil},
		"GKE's number":                         {[]*podresourcesv1.PodResources{container("t", "a", "main", "nvidia1")}, []string{"t/a/main"}},
		"GKE's instance":                       {[]*podresourcesv1.PodResources{container("t", "a", "main", "nvidia1/gi3")}, []string{"t/a/main"}},
		"GKE's share of an instance":           {[]*podresourcesv1.PodResources{container("t", "a", "main", "nvidia1/gi3/vgpu0")}, []string{"t/a/main"}},
		"GKE's other number":                   {[]*podresourcesv1.PodResources{container("t", "a", "main", "nvidia10")}, nil},
		"a claim of NVIDIA's driver":           {[]*podresourcesv1.PodResources{claim("t", "a", draDriver, "gpu-1")}, []string{"t/a/main"}},
		"a claim of an instance":               {[]*podresourcesv1.PodResources{claim("t", "a", draDriver, "gpu-1-mig-1g10gb-14-0")}, []string{"t/a/main"}},
		"a claim of another driver":            {[]*podresourcesv1.PodResources{claim("t", "a", "nic.example.com", "gpu-1")}, nil},
		"a claim and a device of the same GPU": {[]*podresourcesv1.PodResources{claim("t", "a", draDriver, "gpu-1"), container("t", "b", "main", "GPU-1")}, []string{"t/b/main", "t/a/main"}},
		"no number at all":                     {[]*podresourcesv1.PodResources{container("t", "a", "main", "nvidia", "nvidiaX", ""), claim("t", "a", draDriver, "gpu-")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, true, c.pods...)
			r.Learn("GPU-1", 1)
			r.ask(t)
			if got := names(r.Holders("GPU-1")); !reflect.DeepEqual(got, c.want) {
				t.Errorf("holders %v, want %v", got, c.want)
			}
		})
	}
}

func TestAMappingOutlivesItsPodByTenMinutesUnlessAnotherPodIsGivenTheGPU(t *testing.T) {
	r := newRig(t, true, container("t", "a", "main", "GPU-0", "GPU-1"))
	r.ask(t)
	r.kubelet.set(0, container("u", "b", "main", "GPU-0"))
	r.clock.pass(KeepFor - 2*FreshFor)
	r.ask(t)
	if got := names(r.Holders("GPU-1")); !reflect.DeepEqual(got, []string{"t/a/main"}) {
		t.Errorf("GPU-1 is held by %v, want what held it last", got)
	}
	if got := names(r.Holders("GPU-0")); !reflect.DeepEqual(got, []string{"u/b/main"}) {
		t.Errorf("GPU-0 is held by %v, want the new pod alone", got)
	}
	r.clock.pass(2 * FreshFor)
	if got := r.Holders("GPU-1"); got != nil {
		t.Errorf("GPU-1 is held by %v after ten minutes", got)
	}
}

func TestAKubeletThatHangsHoldsNobodyUpAndWhatWasKnownStays(t *testing.T) {
	r := newRig(t, true, container("t", "a", "main", "GPU-1"))
	r.ask(t)
	r.kubelet.set(time.Minute)
	r.clock.pass(FreshFor)
	began := time.Now()
	r.Refresh(t.Context(), 20*time.Millisecond)
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("waited %v", d)
	}
	if got := names(r.Holders("GPU-1")); !reflect.DeepEqual(got, []string{"t/a/main"}) {
		t.Errorf("holders %v", got)
	}
}

// The agent asks aside every five seconds; a finding that arrives meanwhile must not wait for that answer.
func TestAQuestionUnderWayHoldsNobodyUpEither(t *testing.T) {
	r := newRig(t, true)
	r.kubelet.set(time.Minute)
	r.Start()
	for end := time.Now().Add(10 * time.Second); r.kubelet.asked() == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	began := time.Now()
	r.Refresh(t.Context(), 20*time.Millisecond)
	if took := time.Since(began); took > 500*time.Millisecond {
		t.Errorf("waited %v for somebody else's question", took)
	}
}

// What the kubelet itself sends at most, far more than gRPC takes by default.
func TestAnAnswerOfManyMegabytesIsTaken(t *testing.T) {
	cpus := &podresourcesv1.PodResources{Name: "many", Namespace: "n", Containers: []*podresourcesv1.ContainerResources{{Name: "c", CpuIds: make([]int64, 5<<20)}}}
	for i := range cpus.Containers[0].CpuIds {
		cpus.Containers[0].CpuIds[i] = int64(i & 127)
	}
	r := newRig(t, true, cpus, container("n", "p", "c", "GPU-1"))
	r.ask(t)
	if got := names(r.Holders("GPU-1")); len(got) != 1 {
		t.Errorf("%v", got)
	}
}

func TestAKubeletThatComesLaterIsAskedThen(t *testing.T) {
	r := newRig(t, false)
	r.ask(t)
	r.kubelet.set(0, container("t", "a", "main", "GPU-1"))
	r.kubelet.serve(t, r.socket)
	r.ask(t)
	if got := names(r.Holders("GPU-1")); !reflect.DeepEqual(got, []string{"t/a/main"}) {
		t.Errorf("holders %v", got)
	}
}

func TestAFreshAnswerIsNotAskedForAgain(t *testing.T) {
	r := newRig(t, true)
	r.ask(t)
	for range 100 {
		r.Refresh(t.Context(), time.Second)
	}
	if r.kubelet.calls != 1 {
		t.Errorf("the kubelet was asked %d times", r.kubelet.calls)
	}
}

func TestAnAnswerOfManyDevicesIsBounded(t *testing.T) {
	ids := make([]string, 3*maxDevices)
	for i := range ids {
		ids[i] = "GPU-" + time.Duration(i).String()
	}
	r := newRig(t, true, container("t", "a", "main", ids...))
	r.ask(t)
	if n := len(r.byDevice); n != maxDevices {
		t.Errorf("%d devices are remembered", n)
	}
	for i, id := range ids {
		r.Learn(id, i)
	}
	if n := len(r.index); n != maxDevices {
		t.Errorf("%d numbers of GPUs are remembered", n)
	}
	if r.Learn(ids[0], 7); r.index[ids[0]] != 7 {
		t.Error("a GPU that is known has no new number")
	}
	var pods []*podresourcesv1.PodResources
	for i := range 3 * maxHolders {
		pods = append(pods, container("t", "pod-"+time.Duration(i).String(), "main", "GPU-shared::"+time.Duration(i).String()))
	}
	r = newRig(t, true, pods...)
	if r.ask(t); len(r.Holders("GPU-shared")) != maxHolders {
		t.Errorf("%d holders of one GPU", len(r.Holders("GPU-shared")))
	}
}

func FuzzDeviceOf(f *testing.F) {
	for _, s := range []string{"GPU-1", "GPU-1::2", "MIG-GPU-1/5/0", "MIG-1", "nvidia0/gi3/vgpu1", "nvidia", "::", "MIG-GPU-", "gpu-0-mig-1g", "nvidia99999999999999999999"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, id, device string) {
		r := &podresourcesv1.ListPodResourcesResponse{PodResources: []*podresourcesv1.PodResources{container("n", "p", "c", id, id), claim("n", "q", draDriver, device)}}
		for d, by := range sharesOf(r) {
			if d == "" || len(by) == 0 || len(by) > 2 {
				t.Errorf("device %q is held by %v", d, by)
			}
		}
	})
}
