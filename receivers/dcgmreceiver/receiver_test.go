package dcgmreceiver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pitcrew/pitcrew/semconv"
)

// statusHost remembers the statuses a component reported.
type statusHost struct {
	component.Host
	mu   sync.Mutex
	seen []*componentstatus.Event
}

func (h *statusHost) Report(e *componentstatus.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = append(h.seen, e)
}

func (h *statusHost) last() componentstatus.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.seen) == 0 {
		return componentstatus.StatusNone
	}
	return h.seen[len(h.seen)-1].Status()
}

// bench is a receiver over a replayed node, running fast.
type bench struct {
	*Replay
	metrics consumertest.MetricsSink
	logs    consumertest.LogsSink
	host    *statusHost
	said    *observer.ObservedLogs
}

func startBench(t *testing.T, src *Replay, change func(*Config)) *bench {
	t.Helper()
	b := &bench{Replay: src, host: &statusHost{Host: componenttest.NewNopHost()}}
	cfg := NewDefaultConfig()
	cfg.Interval, cfg.CallTimeout, cfg.RetryMax, cfg.Node = 10*time.Millisecond, 50*time.Millisecond, 20*time.Millisecond, "node-a"
	if change != nil {
		change(cfg)
	}
	set := receivertest.NewNopSettings(Type)
	m, err := createMetrics(t.Context(), set, cfg, &b.metrics)
	if err != nil {
		t.Fatal(err)
	}
	l, err := createLogs(t.Context(), set, cfg, &b.logs)
	if err != nil {
		t.Fatal(err)
	}
	if m.(*dcgmReceiver) != l.(*dcgmReceiver) {
		t.Fatal("the two signals have a connection each")
	}
	m.(*dcgmReceiver).source = func(*Config, *zap.Logger) (Source, error) { return src, nil }
	for _, c := range []component.Component{m, l} {
		if err := c.Start(t.Context(), b.host); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, c := range []component.Component{m, l} {
			if err := c.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	return b
}

// newest returns the newest batch that has the metric.
func (b *bench) newest(name string) (pmetric.Metrics, bool) {
	all := b.metrics.AllMetrics()
	for i := len(all) - 1; i >= 0; i-- {
		if len(points(all[i], name, semconv.HWID)) > 0 {
			return all[i], true
		}
	}
	return pmetric.Metrics{}, false
}

func (b *bench) status(uuid string) (int64, bool) {
	md, ok := b.newest(semconv.GPUStatus)
	if !ok {
		return 0, false
	}
	p, ok := points(md, semconv.GPUStatus, semconv.HWID)[uuid]
	if !ok {
		return 0, false
	}
	return p.IntValue(), true
}

func (b *bench) stale() float64 {
	all := b.metrics.AllMetrics()
	if len(all) == 0 {
		return -1
	}
	return points(all[len(all)-1], semconv.DCGMStale, semconv.HWID)[""].DoubleValue()
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("never happened: %s", what)
}

func twoGPUs() *Replay {
	r := NewReplay(gpu(0, "a", true), gpu(1, "b", true))
	for _, id := range []uint{0, 1} {
		r.Set(id, 150, 40)
		r.Set(id, 310, 0)
	}
	return r
}

func TestAHangShowsAsStaleAndNeverAsZeros(t *testing.T) {
	b := startBench(t, twoGPUs(), nil)
	eventually(t, "it is well", func() bool { return b.host.last() == componentstatus.StatusOK })
	release := b.Hold("Read")
	eventually(t, "the status says so", func() bool { return b.host.last() == componentstatus.StatusRecoverableError })
	eventually(t, "the data is stale", func() bool { return b.stale() > 0.1 })
	calls := b.Calls("Read") + b.Calls("Inventory")
	b.metrics.Reset()
	b.Violate(Violation{GPU: 1, Policy: "xid", Code: 79, Time: time.Now()})
	eventually(t, "a violation gets through", func() bool { return b.logs.LogRecordCount() == 1 })
	eventually(t, "staleness is told on", func() bool { return len(b.metrics.AllMetrics()) > 5 })
	for _, md := range b.metrics.AllMetrics() {
		for _, name := range []string{semconv.GPUStatus, semconv.GPUCount, "hw.temperature", "hw.errors"} {
			if n := len(points(md, name, semconv.HWID)); n != 0 {
				t.Fatalf("%d points of %s while nothing is known", n, name)
			}
		}
	}
	if now := b.Calls("Read") + b.Calls("Inventory"); now != calls {
		t.Errorf("%d calls were made beside the one that hangs", now-calls)
	}
	again := b.Hold("Read")
	release()
	eventually(t, "it asks anew", func() bool { return b.Calls("Read")+b.Calls("Inventory") >= calls+2 })
	for _, md := range b.metrics.AllMetrics() {
		for _, name := range []string{semconv.GPUStatus, "hw.errors"} { // what each round asks for
			if n := len(points(md, name, semconv.HWID)); n != 0 {
				t.Fatalf("%d points of %s, of an answer that is as old as its question", n, name)
			}
		}
	}
	again()
	eventually(t, "it recovers by itself", func() bool { return b.host.last() == componentstatus.StatusOK && b.stale() < 0.1 })
}

func TestAVanishedGPUIsLostAtOnceAndComesBack(t *testing.T) {
	b := startBench(t, twoGPUs(), nil)
	eventually(t, "both answer", func() bool { v, ok := b.status("b"); return ok && v == 1 })
	for _, way := range [][]Device{{gpu(0, "a", true)}, {gpu(0, "a", true), gpu(1, "b", false)}} {
		b.SetDevices(way...)
		eventually(t, "it is lost", func() bool { v, ok := b.status("b"); return ok && v == 0 })
		md, _ := b.newest(semconv.GPUStatus)
		if n, want := points(md, semconv.GPUCount, semconv.HWID)[""].IntValue(), points(md, semconv.GPUExpected, semconv.HWID)[""].IntValue(); n != 1 || want != 2 {
			t.Errorf("%d of %d", n, want)
		}
		if v, _ := b.status("a"); v != 1 {
			t.Error("its neighbour is lost as well")
		}
		b.SetDevices(gpu(0, "a", true), gpu(1, "b", true))
		eventually(t, "it is back", func() bool { v, ok := b.status("b"); return ok && v == 1 })
	}
}

func TestCardsThatComeBackAreWatchedAnew(t *testing.T) {
	b := startBench(t, twoGPUs(), nil)
	eventually(t, "it reads", func() bool { return b.Calls("Read") > 0 })
	before := b.Calls("Watch")
	b.SetDevices(gpu(0, "a", true))
	eventually(t, "the watch follows", func() bool { return b.Calls("Watch") == before+1 })
	b.SetDevices(gpu(0, "a", true), gpu(1, "b", true))
	eventually(t, "the watch follows", func() bool { return b.Calls("Watch") == before+2 })
}

func TestAViolationIsALogRecordAndAReadingAtOnce(t *testing.T) {
	b := startBench(t, twoGPUs(), func(c *Config) { c.Interval = time.Hour })
	eventually(t, "it reads", func() bool { v, ok := b.status("b"); return ok && v == 1 })
	b.Set(1, 230, 79)
	began := time.Now()
	b.Violate(Violation{GPU: 1, Policy: "xid", Code: 79, Time: time.Now()})
	eventually(t, "the record", func() bool { return b.logs.LogRecordCount() == 1 })
	eventually(t, "the reading", func() bool {
		md, ok := b.newest("pitcrew.gpu.xid")
		return ok && points(md, "pitcrew.gpu.xid", semconv.HWID)["b"].IntValue() == 79
	})
	t.Logf("record and reading after %v, the interval is an hour", time.Since(began))
	rl := b.logs.AllLogs()[0].ResourceLogs().At(0)
	lr := rl.ScopeLogs().At(0).LogRecords().At(0)
	a := lr.Attributes().AsRaw()
	if lr.EventName() != EventViolation || a[semconv.HWID] != "b" || a[semconv.Policy] != "xid" || a[semconv.XIDCode] != int64(79) || a[semconv.HWPCI] != "0000:1a:00" {
		t.Errorf("record is %q %v", lr.EventName(), a)
	}
	if n, _ := rl.Resource().Attributes().Get("k8s.node.name"); n.Str() != "node-a" {
		t.Errorf("node is %q", n.Str())
	}
}

func TestABrokenConnectionIsMadeAnew(t *testing.T) {
	b := startBench(t, twoGPUs(), nil)
	eventually(t, "it is well", func() bool { return b.host.last() == componentstatus.StatusOK })
	b.SetErrors(fmt.Errorf("%w: gone", ErrDisconnected), errors.New("no host engine"))
	eventually(t, "it says so", func() bool { return b.host.last() == componentstatus.StatusRecoverableError })
	tries := b.Calls("Connect")
	eventually(t, "it keeps trying", func() bool { return b.Calls("Connect") > tries+2 })
	eventually(t, "the data is stale", func() bool { return b.stale() > 0.05 })
	b.SetErrors(nil, nil)
	eventually(t, "it is well again", func() bool { return b.host.last() == componentstatus.StatusOK && b.stale() < 0.05 })
}

func TestAFailingCallIsNotTheEndOfTheConnection(t *testing.T) {
	src := twoGPUs()
	now := func() time.Time { return t0 }
	w := newWorker(now)
	defer w.stop()
	s := newSession(src, w, Fields, time.Second, 15*time.Second, now)
	s.run(false)
	src.SetErrors(errors.New("Timeout"), nil)
	for i := range patience {
		if rd := s.run(false); rd.err == nil || rd.connected != (i < patience-1) {
			t.Fatalf("failure %d: connected %v, %v", i+1, rd.connected, rd.err)
		}
	}
}

func TestAllBlankIsAFaultOfTheEngine(t *testing.T) {
	b := startBench(t, twoGPUs(), nil)
	eventually(t, "it is well", func() bool { return b.host.last() == componentstatus.StatusOK })
	src := NewReplay(gpu(0, "a", true))
	for _, f := range Fields {
		src.SetBlank(0, f.ID)
	}
	now := func() time.Time { return t0 }
	w := newWorker(now)
	defer w.stop()
	if rd := newSession(src, w, Fields, time.Second, 15*time.Second, now).run(false); rd.err == nil || !rd.blank {
		t.Errorf("a node of blanks is %v", rd.err)
	}
}

func TestWithoutAnEngineTheReceiverStartsAndSaysWhatIsMissing(t *testing.T) {
	src := twoGPUs()
	src.SetErrors(nil, errors.New("no host engine at localhost:5555: start nv-hostengine"))
	b := startBench(t, src, nil)
	eventually(t, "it says so", func() bool { return b.host.last() == componentstatus.StatusRecoverableError })
	eventually(t, "staleness is told", func() bool { return b.stale() > 0 })
	for _, md := range b.metrics.AllMetrics() {
		if n := len(points(md, semconv.GPUCount, semconv.HWID)); n != 0 {
			t.Fatal("GPUs were counted that nobody saw")
		}
	}
	src.SetErrors(nil, nil)
	eventually(t, "it comes up by itself", func() bool { return b.host.last() == componentstatus.StatusOK })
}

func TestWhatNoRetryCanMendIsSaidOnce(t *testing.T) {
	src := twoGPUs()
	src.SetErrors(nil, fmt.Errorf("the dcgm receiver is %w", errForGood))
	b := startBench(t, src, nil)
	eventually(t, "it says so", func() bool { return b.host.last() == componentstatus.StatusPermanentError })
	time.Sleep(50 * time.Millisecond)
	if n := b.Calls("Connect"); n != 1 {
		t.Errorf("%d attempts", n)
	}
}

func TestShutdownDoesNotWaitForAHang(t *testing.T) {
	src := twoGPUs()
	release := src.Hold("Inventory")
	defer release()
	cfg := NewDefaultConfig()
	cfg.CallTimeout = 50 * time.Millisecond
	r, err := createMetrics(t.Context(), receivertest.NewNopSettings(Type), cfg, consumertest.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	r.(*dcgmReceiver).source = func(*Config, *zap.Logger) (Source, error) { return src, nil }
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it hangs", func() bool { return src.Calls("Inventory") == 1 })
	began := time.Now()
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d > time.Second {
		t.Errorf("shutdown took %v", d)
	}
}

// removeAfterTests are folders that tests made for all of them.
var removeAfterTests []string

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		for _, dir := range removeAfterTests {
			os.RemoveAll(dir)
		}
		os.Exit(code)
	}))
}
