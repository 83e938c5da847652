package podresources

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/pitcrew/pitcrew/collector/apiserver"
	"github.com/pitcrew/pitcrew/event"
)

// directory stands in for the API server.
type directory struct {
	mu      sync.Mutex
	pods    []apiserver.Pod
	devices []apiserver.Device
	err     error
	asked   int
}

func (d *directory) Pods(context.Context) ([]apiserver.Pod, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	return d.pods, d.err
}

func (d *directory) Devices(context.Context) ([]apiserver.Device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.devices, d.err
}

func (d *directory) times() int { d.mu.Lock(); defer d.mu.Unlock(); return d.asked }

// aside has the kubelet asked, and then the directory where that is due, as Touch does.
func (r *rig) aside(t *testing.T) {
	t.Helper()
	r.ask(t)
	r.look()
}

func TestAMIGDeviceIsItsGPUsOnceItIsKnownWhoseItIs(t *testing.T) {
	r := newRig(t, true, container("t", "a", "main", "MIG-aaaa"), container("u", "b", "main", "MIG-bbbb"), container("v", "c", "main", "MIG-cccc"))
	r.ask(t)
	if got := r.Holders("GPU-1"); got != nil {
		t.Errorf("before anybody said whose the instances are, GPU-1 is held by %v", got)
	}
	r.LearnInstance("MIG-aaaa", "GPU-1", "3/0")
	r.LearnInstance("MIG-bbbb", "GPU-1", "5/0")
	r.LearnInstance("MIG-cccc", "GPU-2", "3/0")
	for _, c := range []struct {
		gpu, instance string
		want          []string
	}{
		{"GPU-1", "", []string{"t/a/main", "u/b/main"}},
		{"GPU-1", "3", []string{"t/a/main"}},
		{"GPU-1", "5/0", []string{"u/b/main"}},
		{"GPU-1", "5/1", nil},
		{"GPU-2", "3/0", []string{"v/c/main"}},
		{"MIG-aaaa", "", []string{"t/a/main"}},
	} {
		if got := names(r.HoldersOf(c.gpu, c.instance)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s instance %q is held by %v, want %v", c.gpu, c.instance, got, c.want)
		}
	}
	for of, want := range map[[2]string]string{{"GPU-1", ""}: "GPU-1", {"GPU-1", "3"}: "MIG-aaaa", {"GPU-1", "5/0"}: "MIG-bbbb", {"GPU-1", "7"}: "", {"GPU-9", "3"}: ""} {
		if got := r.UUID(of[0], of[1]); got != want {
			t.Errorf("CUDA calls %v %q, want %q", of, got, want)
		}
	}
	r.LearnInstance("MIG-aaaa", "GPU-2", "1/0") // destroyed, and made again elsewhere
	if got := names(r.Holders("GPU-1")); !reflect.DeepEqual(got, []string{"u/b/main"}) {
		t.Errorf("after the instance moved, GPU-1 is held by %v", got)
	}
}

func TestAnInstanceInADevicesNameIsToldApart(t *testing.T) {
	r := newRig(t, true, container("t", "a", "main", "MIG-GPU-1/5/0"), container("t", "b", "main", "nvidia1/gi3"), container("t", "c", "main", "nvidia1/gi4/vgpu0"))
	r.Learn("GPU-1", 1)
	r.ask(t)
	for instance, want := range map[string][]string{"5/0": {"t/a/main"}, "3": {"t/b/main"}, "3/0": {"t/b/main"}, "4": {"t/c/main"}, "7": nil} {
		if got := names(r.HoldersOf("GPU-1", instance)); !reflect.DeepEqual(got, want) {
			t.Errorf("instance %s is held by %v, want %v", instance, got, want)
		}
	}
}

func TestAnInstancesLastHolderIsRememberedWhileAnotherLives(t *testing.T) {
	r := newRig(t, true, container("t", "a", "main", "MIG-aaaa"), container("u", "b", "main", "MIG-bbbb"))
	r.LearnInstance("MIG-aaaa", "GPU-1", "3")
	r.LearnInstance("MIG-bbbb", "GPU-1", "5")
	r.ask(t)
	r.kubelet.set(0, container("u", "b", "main", "MIG-bbbb"))
	r.clock.pass(time.Minute)
	r.ask(t)
	if got := names(r.HoldersOf("GPU-1", "3")); !reflect.DeepEqual(got, []string{"t/a/main"}) {
		t.Errorf("the instance whose pod died is held by %v", got)
	}
	if got := names(r.Holders("GPU-1")); !reflect.DeepEqual(got, []string{"u/b/main"}) {
		t.Errorf("the GPU is held by %v, want who holds a part of it now", got)
	}
}

func TestAClaimsDeviceIsWhatItsResourceSliceSays(t *testing.T) {
	r := newRig(t, true, claim("t", "a", draDriver, "gpu-0"), claim("t", "b", draDriver, "gpu-1-mig-19-0-1"), claim("t", "c", "other.example.com", "card-7"))
	r.Learn("GPU-A", 0) // DCGM counts otherwise than the driver: its number 0 is minor 1
	r.Learn("GPU-B", 1)
	r.directory.devices = []apiserver.Device{
		{Driver: draDriver, Pool: "n1", Name: "gpu-0", UUID: "GPU-B"},
		{Driver: draDriver, Pool: "n1", Name: "gpu-1", UUID: "GPU-A"},
		{Driver: draDriver, Pool: "n1", Name: "gpu-1-mig-19-0-1", UUID: "MIG-1", Parent: "GPU-A"},
		{Driver: "other.example.com", Pool: "n1", Name: "card-7", UUID: "GPU-C"},
	}
	r.ask(t)
	if got := names(r.Holders("GPU-A")); !reflect.DeepEqual(got, []string{"t/a/main"}) {
		t.Errorf("without ResourceSlices GPU-A is held by %v, want what its number says", got)
	}
	r.aside(t)
	for gpu, want := range map[string][]string{"GPU-A": {"t/b/main"}, "GPU-B": {"t/a/main"}, "GPU-C": {"t/c/main"}, "MIG-1": {"t/b/main"}} {
		if got := names(r.Holders(gpu)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s is held by %v, want %v", gpu, got, want)
		}
	}
	r.kubelet.set(0, claim("t", "a", draDriver, "gpu-0"))
	r.aside(t)
	if got := names(r.Holders("GPU-A")); !reflect.DeepEqual(got, []string{"t/b/main"}) {
		t.Errorf("after its claim ended GPU-A is held by %v, want who held it last", got)
	}
}

func TestWhoseJobAPodIsIsAskedWhenAnythingChangesHands(t *testing.T) {
	r := newRig(t, true)
	job := &event.Job{APIVersion: "batch/v1", Kind: "Job", Namespace: "t", Name: "train", UID: "u1"}
	r.directory.pods = []apiserver.Pod{{Namespace: "t", Name: "a", UID: "p1", Job: job}, {Namespace: "t", Name: "web", UID: "p2"}}
	r.aside(t)
	if n := r.directory.times(); n != 0 {
		t.Fatalf("asked %d times though nobody holds anything", n)
	}
	r.kubelet.set(0, container("t", "a", "main", "GPU-1"))
	for range 3 {
		r.aside(t)
	}
	if n := r.directory.times(); n != 1 {
		t.Errorf("asked %d times for one change, want once", n)
	}
	if p, ok := r.Pod("t", "a"); !ok || p.UID != "p1" || !reflect.DeepEqual(p.Job, job) {
		t.Errorf("pod %+v %v", p, ok)
	}
	if ns, name, ok := r.PodOfUID("p2"); !ok || ns != "t" || name != "web" {
		t.Errorf("of UID p2: %s/%s %v", ns, name, ok)
	}
	if _, _, ok := r.PodOfUID(""); ok {
		t.Error("a pod without a UID was found")
	}
	r.clock.pass(directoryKeeps)
	r.aside(t)
	if n := r.directory.times(); n != 2 {
		t.Errorf("asked %d times, want once more after a while: a job may be made anew under its name", n)
	}
}

func TestAPodThatIsNotListedIsAskedForAgainAndNotAllTheTime(t *testing.T) {
	r := newRig(t, true, container("t", "a", "main", "GPU-1"))
	r.directory.err = errors.New("not allowed")
	for range 10 { // seconds
		r.aside(t)
	}
	if n := r.directory.times(); n != 1 {
		t.Errorf("a server that refuses was asked %d times in ten seconds", n)
	}
	r.directory.err = nil
	r.directory.pods = []apiserver.Pod{{Namespace: "t", Name: "a", UID: "p1"}}
	r.clock.pass(askDirectoryAfter)
	r.aside(t)
	if _, ok := r.Pod("t", "a"); !ok {
		t.Error("the pod is still unknown")
	}
}

func TestWhoWasNotGivenAGPUIsSaidByAFreshAnswerAlone(t *testing.T) {
	r := newRig(t, true, container("t", "a", "main", "GPU-1"), container("t", "b", "main", "MIG-aaaa"))
	r.LearnInstance("MIG-aaaa", "GPU-2", "3")
	if _, known := r.Given("GPU-1", "t", "a"); known {
		t.Error("known before the kubelet was asked")
	}
	r.ask(t)
	for _, c := range []struct {
		gpu, pod     string
		given, known bool
	}{{"GPU-1", "a", true, true}, {"GPU-1", "b", false, true}, {"GPU-2", "b", true, true}, {"GPU-3", "a", false, true}} {
		if given, known := r.Given(c.gpu, "t", c.pod); given != c.given || known != c.known {
			t.Errorf("%s of %s: %v, %v", c.gpu, c.pod, given, known)
		}
	}
	r.kubelet.set(0, container("t", "c", "main", "GPU-1"))
	r.ask(t)
	if given, known := r.Given("GPU-1", "t", "a"); given || !known {
		t.Errorf("the holder before: %v, %v", given, known)
	}
	r.clock.pass(2 * givenWithin)
	if _, known := r.Given("GPU-1", "t", "a"); known {
		t.Error("an old answer is taken for knowledge")
	}
}

func TestAKubeletThatFailsToAnswerLeavesNothingKnown(t *testing.T) {
	r := newRig(t, true, container("t", "a", "main", "GPU-1"))
	r.ask(t)
	r.kubelet.set(time.Minute)
	r.clock.pass(FreshFor)
	r.Refresh(t.Context(), 10*time.Millisecond)
	if _, known := r.Given("GPU-1", "t", "b"); known {
		t.Error("the answer before is taken for knowledge")
	}
}

func TestComponentsOfOneProcessShareAClientUntilTheLastStopsIt(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "k.sock")
	(&kubelet{pods: []*podresourcesv1.PodResources{container("t", "a", "main", "GPU-1")}}).serve(t, socket)
	open := func(socket string) *Client {
		c, err := Open(socket, apiserver.Options{}, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b := open(socket), open(socket)
	if a != b {
		t.Fatal("two clients")
	}
	if c := open(socket + "2"); c == a {
		t.Error("one client of two kubelets")
	} else {
		c.Stop()
	}
	a.Start()
	b.Start()
	a.Stop()
	b.Refresh(t.Context(), 10*time.Second)
	if got := b.Holders("GPU-1"); len(got) != 1 {
		t.Errorf("after one of two stopped it the client knows %v", got)
	}
	b.Stop()
	if c := open(socket); c == a {
		t.Error("a client that was stopped is given out again")
	} else {
		c.Stop()
	}
}

func FuzzAnAnswerOfTheKubelet(f *testing.F) {
	for _, pods := range [][]*podresourcesv1.PodResources{
		{container("t", "a", "main", "GPU-1", "GPU-1::3", "MIG-GPU-1/5/0", "nvidia1/gi3/vgpu0", "MIG-1")},
		{claim("t", "a", draDriver, "gpu-1-mig-1g10gb-14-0"), claim("", "", "", "")},
		{{}, {Containers: []*podresourcesv1.ContainerResources{nil, {Devices: []*podresourcesv1.ContainerDevices{nil}}}}},
	} {
		raw, err := proto.Marshal(&podresourcesv1.ListPodResourcesResponse{PodResources: pods})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var r podresourcesv1.ListPodResourcesResponse
		if proto.Unmarshal(raw, &r) != nil {
			return
		}
		shares := sharesOf(&r)
		if len(shares) > maxDevices {
			t.Fatalf("%d devices", len(shares))
		}
		for d, by := range shares {
			if d == "" || len(by) == 0 || len(by) > maxHolders {
				t.Fatalf("device %q is held by %d", d, len(by))
			}
		}
	})
}
