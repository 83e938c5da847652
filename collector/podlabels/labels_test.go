package podlabels

import (
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/collector/podresources"
)

func TestAPointThatSaysWhoseItIsIsOfNobodyElse(t *testing.T) {
	r := newRig(t, "a", "b")
	r.pods.LearnHolders("NPU-1", []podresources.Holder{{Namespace: "t", Pod: "x", Container: "main"}, {Namespace: "t", Pod: "y", Container: "main"}})
	md := pmetric.NewMetrics()
	sm := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty()
	for _, pod := range []string{"x", "y"} {
		gauge(sm, "pitcrew.gpu.health", "hw.id", "NPU-1", "k8s.namespace.name", "t", "k8s.pod.name", pod, "k8s.container.name", "main")
	}
	gauge(sm, "hw.power", "hw.id", "NPU-2")
	want(t, r.pass(t, md), "hw.power{hw.id=NPU-2}",
		"pitcrew.gpu.health{hw.id=NPU-1,k8s.container.name=main,k8s.namespace.name=t,k8s.pod.name=x}",
		"pitcrew.gpu.health{hw.id=NPU-1,k8s.container.name=main,k8s.namespace.name=t,k8s.pod.name=y}")
}

func TestSeriesThatOnlyTheirSourcesTellApartAreKeptApart(t *testing.T) {
	r := newRig(t)
	r.interval = 10 * time.Second
	ranks := func() pmetric.Metrics {
		md := pmetric.NewMetrics()
		for _, rank := range []string{"0", "1"} {
			rm := md.ResourceMetrics().AppendEmpty()
			rm.Resource().Attributes().PutStr("nv.dl.rank", rank)
			gauge(rm.ScopeMetrics().AppendEmpty(), "megatron.training.loss")
		}
		return md
	}
	want(t, r.pass(t, ranks()), "megatron.training.loss{nv.dl.rank=0}", "megatron.training.loss{nv.dl.rank=1}")
	r.after(time.Second)
	r.sink.Reset()
	if err := r.ConsumeMetrics(t.Context(), ranks()); err != nil || len(r.sink.AllMetrics()) != 0 {
		t.Errorf("%d batches within the interval, %v", len(r.sink.AllMetrics()), err)
	}
}
