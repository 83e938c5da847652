package podlabels

import (
	"testing"

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
