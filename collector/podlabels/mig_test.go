package podlabels

import (
	"slices"
	"testing"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/receivers/dcgmreceiver"
)

// What the dcgm receiver says of instances is enough to name the pod that was given MIG-<uuid>.
func TestAnOpaqueInstanceIsAttributedByWhatDCGMSaysOfIt(t *testing.T) {
	r := newRig(t)
	r.kubelet.hold("one MIG-aaaa", "two MIG-bbbb")
	r.ask(t)
	info := pmetric.NewMetrics()
	sm := info.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty()
	gauge(sm, migMetric, "hw.id", "GPU-1/3", "hw.parent", "GPU-1", instanceAttribute, "3/0", "pitcrew.mig.uuid", "MIG-aaaa")
	gauge(sm, migMetric, "hw.id", "GPU-1/5", "hw.parent", "GPU-1", instanceAttribute, "5/0", "pitcrew.mig.uuid", "MIG-bbbb")
	r.pass(t, info)
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	gauge(rm.ScopeMetrics().AppendEmpty(), "hw.gpu.memory.usage", "hw.id", "GPU-1/5", "hw.parent", "GPU-1", instanceAttribute, "5")
	names := rm.ScopeMetrics().AppendEmpty()
	names.Scope().SetName(dcgmreceiver.DCGMNamesScope)
	gauge(names, "DCGM_FI_DEV_FB_USED", "gpu", "1", "UUID", "GPU-1", "GPU_I_ID", "3")
	got := r.pass(t, md)
	for _, series := range []string{
		"DCGM_FI_DEV_FB_USED{GPU_I_ID=3,UUID=GPU-1,container=one,gpu=1,namespace=t,pod=a}",
		"hw.gpu.memory.usage{hw.id=GPU-1/5,hw.parent=GPU-1,k8s.container.name=two,k8s.namespace.name=t,k8s.pod.name=a,pitcrew.mig=5}",
	} {
		if !slices.Contains(got, series) {
			t.Errorf("no %s among %v", series, got)
		}
	}
}
