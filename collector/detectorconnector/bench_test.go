package detectorconnector

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/connector/connectortest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/detector/anomaly"
)

// second is what a node of eight GPUs and eight ranks at five steps a second sends in one: ten samples of the rings, one of the GPUs.
func second(at time.Time, i int) (batches []pmetric.Metrics) {
	add := func(sm pmetric.ScopeMetrics, index map[string]pmetric.NumberDataPointSlice, name string, t time.Time, v float64, attrs ...string) pcommon.Map {
		ps, ok := index[name]
		if !ok {
			m := sm.Metrics().AppendEmpty()
			m.SetName(name)
			ps = m.SetEmptyGauge().DataPoints()
			index[name] = ps
		}
		p := ps.AppendEmpty()
		p.SetTimestamp(pcommon.NewTimestampFromTime(t))
		p.SetDoubleValue(v)
		for j := 0; j < len(attrs); j += 2 {
			p.Attributes().PutStr(attrs[j], attrs[j+1])
		}
		return p.Attributes()
	}
	for tenth := range 10 {
		t := at.Add(time.Duration(tenth) * 100 * time.Millisecond)
		md := pmetric.NewMetrics()
		sm, index := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty(), map[string]pmetric.NumberDataPointSlice{}
		for r := range 8 {
			put := func(name string, v float64, attrs ...string) {
				a := add(sm, index, name, t, v, append([]string{"k8s.pod.uid", "0a7f3c1e-5b0d-4a53-9d7e-3f1c2b4a6d80"}, attrs...)...)
				a.PutInt("pitcrew.rank", int64(r))
				a.PutInt("pitcrew.local_rank", int64(r))
				a.PutInt("pitcrew.world_size", 8)
				a.PutInt("pitcrew.attempt", 0)
				a.PutStr("hw.id", fmt.Sprintf("GPU-%d", r))
			}
			for _, name := range []string{"step", "step.age", "heartbeat.age", "section", "checkpoint.step", "checkpoint.age", "checkpoint.duration", "memory.allocated", "memory.reserved", "memory.peak", "memory.retries", "nonfinite"} {
				put("pitcrew.train."+name, 1)
			}
			if tenth%2 == 1 {
				v := 0.2 * (1 + 0.01*math.Sin(float64(i*7+r+tenth)))
				for _, name := range []string{"step.duration", "communication.wait", "compute.duration", "launch.latency", "throughput", "mfu", "loss", "grad_norm"} {
					put("pitcrew.train."+name, v)
				}
				for _, phase := range []string{"data_wait", "forward", "backward", "optimizer"} {
					put("pitcrew.train.phase.duration", v, "pitcrew.phase", phase)
				}
			}
		}
		batches = append(batches, md)
	}
	md := pmetric.NewMetrics()
	sm, index := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty(), map[string]pmetric.NumberDataPointSlice{}
	for g := range 8 {
		for k := range anomaly.Catalogue {
			if s := &anomaly.Catalogue[k]; s.About == anomaly.GPU {
				v := 100 * (1 + 0.01*math.Sin(float64(i*3+g+k)))
				add(sm, index, s.Metric, at, v, "hw.id", fmt.Sprintf("GPU-%d", g), "hw.type", "gpu", s.Attr, s.Value)
			}
		}
	}
	return append(batches, md)
}

// BenchmarkASecondOfANode gives the anomalies' share of the agent's time: ns/op of 1e9.
func BenchmarkASecondOfANode(b *testing.B) {
	cfg := createDefaultConfig().(*Config)
	cfg.Node, cfg.PodResourcesSocket, cfg.BootIDFile = "n1", "", "/proc/sys/kernel/random/boot_id"
	c, err := NewFactory().CreateMetricsToLogs(b.Context(), connectortest.NewNopSettings(Type), cfg, consumertest.NewNop())
	if err != nil {
		b.Fatal(err)
	}
	if err := c.Start(b.Context(), componenttest.NewNopHost()); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = c.Shutdown(context.Background()) }()
	a := c.(*metricsSkin).anomalies
	now := t0
	a.now = func() time.Time { return now }
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		now = now.Add(time.Second)
		batches := second(now, i)
		b.StartTimer()
		for _, md := range batches {
			a.judge(md)
		}
	}
}
