package detectorconnector

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/connector/connectortest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

// gateway is the connector with scope jobs, and a job of eight ranks on four nodes that sends to it as agents do: once a second what
// has ended since.
type gateway struct {
	*jobs
	t    *testing.T
	sink *sink
	rng  *rand.Rand
	at   atomic.Int64 // the time, Unix ns; the connector's own goroutine reads it too
	step int64
	slow float64 // rank 5
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	cfg := createDefaultConfig().(*Config)
	cfg.Cluster, cfg.Node, cfg.Scope = "c", "gw-0", ScopeJobs
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	g := &gateway{t: t, sink: &sink{}, rng: rand.New(rand.NewPCG(3, 3)), slow: 1}
	g.at.Store(t0.UnixNano())
	c, err := NewFactory().CreateMetricsToLogs(t.Context(), connectortest.NewNopSettings(Type), cfg, g.sink)
	if err != nil {
		t.Fatal(err)
	}
	g.jobs = c.(*jobs)
	g.now = func() time.Time { return time.Unix(0, g.at.Load()) }
	if err := g.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return g
}

// seconds lets time pass, five steps a second.
func (g *gateway) seconds(n int) {
	g.t.Helper()
	for range n {
		batches := make([]pmetric.Metrics, 4)
		for k := range batches {
			batches[k] = pmetric.NewMetrics()
		}
		for range 5 {
			g.step++
			at := time.Unix(0, g.at.Add(int64(200*time.Millisecond)))
			for rank := range 8 {
				compute := 0.1 * math.Exp(0.01*g.rng.NormFloat64())
				if rank == 5 {
					compute *= g.slow
				}
				step(batches[rank/2], fmt.Sprint("n", rank/2), rank, g.step, at, 0.2, compute)
			}
		}
		for _, k := range g.rng.Perm(4) {
			if err := g.ConsumeMetrics(g.t.Context(), batches[k]); err != nil {
				g.t.Fatal(err)
			}
		}
	}
}

// step appends the points of one step, as the torch receiver does.
func step(md pmetric.Metrics, node string, rank int, number int64, at time.Time, duration, compute float64) {
	if md.ResourceMetrics().Len() == 0 {
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr("k8s.node.name", node)
		rm.Resource().Attributes().PutStr("pitcrew.job.uid", "job-1")
		rm.ScopeMetrics().AppendEmpty()
	}
	sm := md.ResourceMetrics().At(0).ScopeMetrics().At(0)
	for name, v := range map[string]float64{
		"pitcrew.train.step": float64(number), "pitcrew.train.step.duration": duration, "pitcrew.train.compute.duration": compute,
		"pitcrew.train.communication.wait": duration - compute, "pitcrew.train.throughput": 32 / duration, "pitcrew.train.loss": 0.5,
	} {
		m := sm.Metrics().AppendEmpty()
		m.SetName(name)
		p := m.SetEmptyGauge().DataPoints().AppendEmpty()
		p.SetTimestamp(pcommon.NewTimestampFromTime(at))
		p.SetDoubleValue(v)
		if err := p.Attributes().FromRaw(map[string]any{
			"k8s.pod.uid": "pod-" + node, "pitcrew.rank": rank, "pitcrew.local_rank": rank % 2, "pitcrew.world_size": 8, "pitcrew.attempt": 0, "hw.id": fmt.Sprint("GPU-", rank),
		}); err != nil {
			panic(err)
		}
	}
}

func (g *gateway) said() (es []event.Event) {
	g.t.Helper()
	for _, ld := range g.sink.AllLogs() {
		for _, r := range ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().All() {
			e, err := event.Decode(r.Body().Bytes().AsRaw())
			if err != nil {
				g.t.Fatal(err)
			}
			if key, ok := r.Attributes().Get(semconv.ConditionKey); !ok || !strings.HasPrefix(key.Str(), e.Data.Cause.Signal()+" ") {
				g.t.Errorf("%s is listed as %q", e.Data.Cause.Signal(), key.AsString())
			}
			if only, ok := r.Attributes().Get(semconv.ConditionOnly); !ok || !only.Bool() {
				es = append(es, e)
			}
		}
	}
	return es
}

func TestARankIsComparedWithItsPeersOnAllNodes(t *testing.T) {
	g := newGateway(t)
	g.seconds(30)
	if es := g.said(); len(es) > 0 {
		t.Fatalf("said %+v", es)
	}
	g.slow = 1.3
	g.seconds(8)
	es := g.said()
	if len(es) != 1 {
		t.Fatalf("said %+v", es)
	}
	tg := es[0].Data.Target
	if es[0].Data.Cause.Signal() != "rank/straggler" || *tg.Rank != 5 || tg.Node != "n2" || tg.PodUID != "pod-n2" || tg.GPU != "GPU-5" || tg.Job.UID != "job-1" || tg.WorldSize != 8 {
		t.Errorf("said %+v", es[0])
	}
	if event.GatewayOf(es[0].Source) != "gw-0" {
		t.Errorf("source %s", es[0].Source)
	}
}

func TestWhatAPipelineRefusesOfJobsIsSentWithTheNext(t *testing.T) {
	g := newGateway(t)
	g.seconds(30)
	g.sink.refuse = errors.New("full")
	g.slow = 1.4
	g.seconds(8)
	g.sink.refuse = nil
	g.seconds(1)
	if es := g.said(); len(es) != 1 || es[0].Data.Cause.Name != "straggler" {
		t.Errorf("said %+v", es)
	}
}

func TestAGatewayTakesAnyPoint(t *testing.T) {
	g := newGateway(t)
	md := pmetric.NewMetrics()
	step(md, strings.Repeat("n", 1000), 0, -5, t0, math.NaN(), math.Inf(-1))
	for name := range stepMetrics {
		m := md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().AppendEmpty()
		m.SetName(name)
		m.SetEmptyHistogram().DataPoints().AppendEmpty().SetTimestamp(1)
		m = md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().AppendEmpty()
		m.SetName(name)
		p := m.SetEmptySum().DataPoints().AppendEmpty()
		p.SetIntValue(math.MaxInt64)
		p.SetTimestamp(math.MaxUint64)
		p.Attributes().PutStr("pitcrew.rank", "three")
		p.Attributes().PutEmptySlice("k8s.pod.uid").AppendEmpty().SetStr("x")
	}
	if err := g.ConsumeMetrics(t.Context(), md); err != nil {
		t.Error(err)
	}
	if c, _ := g.counts(); c.Malformed == 0 || c.Ranks != 0 {
		t.Errorf("counts %+v", c)
	}
}

func TestScopeJobsHasNoLogsToReadAndSaysSo(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	cfg.Scope = ScopeJobs
	if _, err := NewFactory().CreateLogsToLogs(t.Context(), connectortest.NewNopSettings(Type), cfg, consumertest.NewNop()); err == nil {
		t.Error("a pipeline of logs is accepted")
	}
	cfg.Jobs.Forget = cfg.Jobs.Absent
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "forget") {
		t.Errorf("%v does not name forget", err)
	}
}

func TestTheComparisonsCountsAreTheGatewaysMetrics(t *testing.T) {
	tel := componenttest.NewTelemetry()
	set := connectortest.NewNopSettings(Type)
	set.TelemetrySettings = tel.NewTelemetrySettings()
	cfg := createDefaultConfig().(*Config)
	cfg.Scope = ScopeJobs
	c, err := NewFactory().CreateMetricsToLogs(t.Context(), set, cfg, consumertest.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	md := pmetric.NewMetrics()
	step(md, "n1", 0, 1, t0, 0.2, 0.1)
	if err := c.ConsumeMetrics(t.Context(), md); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile("metadata.yaml")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"pitcrew.detector.jobs.dropped"}
	for _, c := range jobsCounters {
		names = append(names, c.name)
	}
	for _, g := range jobsGauges {
		names = append(names, g.name)
	}
	for _, name := range names {
		m, err := tel.GetMetric(name)
		_, row, ok := strings.Cut(string(raw), "    "+name+": {")
		row, _, _ = strings.Cut(row, "\n")
		if err != nil || !ok || !strings.Contains(row, m.Description) || !strings.Contains(row, m.Unit) {
			t.Errorf("%s: %+v, %v; metadata.yaml says %s", name, m, err, row)
		}
	}
	if err := errors.Join(c.Shutdown(t.Context()), tel.Shutdown(t.Context())); err != nil {
		t.Error(err)
	}
}

// BenchmarkRankStep is one step of one rank through the connector, as a gateway gets it: eight nodes of eight ranks, once a second what
// has ended since.
func BenchmarkRankStep(b *testing.B) {
	cfg := createDefaultConfig().(*Config)
	cfg.Cluster, cfg.Node, cfg.Scope = "c", "gw-0", ScopeJobs
	j, err := newJobs(connectortest.NewNopSettings(Type), cfg, consumertest.NewNop())
	if err != nil {
		b.Fatal(err)
	}
	const nodes, perNode, perBatch = 8, 8, 5
	at, number := t0, int64(0)
	j.now = func() time.Time { return at }
	rng := rand.New(rand.NewPCG(3, 3))
	b.ReportAllocs()
	for n := 0; n < b.N; n += nodes * perNode * perBatch {
		b.StopTimer()
		batches := make([]pmetric.Metrics, nodes)
		for k := range batches {
			batches[k] = pmetric.NewMetrics()
		}
		for range perBatch {
			number++
			at = at.Add(200 * time.Millisecond)
			for rank := range nodes * perNode {
				step(batches[rank/perNode], fmt.Sprint("n", rank/perNode), rank, number, at, 0.2, 0.1*math.Exp(0.01*rng.NormFloat64()))
			}
		}
		for _, md := range batches {
			for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
				m.Gauge().DataPoints().At(0).Attributes().PutInt("pitcrew.world_size", nodes*perNode)
			}
		}
		b.StartTimer()
		for _, md := range batches {
			if err := j.ConsumeMetrics(b.Context(), md); err != nil {
				b.Fatal(err)
			}
		}
	}
	if c, _ := j.counts(); b.N > 10_000 && c.Judged != 1 {
		b.Fatalf("nothing was compared: %+v", c)
	}
	if err := j.Shutdown(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func TestARanksRoleIsWhatItsSenderCallsIt(t *testing.T) {
	for want, attrs := range map[string]map[string]any{
		"":                                   {"pitcrew.rank": 1},
		"pp1/tp0":                            {"pitcrew.role": "pp1/tp0", "pitcrew.pipeline.stage": 3},
		"pipeline.stage=3/worker.type=actor": {"pitcrew.pipeline.stage": 3, "pitcrew.worker.type": "actor"},
	} {
		m := pcommon.NewMap()
		if err := m.FromRaw(attrs); err != nil {
			t.Fatal(err)
		}
		if got := roleOf(both{m, pcommon.NewMap()}); got != want {
			t.Errorf("%v: role %q, want %q", attrs, got, want)
		}
	}
}
