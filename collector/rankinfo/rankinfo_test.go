package rankinfo

import (
	"fmt"
	"strings"
	"testing"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/pitcrew/pitcrew/receivers/torchreceiver"
)

func start(t *testing.T) (processor.Metrics, *consumertest.MetricsSink) {
	t.Helper()
	sink := &consumertest.MetricsSink{}
	f := NewFactory()
	p, err := f.CreateMetrics(t.Context(), processortest.NewNopSettings(Type), f.CreateDefaultConfig(), sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Shutdown(t.Context()) })
	return p, sink
}

func one(scope, name string, attrs map[string]any) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr("pitcrew.job.uid", "job-1")
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName(scope)
	m := sm.Metrics().AppendEmpty()
	m.SetName(name)
	if err := m.SetEmptyGauge().DataPoints().AppendEmpty().Attributes().FromRaw(attrs); err != nil {
		panic(err)
	}
	return md
}

const dcgm = "github.com/pitcrew/pitcrew/receivers/dcgmreceiver"

func gpu(id, model, driver string) pmetric.Metrics {
	return one(dcgm, gpuMetric, map[string]any{"hw.id": id, "hw.model": model, "hw.driver_version": driver})
}

// ask sends a rank's info and gives what the gateway is told of its GPU.
func ask(t *testing.T, p processor.Metrics, sink *consumertest.MetricsSink, id string) string {
	t.Helper()
	sink.Reset()
	in := one(torchreceiver.ScopeName, rankMetric, map[string]any{"hw.id": id, "pitcrew.rank": 3})
	in.MarkReadOnly() // others share it
	if err := p.ConsumeMetrics(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if len(sink.AllMetrics()) != 1 {
		t.Fatalf("%d batches", len(sink.AllMetrics()))
	}
	rm := sink.AllMetrics()[0].ResourceMetrics().At(0)
	if v, _ := rm.Resource().Attributes().Get("pitcrew.job.uid"); v.Str() != "job-1" {
		t.Error("the job is lost on the way")
	}
	a := rm.ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0).Attributes()
	return text(a, "hw.model") + "|" + text(a, "hw.driver_version")
}

func TestARanksInfoSaysWhatItsGPUIs(t *testing.T) {
	p, sink := start(t)
	want := func(id, want string) {
		t.Helper()
		if got := ask(t, p, sink, id); got != want {
			t.Errorf("GPU %q is %q, want %q", id, got, want)
		}
	}
	learn := func(md pmetric.Metrics) {
		t.Helper()
		sink.Reset()
		if err := p.ConsumeMetrics(t.Context(), md); err != nil || len(sink.AllMetrics()) > 0 {
			t.Errorf("what GPUs say passes: %v", err)
		}
	}
	want("GPU-1", "|") // nobody described one yet
	learn(gpu("GPU-1", "H100", "570.1"))
	want("GPU-1", "H100|570.1")
	want("", "H100|570.1") // all are the same
	want("MIG-b", "|")     // and an instance is not all of one
	learn(gpu("GPU-2", "H200", "570.1"))
	want("GPU-2", "H200|570.1")
	want("GPU-9", "|")                 // they are not
	learn(gpu("GPU-1", "H100", "580")) // after a new driver
	want("GPU-1", "H100|580")
	learn(one(dcgm, migMetric, map[string]any{"hw.id": "GPU-1/1", "hw.parent": "GPU-1", "pitcrew.mig.uuid": "MIG-a", "pitcrew.mig.profile": "1g.10gb"}))
	want("MIG-a", "H100 1g.10gb|580")
}

func TestNothingButTheRanksOwnWordsPasses(t *testing.T) {
	p, sink := start(t)
	md := one(torchreceiver.ScopeName, "pitcrew.train.step", nil)
	one("somebody", "pitcrew.train.step", nil).ResourceMetrics().At(0).ScopeMetrics().MoveAndAppendTo(md.ResourceMetrics().At(0).ScopeMetrics())
	one("somebody", "pitcrew.train.step", nil).ResourceMetrics().MoveAndAppendTo(md.ResourceMetrics())
	one(dcgm, "pitcrew.gpu.utilization", nil).ResourceMetrics().MoveAndAppendTo(md.ResourceMetrics())
	if err := p.ConsumeMetrics(t.Context(), md); err != nil {
		t.Fatal(err)
	}
	got := sink.AllMetrics()
	if len(got) != 1 || got[0].DataPointCount() != 1 || got[0].ResourceMetrics().At(0).ScopeMetrics().At(0).Scope().Name() != torchreceiver.ScopeName {
		t.Errorf("%d batches passed, the first with %d points", len(got), got[0].DataPointCount())
	}
}

func TestMadeUpGPUsAreBoundedAndLongNamesAreNotTaken(t *testing.T) {
	d := &describer{gpus: map[string]card{}}
	for i := range 3 * maxGPUs {
		d.pass(gpu(fmt.Sprint("GPU-", i), "H100", "1"))
	}
	d.pass(gpu("GPU-0", strings.Repeat("x", 1000), strings.Repeat("y", 1000)))
	if len(d.gpus) != maxGPUs || d.gpus["GPU-0"] != (card{"H100", "1"}) {
		t.Errorf("%d GPUs, the first %+v", len(d.gpus), d.gpus["GPU-0"])
	}
}
