package podlabels

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"go.opentelemetry.io/collector/pdata/pmetric"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/pitcrew/pitcrew/collector/apiserver"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/receivers/dcgmreceiver"
)

// directory stands in for the API server.
type directory struct{ pods []apiserver.Pod }

func (d *directory) Pods(context.Context) ([]apiserver.Pod, error)       { return d.pods, nil }
func (d *directory) Devices(context.Context) ([]apiserver.Device, error) { return nil, nil }

// hold has containers of pod t/a hold devices: "main GPU-1 GPU-2".
func (k *kubelet) hold(containers ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	pod := &podresourcesv1.PodResources{Namespace: "t", Name: "a"}
	for _, c := range containers {
		f := strings.Fields(c)
		pod.Containers = append(pod.Containers, &podresourcesv1.ContainerResources{Name: f[0], Devices: []*podresourcesv1.ContainerDevices{
			{ResourceName: "nvidia.com/gpu", DeviceIds: f[1:]}}})
	}
	k.pods = []*podresourcesv1.PodResources{pod}
}

// used is a round about GPUs: utilisation as a share, memory in bytes.
func used(values map[string][2]float64) pmetric.Metrics {
	md := pmetric.NewMetrics()
	sm := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty()
	sm.Scope().SetName(dcgmreceiver.ScopeName)
	for k, name := range []string{"hw.gpu.utilization", "hw.gpu.memory.usage"} {
		m := sm.Metrics().AppendEmpty()
		m.SetName(name)
		points := m.SetEmptyGauge().DataPoints()
		for gpu, v := range values {
			p := points.AppendEmpty()
			p.SetDoubleValue(v[k])
			p.Attributes().PutStr("hw.id", gpu)
		}
	}
	return md
}

// ofContainers passes a batch and gives the values of the containers' metrics: "metric container" → value.
func (r *rig) ofContainers(t *testing.T, md pmetric.Metrics) map[string]float64 {
	t.Helper()
	r.sink.Reset()
	if err := r.ConsumeMetrics(t.Context(), md); err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, rm := range r.sink.AllMetrics()[0].ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			if sm.Scope().Name() != ScopeName {
				continue
			}
			for _, m := range sm.Metrics().All() {
				for _, p := range m.Gauge().DataPoints().All() {
					c, _ := p.Attributes().Get("k8s.container.name")
					out[m.Name()+" "+c.Str()] = p.DoubleValue()
				}
			}
		}
	}
	return out
}

func TestAContainersUseIsThatOfTheGPUsItHasForItself(t *testing.T) {
	r := newRig(t)
	r.kubelet.hold("main GPU-1 GPU-2", "side GPU-3::0", "other GPU-3::1 GPU-4", "mig MIG-GPU-5/3/0")
	r.ask(t)
	got := r.ofContainers(t, used(map[string][2]float64{"GPU-1": {0.5, 100}, "GPU-2": {1, 20}, "GPU-3": {1, 7}, "GPU-4": {0.25, 3}, "GPU-5": {1, 1}, "GPU-6": {1, 1}}))
	want := map[string]float64{
		containerUtilization + " main": 0.75, containerMemory + " main": 120, containerCount + " main": 2,
		containerUtilization + " other": 0.25, containerMemory + " other": 3, containerCount + " other": 1,
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s is %v, want %v", k, got[k], v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %v: of a shared GPU and of an instance nothing is known", got)
	}
}

func TestARankOnAnInstanceIsNamedOnTheInstancesSeriesAlone(t *testing.T) {
	r := newRig(t)
	r.kubelet.hold("one MIG-aaaa", "two MIG-bbbb")
	r.ask(t)
	r.pods.LearnInstance("MIG-aaaa", "GPU-1", "3/0")
	r.pods.LearnInstance("MIG-bbbb", "GPU-1", "5/0")
	md := step()
	md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0).Attributes().PutStr("hw.id", "MIG-aaaa")
	r.pass(t, md)
	md = pmetric.NewMetrics()
	sm := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty()
	for _, gi := range []string{"3", "5"} {
		gauge(sm, "pitcrew.gpu.activity", "hw.id", "GPU-1/"+gi, "hw.parent", "GPU-1", instanceAttribute, gi)
	}
	want(t, r.pass(t, md),
		"pitcrew.gpu.activity{hw.id=GPU-1/3,hw.parent=GPU-1,k8s.container.name=one,k8s.namespace.name=t,k8s.pod.name=a,pitcrew.mig=3,pitcrew.rank=5}",
		"pitcrew.gpu.activity{hw.id=GPU-1/5,hw.parent=GPU-1,k8s.container.name=two,k8s.namespace.name=t,k8s.pod.name=a,pitcrew.mig=5}")
}

func TestAnInstancesMemoryIsThatOfTheContainerThatHasItForItself(t *testing.T) {
	r := newRig(t)
	r.kubelet.hold("one MIG-aaaa", "two MIG-bbbb::0", "three MIG-bbbb::1")
	r.ask(t)
	r.pods.LearnInstance("MIG-aaaa", "GPU-1", "3/0")
	r.pods.LearnInstance("MIG-bbbb", "GPU-1", "5/0")
	md := pmetric.NewMetrics()
	sm := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty()
	for _, id := range []string{"GPU-1", "GPU-1/3", "GPU-1/5"} {
		gauge(sm, "hw.gpu.memory.usage", "hw.id", id)
	}
	got := r.ofContainers(t, md)
	if len(got) != 2 || got[containerMemory+" one"] != 7 || got[containerCount+" one"] != 1 {
		t.Errorf("got %v, want the memory of the one that has an instance for itself", got)
	}
}

func TestMetadataNamesTheContainersMetrics(t *testing.T) {
	raw, err := os.ReadFile("metadata.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var meta struct {
		Metrics map[string]struct {
			Unit        string `yaml:"unit"`
			Description string `yaml:"description"`
		} `yaml:"metrics"`
	}
	if err := yaml.Unmarshal(raw, &meta); err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	r.kubelet.hold("main GPU-1")
	r.ask(t)
	r.ofContainers(t, used(map[string][2]float64{"GPU-1": {0.5, 100}}))
	n := 0
	for _, rm := range r.sink.AllMetrics()[0].ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if sm.Scope().Name() != ScopeName {
					continue
				}
				n++
				if d := meta.Metrics[m.Name()]; d.Unit != m.Unit() || d.Description != m.Description() {
					t.Errorf("%s is described as %+v", m.Name(), d)
				}
			}
		}
	}
	if n != len(meta.Metrics) {
		t.Errorf("%d metrics, %d described", n, len(meta.Metrics))
	}
}

func TestAContainersUseEndsWithIt(t *testing.T) {
	r := newRig(t)
	r.kubelet.hold("main GPU-1")
	r.ask(t)
	md := used(map[string][2]float64{"GPU-1": {0.5, 100}})
	if got := r.ofContainers(t, md); len(got) != 3 {
		t.Fatalf("got %v", got)
	}
	r.kubelet.give()
	r.ask(t)
	if got := r.ofContainers(t, md); len(got) != 0 {
		t.Errorf("after the pod ended: %v", got)
	}
}

// Of two values the one that nobody renews is no longer told; the other goes on.
func TestAContainersUseIsNotOlderThanAMinute(t *testing.T) {
	r := newRig(t)
	r.kubelet.hold("main GPU-1")
	r.ask(t)
	both := used(map[string][2]float64{"GPU-1": {0.5, 100}})
	if got := r.ofContainers(t, both); got[containerMemory+" main"] != 100 {
		t.Fatalf("got %v", got)
	}
	both.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().RemoveIf(func(m pmetric.Metric) bool { return m.Name() == "hw.gpu.memory.usage" })
	r.after(useFor)
	r.ask(t)
	got := r.ofContainers(t, both)
	if _, told := got[containerMemory+" main"]; told || got[containerUtilization+" main"] != 0.5 {
		t.Errorf("a minute later: %v", got)
	}
}

func TestAGPUsSeriesNameTheJobAndTheDCGMNamesDoNot(t *testing.T) {
	r := newRig(t)
	r.directory.pods = []apiserver.Pod{{Namespace: "t", Name: "a", UID: "u", Job: &event.Job{APIVersion: "batch/v1", Kind: "Job", Name: "train"}}}
	r.kubelet.give("a")
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) { // Touch asks aside
		r.after(5 * time.Second)
		got := r.pass(t, batch())
		if slices.Contains(got, "hw.power{hw.id=GPU-1,k8s.container.name=main,k8s.namespace.name=t,k8s.node.name=n1,k8s.pod.name=a,pitcrew.job.name=train}") {
			if !slices.Contains(got, "DCGM_FI_DEV_POWER_USAGE{UUID=GPU-1,container=main,gpu=1,namespace=t,pod=a}") {
				t.Errorf("the DCGM names have other labels than dcgm-exporter's: %v", got)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no job is named: %v", got)
		}
	}
}

func TestAnInstancesSeriesAreItsHoldersAlone(t *testing.T) {
	r := newRig(t)
	r.kubelet.hold("one MIG-GPU-1/3/0", "two MIG-GPU-1/5/0")
	r.ask(t)
	md := pmetric.NewMetrics()
	sm := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty()
	gauge(sm, "hw.gpu.memory.usage", "hw.id", "GPU-1", instanceAttribute, "5")
	want(t, r.pass(t, md), "hw.gpu.memory.usage{hw.id=GPU-1,k8s.container.name=two,k8s.namespace.name=t,k8s.pod.name=a,pitcrew.mig=5}")
}
