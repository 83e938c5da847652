package detectorconnector

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/connector"
	"go.opentelemetry.io/collector/connector/connectortest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/goleak"

	"github.com/pitcrew/pitcrew/collector/findings"
	"github.com/pitcrew/pitcrew/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t0 = time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)

// rig is a started connector: both instances and what they send.
type rig struct {
	metrics connector.Metrics
	logs    connector.Logs
	sink    *sink
}

// sink keeps findings, and refuses them while told to.
type sink struct {
	consumertest.LogsSink
	refuse error
}

func (s *sink) ConsumeLogs(ctx context.Context, ld plog.Logs) error {
	if s.refuse != nil {
		return s.refuse
	}
	return s.LogsSink.ConsumeLogs(ctx, ld)
}

func config(t *testing.T) *Config {
	t.Helper()
	c := createDefaultConfig().(*Config)
	c.Cluster, c.Node, c.PodResourcesSocket = "c", "n1", ""
	c.BootIDFile = filepath.Join(t.TempDir(), "boot_id")
	if err := os.WriteFile(c.BootIDFile, []byte("boot-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

func start(t *testing.T, cfg *Config) *rig {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	f, set, r := NewFactory(), connectortest.NewNopSettings(Type), &rig{sink: &sink{}}
	var err error
	if r.metrics, err = f.CreateMetricsToLogs(t.Context(), set, cfg, r.sink); err != nil {
		t.Fatal(err)
	}
	if r.logs, err = f.CreateLogsToLogs(t.Context(), set, cfg, r.sink); err != nil {
		t.Fatal(err)
	}
	for _, c := range []component.Component{r.metrics, r.logs} {
		if err := c.Start(t.Context(), componenttest.NewNopHost()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	return r
}

// found gives the events sent so far; those that only set a condition have a "~" before the signal.
func (r *rig) found(t *testing.T) (es []event.Event, signals []string) {
	t.Helper()
	for _, ld := range r.sink.AllLogs() {
		for _, rl := range ld.ResourceLogs().All() {
			for _, sl := range rl.ScopeLogs().All() {
				for _, rec := range sl.LogRecords().All() {
					e, err := event.Decode(rec.Body().Bytes().AsRaw())
					if err != nil {
						t.Fatal(err)
					}
					if rec.EventName() != string(e.Type) {
						t.Errorf("EventName %q, event's type %q", rec.EventName(), e.Type)
					}
					s := e.Data.Cause.Signal()
					if _, only := rec.Attributes().Get(findings.AttrConditionOnly); only {
						s = "~" + s
					}
					if active, _ := rec.Attributes().Get(findings.AttrActive); !active.Bool() {
						s = "-" + s
					}
					es, signals = append(es, e), append(signals, s)
				}
			}
		}
	}
	return es, signals
}

func (r *rig) want(t *testing.T, signals ...string) []event.Event {
	t.Helper()
	es, got := r.found(t)
	if !slices.Equal(got, signals) {
		t.Fatalf("findings %q, want %q", got, signals)
	}
	return es
}

func kernelLine(name string, attrs map[string]any) plog.Logs {
	ld := plog.NewLogs()
	rec := ld.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
	rec.SetEventName(name)
	rec.SetTimestamp(pcommon.NewTimestampFromTime(t0))
	rec.Body().SetStr("NVRM: …")
	if err := rec.Attributes().FromRaw(attrs); err != nil {
		panic(err)
	}
	return ld
}

func xid79(attrs ...string) plog.Logs {
	all := map[string]any{"pitcrew.xid.code": 79, "pitcrew.kmsg.seq": 7, "pitcrew.boot_id": "boot-1", "hw.pci": "0000:1a:00"}
	for i := 0; i < len(attrs); i += 2 {
		all[attrs[i]] = attrs[i+1]
	}
	return kernelLine("pitcrew.kernel.xid", all)
}

type point struct {
	name  string
	value float64
	attrs map[string]any
}

func samples(at time.Time, ps ...point) pmetric.Metrics {
	md := pmetric.NewMetrics()
	sm := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty()
	for _, p := range ps {
		m := sm.Metrics().AppendEmpty()
		m.SetName(p.name)
		d := m.SetEmptyGauge().DataPoints().AppendEmpty()
		d.SetDoubleValue(p.value)
		d.SetTimestamp(pcommon.NewTimestampFromTime(at))
		if err := d.Attributes().FromRaw(p.attrs); err != nil {
			panic(err)
		}
	}
	return md
}

func status(v float64) point {
	return point{"pitcrew.gpu.status", v, map[string]any{"hw.id": "GPU-1", "hw.pci": "0000:1a:00"}}
}

func (r *rig) line(t *testing.T, ld plog.Logs) {
	t.Helper()
	if err := r.logs.ConsumeLogs(t.Context(), ld); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) sample(t *testing.T, md pmetric.Metrics) {
	t.Helper()
	if err := r.metrics.ConsumeMetrics(t.Context(), md); err != nil {
		t.Fatal(err)
	}
}

func TestAKernelLineBecomesAnEventWithTheGpuThatMetricsNamed(t *testing.T) {
	r := start(t, config(t))
	r.sample(t, samples(t0, status(1)))
	r.line(t, xid79())
	e := r.want(t, "xid/79")[0]
	if e.Type != event.Fault || e.Source != "//c/node/n1/xid" || e.Subject != "gpu/GPU-1" || !e.Time.Equal(t0) {
		t.Errorf("event %+v", e)
	}
	if d := e.Data; d.Target.GPU != "GPU-1" || d.Target.PCI != "0000:1a:00" || d.Severity != event.Fatal || d.Evidence.Raw == "" {
		t.Errorf("data %+v", d)
	}
}

func TestBothInstancesShareOneEngine(t *testing.T) {
	r := start(t, config(t))
	r.sample(t, samples(t0, status(0)))
	r.line(t, kernelLine("pitcrew.kernel.gpu_lost", map[string]any{"hw.pci": "0000:1a:00", "pitcrew.kmsg.seq": 1}))
	r.want(t, "gpu/lost")
}

func TestAResourceNamesItsNode(t *testing.T) {
	r := start(t, config(t))
	ld := xid79()
	res := ld.ResourceLogs().At(0).Resource().Attributes()
	res.PutStr("k8s.node.name", "n2")
	res.PutStr("k8s.cluster.name", "other")
	res.PutStr("host.boot.id", "boot-9")
	r.line(t, ld)
	if e := r.want(t, "xid/79")[0]; e.Data.Target.Node != "n2" || e.Data.Target.Cluster != "other" {
		t.Errorf("target %+v", e.Data.Target)
	}
}

func TestRecordsOfOtherNamesAndValuesWithoutATimePassUnseen(t *testing.T) {
	r := start(t, config(t))
	r.line(t, kernelLine("something.else", nil))
	r.line(t, kernelLine("pitcrew.kernel.xid", nil))
	md := samples(time.Unix(0, 0), status(0))
	r.sample(t, md)
	r.sample(t, pmetric.NewMetrics())
	gauge := pmetric.NewMetrics()
	gauge.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty().SetName("pitcrew.gpu.status")
	r.sample(t, gauge)
	r.want(t)
}

func rankPoints(step, age, beat float64, durations ...float64) []point {
	attrs := map[string]any{"k8s.pod.uid": "u-1", "pitcrew.rank": 3, "pitcrew.local_rank": 1, "pitcrew.world_size": 8, "pitcrew.attempt": 2}
	ps := []point{
		{"pitcrew.train.step", step, attrs}, {"pitcrew.train.step.age", age, attrs}, {"pitcrew.train.heartbeat.age", beat, attrs},
		{"pitcrew.train.section", 1, attrs},
	}
	for _, d := range durations {
		ps = append(ps, point{"pitcrew.train.step.duration", d, attrs})
	}
	return ps
}

func TestARanksValuesOfOneBatchAreOneSample(t *testing.T) {
	r := start(t, config(t))
	r.sample(t, samples(t0, rankPoints(10, 0.1, 0.1, 0.2, 0.2, 0.2, 0.2, 0.2)...))
	r.sample(t, samples(t0.Add(2*time.Second), rankPoints(10, 2.1, 0.1)...))
	e := r.want(t, "rank/stalled")[0]
	if d := e.Data.Target; d.PodUID != "u-1" || *d.Rank != 3 || *d.LocalRank != 1 || d.WorldSize != 8 || *d.Attempt != 2 {
		t.Errorf("target %+v", d)
	}
	r.line(t, kernelLine("pitcrew.train.rank_exited", map[string]any{
		"k8s.pod.uid": "u-1", "pitcrew.rank": 3, "pitcrew.attempt": 2, "pitcrew.exit.clean": false, "pitcrew.exit.code": 1, "pitcrew.exit.signal": 0, "pitcrew.step": 10,
	}))
	r.want(t, "rank/stalled", "-~rank/stalled", "rank/dead")
}

func TestAWorkerThatItsLauncherKilledIsNoDeadRank(t *testing.T) {
	r := start(t, config(t))
	r.sample(t, samples(t0, rankPoints(10, 0.1, 0.1)...))
	end := map[string]any{
		"k8s.pod.uid": "u-1", "pitcrew.rank": 3, "pitcrew.attempt": 2, "pitcrew.exit.clean": false, "pitcrew.exit.code": -1, "pitcrew.exit.signal": 9,
		"pitcrew.exit.told": true, "process.pid": 77, "process.creation.time": "2026-11-21T04:00:00Z",
	}
	r.line(t, kernelLine("pitcrew.train.rank_exited", end))
	r.want(t)
	end["pitcrew.rank"], end["pitcrew.exit.told"] = 4, false
	r.line(t, kernelLine("pitcrew.train.rank_exited", end))
	first := r.want(t, "rank/dead")[0].ID
	again := start(t, config(t)) // an agent without the memory of the one before
	again.line(t, kernelLine("pitcrew.train.rank_exited", end))
	if id := again.want(t, "rank/dead")[0].ID; id != first {
		t.Error("a new agent names the same dead rank anew")
	}
}

func TestTheRankThatDidNotEnterACollectiveIsNamed(t *testing.T) {
	r := start(t, config(t))
	said := func(rank, enqueued int) map[string]any {
		return map[string]any{
			"k8s.pod.uid": "u-1", "pitcrew.rank": rank, "pitcrew.attempt": 2, "pitcrew.step": 10, "pitcrew.process_group.name": "0",
			"pitcrew.process_group.desc": "default_pg", "pitcrew.collective.enqueued": enqueued, "pitcrew.collective.completed": 56,
			"pitcrew.collective.op": "nccl:all_reduce",
		}
	}
	r.line(t, kernelLine("pitcrew.train.collectives", said(3, 56)))
	r.want(t)
	r.line(t, kernelLine("pitcrew.train.collectives", said(4, 57)))
	e := r.want(t, "torch/desync")[0]
	if *e.Data.Target.Rank != 3 || *e.Data.Evidence.Expected != 57 || !strings.Contains(e.Data.Evidence.Raw, "0 (default_pg)") {
		t.Errorf("named %+v, %+v", e.Data.Target, e.Data.Evidence)
	}
}

func TestKernelLinesWithoutACodeAreFindings(t *testing.T) {
	r := start(t, config(t))
	for kind, severity := range map[string]string{"gpu_init": "fatal", "gsp": "critical", "aer": "critical", "mlx5": "warning", "lines_lost": ""} {
		r.line(t, kernelLine("pitcrew.kernel."+kind, map[string]any{
			"hw.pci": "0000:1a:00", "pitcrew.severity": severity, "pitcrew.xid.name": "case", "pitcrew.kmsg.seq": 7, "pitcrew.boot_id": "boot-1",
		}))
	}
	ids := map[string]bool{}
	es, signals := r.found(t)
	for _, e := range es {
		ids[e.ID] = true
	}
	slices.Sort(signals)
	if want := []string{"agent/lines-lost", "gpu/gsp", "gpu/init", "nic/mlx5", "pcie/aer"}; !slices.Equal(signals, want) || len(ids) != len(want) {
		t.Errorf("findings %q with %d ids, want %q", signals, len(ids), want)
	}
}

func TestARefusedFindingIsSentWithTheNext(t *testing.T) {
	r := start(t, config(t))
	r.sink.refuse = errors.New("full")
	r.line(t, xid79())
	r.want(t)
	r.sink.refuse = nil
	r.line(t, xid79("hw.pci", "0000:3b:00"))
	es := r.want(t, "xid/79", "xid/79")
	if es[0].Data.Target.PCI != "0000:1a:00" || es[1].Data.Target.PCI != "0000:3b:00" {
		t.Errorf("order %+v, %+v", es[0].Data.Target, es[1].Data.Target)
	}
}

func TestALastingFaultIsOneFindingAcrossANewAgent(t *testing.T) {
	cfg := config(t)
	cfg.StateFile = filepath.Join(t.TempDir(), "state", "open.json")
	t.Run("old agent", func(t *testing.T) {
		r := start(t, cfg)
		r.sample(t, samples(t0, status(0)))
		r.want(t, "gpu/lost")
	})
	t.Run("new agent", func(t *testing.T) {
		again := *cfg
		r := start(t, &again)
		r.sample(t, samples(t0.Add(time.Minute), status(0)))
		r.want(t, "~gpu/lost")
		r.sample(t, samples(t0.Add(2*time.Minute), status(1)))
		r.want(t, "~gpu/lost", "-gpu/lost")
	})
	t.Run("damaged file", func(t *testing.T) {
		if err := os.WriteFile(cfg.StateFile, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		again := *cfg
		r := start(t, &again)
		r.sample(t, samples(t0.Add(3*time.Minute), status(0)))
		r.want(t, "gpu/lost")
	})
}

func TestAWrongConfigurationNamesEveryFault(t *testing.T) {
	err := (&Config{}).Validate()
	for _, w := range []string{"stall_floor", "setup_limit", "heartbeat_limit", "max_series", "stall_factor", "cluster", "boot_id_file"} {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%v does not name %s", err, w)
		}
	}
	for what, c := range map[string]Config{"scope": {Scope: "fleet"}, "jobs": {Scope: ScopeJobs}} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v does not name %s", err, what)
		}
	}
	err = (&Anomalies{Enabled: true}).Validate()
	for _, w := range []string{"asked_rate", "max_series", "max_contexts"} {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%v does not name %s", err, w)
		}
	}
	cfg := config(t)
	cfg.BootIDFile = "/nonexistent"
	if _, err := NewFactory().CreateLogsToLogs(t.Context(), connectortest.NewNopSettings(Type), cfg, consumertest.NewNop()); err == nil {
		t.Error("a boot id that cannot be read is accepted")
	}
}

func TestWhatWasNeverStartedShutsDown(t *testing.T) {
	f := NewFactory()
	cfg := config(t)
	for range 2 {
		c, err := f.CreateLogsToLogs(t.Context(), connectortest.NewNopSettings(Type), cfg, consumertest.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestTheEnginesCountsAreTheConnectorsMetrics(t *testing.T) {
	tel := componenttest.NewTelemetry()
	set := connectortest.NewNopSettings(Type)
	set.TelemetrySettings = tel.NewTelemetrySettings()
	c, err := NewFactory().CreateLogsToLogs(t.Context(), set, config(t), consumertest.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	if err := c.ConsumeLogs(t.Context(), xid79()); err != nil {
		t.Fatal(err)
	}
	m, err := tel.GetMetric("pitcrew.detector.findings")
	if err != nil {
		t.Fatal(err)
	}
	if m.Unit != "{finding}" {
		t.Errorf("metric %+v", m)
	}
	if err := errors.Join(c.Shutdown(t.Context()), tel.Shutdown(t.Context())); err != nil {
		t.Error(err)
	}
}
