package podlabels

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor/processortest"
	"google.golang.org/grpc"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/pitcrew/pitcrew/collector/podresources"
	"github.com/pitcrew/pitcrew/receivers/dcgmreceiver"
)

// kubelet says who holds GPU-1.
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

func (k *kubelet) give(pods ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = nil
	for i, p := range pods {
		k.pods = append(k.pods, &podresourcesv1.PodResources{Namespace: "t", Name: p, Containers: []*podresourcesv1.ContainerResources{
			{Name: "main", Devices: []*podresourcesv1.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: []string{fmt.Sprintf("GPU-1::%d", i)}}}},
		}})
	}
}

type rig struct {
	*labeller
	kubelet   *kubelet
	directory *directory
	sink      consumertest.MetricsSink
	at        atomic.Int64 // unix ns
}

func newRig(t *testing.T, pods ...string) *rig {
	t.Helper()
	r := &rig{kubelet: &kubelet{}, directory: &directory{}}
	r.at.Store(1700000000e9)
	r.kubelet.give(pods...)
	cfg := NewFactory().CreateDefaultConfig().(*Config)
	cfg.PodResourcesSocket = filepath.Join(t.TempDir(), "k.sock")
	l, err := net.Listen("unix", cfg.PodResourcesSocket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	podresourcesv1.RegisterPodResourcesListerServer(s, r.kubelet)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	set := processortest.NewNopSettings(Type)
	p, err := NewFactory().CreateMetrics(t.Context(), set, cfg, &r.sink)
	if err != nil {
		t.Fatal(err)
	}
	r.labeller = p.(*labeller)
	now := func() time.Time { return time.Unix(0, r.at.Load()) }
	r.now, r.pods = now, podresources.New(cfg.PodResourcesSocket, r.directory, set.Logger, now)
	if err := p.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
	r.ask(t)
	return r
}

func (r *rig) after(d time.Duration) { r.at.Add(int64(d)) }

func (r *rig) ask(t *testing.T) {
	t.Helper()
	r.after(podresources.FreshFor)
	r.pods.Refresh(t.Context(), 10*time.Second)
}

// gauge adds a metric of one point; its labels are given in pairs.
func gauge(sm pmetric.ScopeMetrics, name string, kv ...string) {
	m := sm.Metrics().AppendEmpty()
	m.SetName(name)
	p := m.SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetIntValue(7)
	for i := 0; i < len(kv); i += 2 {
		p.Attributes().PutStr(kv[i], kv[i+1])
	}
}

// batch is a round of the dcgm receiver about GPU-1, in both spellings.
func batch() pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr("k8s.node.name", "n1")
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName(dcgmreceiver.ScopeName)
	gauge(sm, "hw.power", "hw.id", "GPU-1")
	gauge(sm, "pitcrew.gpu.count")
	sm = rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName(dcgmreceiver.DCGMNamesScope)
	gauge(sm, "DCGM_FI_DEV_POWER_USAGE", "gpu", "1", "UUID", "GPU-1")
	return md
}

// pass sends a batch through and lists its points: name{labels}, those that end a series with a cross.
func (r *rig) pass(t *testing.T, md pmetric.Metrics) []string {
	t.Helper()
	r.sink.Reset()
	before := &pmetric.ProtoMarshaler{}
	raw, _ := before.MarshalMetrics(md)
	if err := r.ConsumeMetrics(t.Context(), md); err != nil {
		t.Fatal(err)
	}
	if after, _ := before.MarshalMetrics(md); string(after) != string(raw) {
		t.Error("what came in was changed")
	}
	var out []string
	for _, rm := range r.sink.AllMetrics()[0].ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				for _, p := range m.Gauge().DataPoints().All() {
					var ls []string
					for k, v := range p.Attributes().All() {
						ls = append(ls, k+"="+v.AsString())
					}
					for k, v := range rm.Resource().Attributes().All() {
						ls = append(ls, k+"="+v.AsString())
					}
					slices.Sort(ls)
					s := m.Name() + "{" + strings.Join(ls, ",") + "}"
					if p.Flags().NoRecordedValue() {
						s = "✗" + s
					}
					out = append(out, s)
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

func want(t *testing.T, got []string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

const count = "pitcrew.gpu.count{k8s.node.name=n1}"

func TestAGPUsSeriesNameThePodThatHoldsItInEachSpelling(t *testing.T) {
	r := newRig(t, "a")
	want(t, r.pass(t, batch()), count,
		"hw.power{hw.id=GPU-1,k8s.container.name=main,k8s.namespace.name=t,k8s.node.name=n1,k8s.pod.name=a}",
		"DCGM_FI_DEV_POWER_USAGE{UUID=GPU-1,container=main,gpu=1,namespace=t,pod=a}")
}

func TestAGPUThatNobodyHoldsHasNoPodAndTheDCGMNamesHaveTheirOwnLabelsAlone(t *testing.T) {
	want(t, newRig(t).pass(t, batch()), count, "hw.power{hw.id=GPU-1,k8s.node.name=n1}", "DCGM_FI_DEV_POWER_USAGE{UUID=GPU-1,gpu=1}")
}

func TestAGPUOfSeveralPodsHasASeriesForEach(t *testing.T) {
	want(t, newRig(t, "a", "b").pass(t, batch()), count,
		"hw.power{hw.id=GPU-1,k8s.container.name=main,k8s.namespace.name=t,k8s.node.name=n1,k8s.pod.name=a}",
		"hw.power{hw.id=GPU-1,k8s.container.name=main,k8s.namespace.name=t,k8s.node.name=n1,k8s.pod.name=b}",
		"DCGM_FI_DEV_POWER_USAGE{UUID=GPU-1,container=main,gpu=1,namespace=t,pod=a}",
		"DCGM_FI_DEV_POWER_USAGE{UUID=GPU-1,container=main,gpu=1,namespace=t,pod=b}")
}

func TestASeriesThatChangesHandsEndsAsItsSuccessorBegins(t *testing.T) {
	only := func(all []string) []string {
		return slices.DeleteFunc(all, func(s string) bool { return !strings.Contains(s, "DCGM_FI") })
	}
	const prefix, bare = "DCGM_FI_DEV_POWER_USAGE{UUID=GPU-1,", "DCGM_FI_DEV_POWER_USAGE{UUID=GPU-1,gpu=1}"
	of := func(pod string) string { return prefix + "container=main,gpu=1,namespace=t,pod=" + pod + "}" }
	r := newRig(t)
	want(t, only(r.pass(t, batch())), bare)
	for _, c := range []struct {
		pods []string
		want []string
	}{
		{[]string{"a"}, []string{"✗" + bare, of("a")}},
		{[]string{"a"}, []string{of("a")}},
		{[]string{"a", "b"}, []string{of("a"), of("b")}},
		{[]string{"b"}, []string{"✗" + of("a"), of("b")}},
		{nil, []string{of("b")}}, // the pod is gone; what it left behind is still its own
	} {
		r.kubelet.give(c.pods...)
		r.ask(t)
		want(t, only(r.pass(t, batch())), c.want...)
	}
	r.after(podresources.KeepFor)
	want(t, only(r.pass(t, batch())), "✗"+of("b"), bare)
}

func TestASeriesIsKnownAgainWhateverTheOrderOfItsLabels(t *testing.T) {
	one, other := pmetric.NewNumberDataPoint(), pmetric.NewNumberDataPoint()
	one.Attributes().PutStr("a", "1")
	one.Attributes().PutInt("b", 2)
	other.Attributes().PutInt("b", 2)
	other.Attributes().PutStr("a", "1")
	if key(0, "m")+hash(one.Attributes()) != key(0, "m")+hash(other.Attributes()) {
		t.Error("two orders, two keys")
	}
	other.Attributes().PutStr("a", "2")
	if key(0, "m")+hash(one.Attributes()) == key(0, "m")+hash(other.Attributes()) || key(0, "m")+hash(one.Attributes()) == key(0, "n")+hash(one.Attributes()) {
		t.Error("two series, one key")
	}
}

// step is a sample of a rank that uses GPU-1.
func step() pmetric.Metrics {
	md := pmetric.NewMetrics()
	sm := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty()
	gauge(sm, rankMetric, "hw.id", "GPU-1", "k8s.pod.uid", "u")
	sm.Metrics().At(0).Gauge().DataPoints().At(0).Attributes().PutInt("pitcrew.rank", 5)
	return md
}

func TestARankThatUsesTheGPUIsNamedWhileItSteps(t *testing.T) {
	r := newRig(t, "a")
	want(t, r.pass(t, step()), "pitcrew.train.step{hw.id=GPU-1,k8s.pod.uid=u,pitcrew.rank=5}") // a rank's own series are not touched
	want(t, r.pass(t, batch()), count,
		"hw.power{hw.id=GPU-1,k8s.container.name=main,k8s.namespace.name=t,k8s.node.name=n1,k8s.pod.name=a,pitcrew.rank=5}",
		"DCGM_FI_DEV_POWER_USAGE{UUID=GPU-1,container=main,gpu=1,namespace=t,pod=a}")
	r.after(rankFor)
	if got := r.pass(t, batch()); slices.ContainsFunc(got, func(s string) bool { return !strings.HasPrefix(s, "✗") && strings.Contains(s, "rank") }) {
		t.Errorf("a rank of a minute ago is still named: %v", got)
	}
}

func TestWhatIsRememberedOfSeriesIsBoundedAndForgotten(t *testing.T) {
	r := newRig(t, "a")
	for i := range maxSeries + 100 {
		r.series[uint64(i)] = series{passed: r.now()}
		if len(r.series) > maxSeries {
			delete(r.series, uint64(i))
		}
	}
	r.passed(t, batch())
	if n := len(r.series); n > maxSeries {
		t.Errorf("%d series are remembered", n)
	}
	r.after(2 * forgetFor)
	r.pass(t, batch())
	if n := len(r.series); n > 10 {
		t.Errorf("%d series are remembered, long after they ended", n)
	}
}

func TestOfASeriesOneValueAnIntervalPasses(t *testing.T) {
	r := newRig(t, "a")
	r.interval = 5 * time.Second
	passed := map[string]int{}
	for range 100 { // ten seconds
		for _, md := range []pmetric.Metrics{step(), batch()} {
			r.sink.Reset()
			if err := r.ConsumeMetrics(t.Context(), md); err != nil {
				t.Fatal(err)
			}
			for _, out := range r.sink.AllMetrics() {
				for _, rm := range out.ResourceMetrics().All() {
					for _, sm := range rm.ScopeMetrics().All() {
						for _, m := range sm.Metrics().All() {
							passed[m.Name()] += m.Gauge().DataPoints().Len()
						}
					}
				}
			}
		}
		r.after(100 * time.Millisecond)
	}
	want := map[string]int{"pitcrew.train.step": 3, "hw.power": 3, "pitcrew.gpu.count": 3, "DCGM_FI_DEV_POWER_USAGE": 3}
	if !reflect.DeepEqual(passed, want) {
		t.Errorf("in ten seconds passed %v, want %v", passed, want)
	}
}
