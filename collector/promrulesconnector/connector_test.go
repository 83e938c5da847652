package promrulesconnector

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/connector/connectortest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/goleak"

	"github.com/pitcrew/pitcrew/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t0 = time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)

const rules = `
groups:
- name: g
  interval: 1s
  rules:
  - alert: SlowSteps
    expr: pitcrew_train_step_duration_seconds > 2
    labels: {severity: critical}
  - alert: Replays
    expr: increase(pitcrew_gpu_pcie_replay_total[1m]) > 5
  - alert: SlowSave
    expr: histogram_quantile(0.5, rate(save_seconds_bucket[1m])) > 3
`

type sink struct {
	consumertest.LogsSink
	refuse error
}

func (s *sink) ConsumeLogs(ctx context.Context, l plog.Logs) error {
	if s.refuse != nil {
		return s.refuse
	}
	return s.LogsSink.ConsumeLogs(ctx, l)
}

// rig is a started connector with a clock of its own.
type rig struct {
	*rulesConnector
	out *sink
	at  atomic.Pointer[time.Time]
}

// evaluateAt sets the clock and evaluates.
func (r *rig) evaluateAt(at time.Time) {
	r.at.Store(&at)
	r.evaluate(context.Background())
}

func start(t *testing.T, change ...func(*Config)) (*rig, *sink) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := createDefaultConfig().(*Config)
	cfg.Files, cfg.Node, cfg.StateFile = []string{"", filepath.Join(dir, "*.yaml")}, "gw", filepath.Join(dir, "state.json")
	for _, f := range change {
		f(cfg)
	}
	out := &sink{}
	c, err := newConnector(connectortest.NewNopSettings(Type), cfg, out)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{rulesConnector: c, out: out}
	r.at.Store(&t0)
	c.now = func() time.Time { return *r.at.Load() }
	if err := c.Start(context.Background(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Shutdown(context.Background()) })
	return r, out
}

// batch is what node n7 says at one time; fill adds its metrics.
func batch(fill func(pmetric.MetricSlice)) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr("k8s.node.name", "n7")
	fill(rm.ScopeMetrics().AppendEmpty().Metrics())
	return md
}

func gauge(ms pmetric.MetricSlice, name, unit string, v float64, at time.Time) pmetric.NumberDataPoint {
	m := ms.AppendEmpty()
	m.SetName(name)
	m.SetUnit(unit)
	p := m.SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetDoubleValue(v)
	p.SetTimestamp(pcommon.NewTimestampFromTime(at))
	return p
}

func (s *sink) events(t *testing.T) (out []event.Event) {
	t.Helper()
	for _, l := range s.AllLogs() {
		for _, r := range l.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().All() {
			e, err := event.Decode(r.Body().Bytes().AsRaw())
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, e)
		}
	}
	return out
}

func TestARuleReadsWhatThePrometheusEndpointWouldServe(t *testing.T) {
	c, out := start(t)
	for i := range 5 {
		at := t0.Add(time.Duration(i) * 10 * time.Second)
		c.ConsumeMetrics(context.Background(), batch(func(ms pmetric.MetricSlice) {
			p := gauge(ms, "pitcrew.train.step.duration", "s", 3, at)
			p.Attributes().PutInt("pitcrew.rank", 4)
			p.Attributes().PutStr("hw.id", "GPU-1")
			gauge(ms, "nobody.asks", "", 1, at)

			m := ms.AppendEmpty()
			m.SetName("pitcrew.gpu.pcie.replay")
			s := m.SetEmptySum()
			s.SetIsMonotonic(true)
			s.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			n := s.DataPoints().AppendEmpty()
			n.SetIntValue(int64(10 * i))
			n.SetTimestamp(pcommon.NewTimestampFromTime(at))

			m = ms.AppendEmpty()
			m.SetName("save")
			m.SetUnit("s")
			h := m.SetEmptyHistogram()
			h.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			hp := h.DataPoints().AppendEmpty()
			hp.SetTimestamp(pcommon.NewTimestampFromTime(at))
			hp.ExplicitBounds().FromRaw([]float64{1, 4, 8})
			hp.BucketCounts().FromRaw([]uint64{0, 0, uint64(i), 0})
			hp.SetCount(uint64(i))
		}))
	}
	c.evaluateAt(t0.Add(40 * time.Second))
	got := map[string]event.Data{}
	for _, e := range out.events(t) {
		got[e.Data.Cause.Signal()] = e.Data
		if e.Data.Target.Node != "n7" {
			t.Errorf("%s: node %q", e.Data.Cause.Signal(), e.Data.Target.Node)
		}
	}
	if d, ok := got["rule/SlowSteps"]; !ok || d.Target.GPU != "GPU-1" || d.Target.Rank == nil || *d.Target.Rank != 4 || d.Severity != event.Critical {
		t.Errorf("SlowSteps: %+v", d)
	}
	for _, name := range []string{"rule/Replays", "rule/SlowSave"} {
		if _, ok := got[name]; !ok {
			t.Errorf("%s did not fire; got %v", name, got)
		}
	}
	if _, w := c.counts(); w.Series != 1+1+4+3 { // step, replay, four buckets, and ALERTS of the three
		t.Errorf("the window holds %d series: what no rule asks for must not be in it", w.Series)
	}
}

func TestWhatIsRefusedIsSentWithTheNext(t *testing.T) {
	c, out := start(t)
	c.ConsumeMetrics(context.Background(), batch(func(ms pmetric.MetricSlice) { gauge(ms, "pitcrew.train.step.duration", "s", 3, t0) }))
	out.refuse = errors.New("not now")
	c.evaluateAt(t0)
	out.refuse = nil
	c.evaluateAt(t0.Add(time.Second))
	if n := len(out.events(t)); n != 1 {
		t.Errorf("%d events after the refusal ended, want 1", n)
	}
}

func TestAfterARestartAFiringAlertIsNotSaidAgain(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state.json")
	fire := func() int {
		c, out := start(t, func(c *Config) { c.StateFile = state })
		c.ConsumeMetrics(context.Background(), batch(func(ms pmetric.MetricSlice) { gauge(ms, "pitcrew.train.step.duration", "s", 3, t0) }))
		c.evaluateAt(t0)
		n := 0
		for _, l := range out.AllLogs() {
			n += l.LogRecordCount()
		}
		c.Shutdown(context.Background())
		return n
	}
	if first, second := fire(), fire(); first != 1 || second != 0 {
		t.Errorf("%d events before the restart, %d after it; want 1 and 0", first, second)
	}
}

func TestFilesThatAreMissingOrWrongEndTheStartWithTheirName(t *testing.T) {
	for files, want := range map[string]string{"/nowhere/rules.yaml": "/nowhere/rules.yaml", "/nowhere/*.yaml": "/nowhere/*.yaml"} {
		cfg := createDefaultConfig().(*Config)
		cfg.Files = []string{files}
		if _, err := newConnector(connectortest.NewNopSettings(Type), cfg, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", files, err)
		}
	}
	c, err := newConnector(connectortest.NewNopSettings(Type), createDefaultConfig().(*Config), nil)
	if err != nil || c.Start(context.Background(), componenttest.NewNopHost()) != nil || c.ConsumeMetrics(context.Background(), pmetric.NewMetrics()) != nil || c.Shutdown(context.Background()) != nil {
		t.Errorf("without files: %v", err)
	}
}

func TestLimitsAreChecked(t *testing.T) {
	c := Config{Window: time.Second, Interval: time.Millisecond, Files: []string{"["}}
	err := c.Validate()
	for _, want := range []string{"window", "interval", "max_series", "files"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}
