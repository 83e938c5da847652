package detectorconnector

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
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

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.init.0.func1"), // a ticker of the server's package, for ever
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/ats.init.0.func1"))
}

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
	before func()
}

func (s *sink) ConsumeLogs(ctx context.Context, ld plog.Logs) error {
	if s.before != nil {
		s.before()
	}
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
					if _, only := rec.Attributes().Get(semconv.ConditionOnly); only {
						s = "~" + s
					}
					if active, _ := rec.Attributes().Get(semconv.ConditionActive); !active.Bool() {
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
		for _, k := range slices.Sorted(maps.Keys(p.attrs)) { // a receiver gives a series the same order each time
			if err := d.Attributes().PutEmpty(k).FromRaw(p.attrs[k]); err != nil {
				panic(err)
			}
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
