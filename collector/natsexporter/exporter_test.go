package natsexporter

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
	"github.com/pitcrew/pitcrew/collector/findings"
	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

// A NATS server that is stopped while it makes a stream leaves that stream's store behind (v2.15.2): its goroutines are not ours.
func TestMain(m *testing.M) {
	const server = "github.com/nats-io/nats-server/v2/server"
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(server+".(*fileStore).flushStreamStateLoop"), goleak.IgnoreTopFunction(server+"/ats.Register.func1"))
}

func server(t *testing.T, dir string, port int) *bus.Server {
	t.Helper()
	s, err := bus.StartServer(bus.ServerOptions{Dir: dir, Port: port})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func config(url string) *Config {
	c := createDefaultConfig().(*Config)
	c.URL, c.Cluster, c.Node = url, "c", "n1"
	return c
}

// start gives a running exporter and the function that ends it.
func start(t *testing.T, set exporter.Settings, cfg *Config) (exporter.Logs, func()) {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	x, err := NewFactory().CreateLogs(t.Context(), set, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() {
		if !ended {
			ended = true
			if err := x.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(end)
	return x, end
}

func fault(n int) event.Event {
	src := event.Source("c", "n1", "xid")
	return event.Event{
		ID: event.NewID(src, strconv.Itoa(n)), Source: src, Type: event.Fault, Time: time.Unix(1_800_000_000, int64(n)),
		Data: event.Data{Target: event.Target{Cluster: "c", Node: "n1", GPU: "GPU-1"}, Cause: event.Cause{Kind: "xid", Code: "79"}, Severity: event.Fatal},
	}
}

func record(t *testing.T, e event.Event, key string, active, only bool) plog.Logs {
	t.Helper()
	ld, err := findings.Records([]finding.Finding{{Event: e, Key: key, BootID: "boot-1", Active: active, ConditionOnly: only}})
	if err != nil {
		t.Fatal(err)
	}
	return ld
}

func consume(t *testing.T, x exporter.Logs, ld plog.Logs) {
	t.Helper()
	if err := x.ConsumeLogs(t.Context(), ld); err != nil {
		t.Fatal(err)
	}
}

// ids reads n events off the stream.
func ids(t *testing.T, b *bus.Bus, n int) (out []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := b.Events(ctx, t.Name()[strings.LastIndex(t.Name(), "/")+1:], func(_ context.Context, d bus.Delivery) error {
		if out = append(out, d.Event.ID); len(out) == n {
			cancel()
		}
		return nil
	}, func(s string, err error) { t.Errorf("%s: %v", s, err) })
	if err != nil || len(out) < n {
		t.Fatalf("%d of %d events: %v", len(out), n, err)
	}
	return out
}

// condition waits until the bus holds the condition in the state wanted.
func condition(t *testing.T, b *bus.Bus, key string, active bool) bus.Condition {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var last bus.Condition
	err := b.Conditions(ctx, nil, func(c bus.Condition) {
		if c.Key == key && c.Active == active {
			last = c
			cancel()
		}
	})
	if err != nil || last.Key == "" {
		t.Fatalf("condition %q active=%v never came: %v", key, active, err)
	}
	return last
}

func TestAFindingIsPublishedAndSetsItsCondition(t *testing.T) {
	s := server(t, t.TempDir(), -1)
	defer s.Stop()
	b := bustest.Connect(t, s.URL())
	x, end := start(t, exportertest.NewNopSettings(Type), config(s.URL()))
	consume(t, x, record(t, fault(1), "xid/79 gpu/GPU-1", true, false))
	if got := ids(t, b, 1); got[0] != fault(1).ID {
		t.Errorf("event %s, want %s", got[0], fault(1).ID)
	}
	if c := condition(t, b, "xid/79 gpu/GPU-1", true); c.Node != "n1" || c.BootID != "boot-1" || len(c.Raw) == 0 {
		t.Errorf("condition %+v", c)
	}
	r := fault(2)
	r.Type = event.Recovery
	consume(t, x, record(t, r, "xid/79 gpu/GPU-1", false, false))
	condition(t, b, "xid/79 gpu/GPU-1", false)
	end()
}

func TestWhatAGatewayFoundIsListedAndSetsNoNodesCondition(t *testing.T) {
	s := server(t, t.TempDir(), -1)
	defer s.Stop()
	b := bustest.Connect(t, s.URL())
	x, end := start(t, exportertest.NewNopSettings(Type), config(s.URL()))
	defer end()
	e := fault(1)
	e.Type, e.Source = event.Anomaly, event.GatewaySource("c", "gw-0", "detector")
	e.Data.Cause, e.Data.Severity = event.Cause{Kind: "rank", Name: "straggler"}, event.Warning
	listed := func(want int) []bus.Condition {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			all, refused, err := b.Found(t.Context())
			if err != nil || len(refused) > 0 || time.Now().After(deadline) {
				t.Fatalf("%v, %v, %v", all, refused, err)
			}
			if len(all) == want {
				return all
			}
		}
	}
	const key = "rank/straggler job/j/rank/5/attempt/0"
	consume(t, x, record(t, e, key, true, false))
	if c := listed(1)[0]; c.Gateway != "gw-0" || c.Node != "n1" || c.Key != key || c.Event.ID != e.ID {
		t.Errorf("listed %+v", c)
	}
	consume(t, x, record(t, e, key, true, true))
	if got := ids(t, b, 1); got[0] != e.ID {
		t.Errorf("event %s, want %s", got[0], e.ID)
	}
	e.Type, e.ID = event.Recovery, "end"
	consume(t, x, record(t, e, key, false, false))
	listed(0)
}

func TestHistoryIsAConditionAndNoEvent(t *testing.T) {
	s := server(t, t.TempDir(), -1)
	defer s.Stop()
	b := bustest.Connect(t, s.URL())
	x, end := start(t, exportertest.NewNopSettings(Type), config(s.URL()))
	consume(t, x, record(t, fault(1), "xid/79 gpu/GPU-1", true, true))
	condition(t, b, "xid/79 gpu/GPU-1", true)
	consume(t, x, record(t, fault(2), "xid/79 gpu/GPU-1", true, false))
	if got := ids(t, b, 1); got[0] != fault(2).ID {
		t.Errorf("first event %s: history was published", got[0])
	}
	end()
}

func TestItStartsWithoutNatsSaysSoInOneLineAndLosesNothing(t *testing.T) {
	dir := t.TempDir()
	s := server(t, dir, -1)
	url := s.URL()
	port, err := strconv.Atoi(url[strings.LastIndex(url, ":")+1:])
	if err != nil {
		t.Fatal(err)
	}
	s.Stop()

	core, lines := observer.New(zap.WarnLevel)
	set := exportertest.NewNopSettings(Type)
	set.Logger = zap.New(core)
	cfg := config(url)
	cfg.Spool, cfg.FlushTimeout = filepath.Join(t.TempDir(), "spool"), 50*time.Millisecond
	x, end := start(t, set, cfg)
	begin := time.Now()
	consume(t, x, record(t, fault(1), "k", true, false))
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("consuming waited %v for NATS", took)
	}
	until(t, func() bool { return lines.FilterMessageSnippet("findings wait until NATS is there").Len() == 1 })
	end()
	if files, _ := filepath.Glob(filepath.Join(cfg.Spool, "*.json")); len(files) != 1 {
		t.Fatalf("spool holds %v", files)
	}

	s = server(t, dir, port) // NATS comes, then the agent again
	defer s.Stop()
	_, end = start(t, exportertest.NewNopSettings(Type), cfg)
	if got := ids(t, bustest.Connect(t, url), 1); got[0] != fault(1).ID {
		t.Errorf("event %s after the restart, want %s", got[0], fault(1).ID)
	}
	end()
}

func TestASpoolThatCannotBeWrittenLeavesMemory(t *testing.T) {
	cases := map[string]struct{ before, after func(spool string) error }{
		"from the start": {before: func(spool string) error { return os.WriteFile(spool, nil, 0o600) }},
		"later":          {after: func(spool string) error { return errors.Join(os.Remove(spool), os.WriteFile(spool, nil, 0o600)) }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := server(t, t.TempDir(), -1)
			defer s.Stop()
			cfg := config(s.URL())
			cfg.Spool = filepath.Join(t.TempDir(), "spool")
			do := func(f func(string) error) {
				if f != nil {
					if err := f(cfg.Spool); err != nil {
						t.Fatal(err)
					}
				}
			}
			do(c.before)
			x, end := start(t, exportertest.NewNopSettings(Type), cfg)
			do(c.after)
			consume(t, x, record(t, fault(1), "k", true, false))
			if got := ids(t, bustest.Connect(t, s.URL()), 1); got[0] != fault(1).ID {
				t.Errorf("event %s, want %s", got[0], fault(1).ID)
			}
			end()
		})
	}
}

func TestWhatIsNoFindingIsCountedNamedAndDropped(t *testing.T) {
	s := server(t, t.TempDir(), -1)
	defer s.Stop()
	tel := componenttest.NewTelemetry()
	set := exportertest.NewNopSettings(Type)
	set.TelemetrySettings = tel.NewTelemetrySettings()
	x, end := start(t, set, config(s.URL()))
	for _, fill := range []func(plog.LogRecord){
		func(r plog.LogRecord) { r.Body().SetStr("a line") },
		func(r plog.LogRecord) { r.Body().SetEmptyBytes().FromRaw([]byte("{")) },
	} {
		ld := plog.NewLogs()
		fill(ld.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords().AppendEmpty())
		consume(t, x, ld)
	}
	consume(t, x, plog.NewLogs())
	m, err := tel.GetMetric("pitcrew.nats.refused")
	if err != nil {
		t.Fatal(err)
	}
	if got := sum(t, m); got != 2 {
		t.Errorf("refused %d, want 2", got)
	}
	end()
	if err := tel.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOnlyTheNewestStateOfAKeyWaits(t *testing.T) {
	c := newConditions(nil, zap.NewNop())
	for i := range 100 {
		c.set(bus.Condition{Node: "n", Key: "k", Active: i%2 == 0})
	}
	c.set(bus.Condition{Node: "n", Key: "other"})
	first, _ := c.next()
	if c.waiting() != 1 || first.Key != "k" || first.Active {
		t.Errorf("%d wait, first %+v", c.waiting(), first)
	}
	c.set(bus.Condition{Node: "n", Key: "k", Active: true})
	c.back(first) // it failed, and is old by now
	c.next()
	if v, _ := c.next(); !v.Active {
		t.Error("an older state overtook the newest")
	}
	for i := range 2 * maxConditions {
		c.set(bus.Condition{Node: "n", Key: strconv.Itoa(i)})
	}
	if c.waiting() != maxConditions || c.dropped != maxConditions {
		t.Errorf("%d wait, %d dropped", c.waiting(), c.dropped)
	}
}

func TestAWrongConfigurationNamesEveryFault(t *testing.T) {
	err := (&Config{}).Validate()
	for _, w := range []string{"url", "cluster", "replicas", "flush_timeout"} {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%v does not name %s", err, w)
		}
	}
}

func TestWhatWasNeverStartedShutsDown(t *testing.T) {
	x, err := NewFactory().CreateLogs(t.Context(), exportertest.NewNopSettings(Type), config("nats://127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

func until(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it never came")
		}
	}
}

func sum(t *testing.T, m metricdata.Metrics) (n int64) {
	t.Helper()
	d, ok := m.Data.(metricdata.Sum[int64])
	if !ok {
		t.Fatalf("%s is no sum", m.Name)
	}
	for _, p := range d.DataPoints {
		n += p.Value
	}
	return n
}
