package detectorconnector

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/connector/connectortest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
)

// host has an extension by which people speak.
type host struct{ said *people }

func (h host) GetExtensions() map[component.ID]component.Component {
	return map[component.ID]component.Component{component.MustNewID("pilot"): h.said}
}

type people struct {
	component.StartFunc
	component.ShutdownFunc
	handle func([]bus.Statement)
}

func (p *people) FollowStatements(handle func([]bus.Statement)) (stop func()) {
	p.handle = handle
	return func() { p.handle = nil }
}

// bench is a started connector on a node of one rank and its GPU, and the clock of both.
type bench struct {
	*rig
	t     *testing.T
	now   time.Time
	said  *people
	hot   float64
	slow  float64
	heavy bool
	i     int // steps
}

func startBench(t *testing.T, cfg *Config, at time.Time) *bench {
	t.Helper()
	b := &bench{rig: &rig{sink: &sink{}}, t: t, now: at, said: &people{}, hot: 60, slow: 1, i: int(at.Sub(t0).Seconds())}
	m, err := NewFactory().CreateMetricsToLogs(t.Context(), connectortest.NewNopSettings(Type), cfg, b.sink)
	if err != nil {
		t.Fatal(err)
	}
	b.metrics = m
	m.(*metricsSkin).anomalies.now = func() time.Time { return b.now }
	if err := m.Start(t.Context(), host{b.said}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// pass lets time pass, a second a batch: the agent's own ring samples and the other process's GPU values.
func (b *bench) pass(d time.Duration) *bench {
	for end := b.now.Add(d); b.now.Before(end); {
		b.now = b.now.Add(time.Second)
		b.i++
		wave := 1 + 0.01*math.Sin(float64(b.i)*1.7)
		rank := map[string]any{"k8s.pod.uid": "u-1", "pitcrew.rank": 3, "pitcrew.local_rank": 1, "pitcrew.world_size": 8, "pitcrew.attempt": 0, "hw.id": "GPU-1"}
		took := 0.9 * wave * b.slow
		ranks := samples(b.now, point{"pitcrew.train.step", float64(b.i), rank}, point{"pitcrew.train.step.age", 0.1, rank},
			point{"pitcrew.train.heartbeat.age", 0.1, rank}, point{"pitcrew.train.section", 1, rank}, point{"pitcrew.train.step.duration", took, rank},
			point{"pitcrew.train.throughput", 4096 / took, rank})
		b.sample(b.t, ranks)
		gpu := func(k, v string) map[string]any {
			m := map[string]any{"hw.id": "GPU-1", "hw.pci": "0000:1a:00"}
			if k != "" {
				m[k] = v
			}
			return m
		}
		throttled := 0.0
		if b.heavy {
			throttled = 1
		}
		b.sample(b.t, samples(b.now, point{"hw.gpu.utilization", 0.95, gpu("hw.gpu.task", "general")}, point{"hw.temperature", b.hot * wave, gpu("hw.sensor_location", "gpu")},
			point{"hw.power", 600 * wave, gpu("", "")}, point{"pitcrew.gpu.throttle", throttled, gpu("pitcrew.throttle.reason", "hw_thermal")}))
	}
	return b
}

func (b *bench) take() (es []event.Event, signals []string) {
	es, signals = b.found(b.t)
	b.sink.Reset()
	return es, signals
}

func TestAThermalThrottleInTheNodesMetricsIsAnEvent(t *testing.T) {
	b := startBench(t, config(t), t0).pass(3 * time.Minute)
	if _, signals := b.take(); len(signals) > 0 {
		t.Fatalf("healthy, it said %q", signals)
	}
	b.hot, b.heavy, b.slow = 90, true, 1.3
	b.pass(20 * time.Second)
	es, signals := b.take()
	i := slices.Index(signals, "anomaly/thermal-throttle")
	if i < 0 {
		t.Fatalf("said %q", signals)
	}
	d := es[i].Data
	if d.Target.GPU != "GPU-1" || d.Target.PodUID != "u-1" || *d.Target.Rank != 3 || *d.Target.LocalRank != 1 || d.Target.Node != "n1" || d.Target.Cluster != "c" || d.Target.PCI != "0000:1a:00" {
		t.Errorf("target %+v", d.Target)
	}
	if !d.Severity.AtLeast(event.Warning) || es[i].Type != event.Anomaly || es[i].Source != "//c/node/n1/detector" {
		t.Errorf("event %+v", es[i])
	}
}

func TestWhatPeopleSayHoldsWithTheNextBatch(t *testing.T) {
	b := startBench(t, config(t), t0).pass(3 * time.Minute)
	b.said.handle([]bus.Statement{{Verb: bus.StateMute, Key: "anomaly/*", By: "ada", At: b.now, Until: b.now.Add(30 * time.Second)}})
	b.hot, b.heavy, b.slow = 90, true, 1.3
	b.pass(25 * time.Second)
	if _, signals := b.take(); len(signals) > 0 {
		t.Errorf("muted, it said %q", signals)
	}
	b.pass(10 * time.Second)
	if _, signals := b.take(); !slices.Contains(signals, "anomaly/thermal-throttle") {
		t.Errorf("after the mute it said %q", signals)
	}
}

func TestWhatIsOpenSurvivesANewAgentAndIsNotSaidAgain(t *testing.T) {
	cfg := config(t)
	cfg.Anomalies.StateFile = filepath.Join(t.TempDir(), "state", "anomalies.snapshot")
	var at time.Time
	t.Run("old agent", func(t *testing.T) {
		b := startBench(t, cfg, t0).pass(3 * time.Minute)
		b.hot, b.heavy, b.slow = 90, true, 1.3
		b.pass(20 * time.Second)
		if _, signals := b.take(); !slices.Contains(signals, "anomaly/thermal-throttle") {
			t.Fatalf("said %q", signals)
		}
		at = b.now
	})
	again := *cfg
	t.Run("new agent", func(t *testing.T) {
		b := startBench(t, &again, at)
		b.hot, b.heavy, b.slow = 90, true, 1.3
		b.pass(20 * time.Second)
		_, signals := b.take()
		if !slices.Contains(signals, "~anomaly/thermal-throttle") {
			t.Errorf("the condition is not set again: %q", signals)
		}
		for _, s := range signals {
			if !strings.HasPrefix(s, "~") {
				t.Errorf("said again: %q", s)
			}
		}
	})
	t.Run("a damaged file is set aside for the older one", func(t *testing.T) {
		if err := os.WriteFile(cfg.Anomalies.StateFile, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		third := *cfg
		b := startBench(t, &third, at.Add(time.Minute)).pass(time.Second)
		if _, signals := b.take(); !slices.Contains(signals, "~anomaly/thermal-throttle") {
			t.Errorf("said %q", signals)
		}
	})
}

func TestAnomaliesOfAnotherNodeAreNotJudgedHere(t *testing.T) {
	b := startBench(t, config(t), t0)
	md := samples(b.now, point{"hw.power", 600, map[string]any{"hw.id": "GPU-7"}})
	md.ResourceMetrics().At(0).Resource().Attributes().PutStr("k8s.node.name", "n2")
	b.sample(t, md)
	if c, _ := b.metrics.(*metricsSkin).anomalies.counts(); c.Entities != 0 || c.Refused != 1 {
		t.Errorf("counts %+v", c)
	}
}

func TestAnomaliesCanBeSwitchedOff(t *testing.T) {
	cfg := config(t)
	cfg.Anomalies.Enabled = false
	r := start(t, cfg)
	r.sample(t, pmetric.NewMetrics())
	if r.metrics.(*metricsSkin).anomalies != nil {
		t.Error("they are on")
	}
}

func TestTheAnomaliesCountsAreTheConnectorsMetrics(t *testing.T) {
	tel := componenttest.NewTelemetry()
	set := connectortest.NewNopSettings(Type)
	set.TelemetrySettings = tel.NewTelemetrySettings()
	c, err := NewFactory().CreateMetricsToLogs(t.Context(), set, config(t), consumertest.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{rig: &rig{metrics: c, sink: &sink{}}, t: t, now: t0, hot: 60, slow: 1}
	c.(*metricsSkin).anomalies.now = func() time.Time { return b.now }
	if err := c.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	b.pass(time.Minute)
	raw, err := os.ReadFile("metadata.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), ":")
		if !strings.HasPrefix(name, "pitcrew.anomaly.") {
			continue
		}
		m, err := tel.GetMetric(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.Contains(string(raw), m.Description) {
			t.Errorf("%s: metadata.yaml does not say %q", name, m.Description)
		}
	}
	if err := errors.Join(c.Shutdown(t.Context()), tel.Shutdown(t.Context())); err != nil {
		t.Error(err)
	}
}
