package torchreceiver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/goleak"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/hook/hooktest"
	"github.com/pitcrew/pitcrew/semconv"
)

func TestMain(m *testing.M) {
	hooktest.Main()
	goleak.VerifyTestMain(m, goleak.Cleanup(os.Exit))
}

const (
	soon   = 10 * time.Second
	podUID = "0b9f5a1e-1111-4222-8333-444455556666"
)

// logSink keeps log records and can refuse some first.
type logSink struct {
	mu     sync.Mutex
	refuse int
	got    []plog.LogRecord
}

func (s *logSink) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

func (s *logSink) ConsumeLogs(_ context.Context, ld plog.Logs) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse > 0 {
		s.refuse--
		return errors.New("busy")
	}
	for _, rl := range ld.ResourceLogs().All() {
		for _, sl := range rl.ScopeLogs().All() {
			for _, r := range sl.LogRecords().All() {
				s.got = append(s.got, r)
			}
		}
	}
	return nil
}

// wait is the first record with this name.
func (s *logSink) wait(t *testing.T, name string) plog.LogRecord {
	t.Helper()
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(time.Millisecond) {
		s.mu.Lock()
		for _, r := range s.got {
			if r.EventName() == name {
				s.mu.Unlock()
				return r
			}
		}
		s.mu.Unlock()
	}
	t.Fatalf("no %s", name)
	return plog.LogRecord{}
}

func (s *logSink) count(name string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.got {
		if r.EventName() == name {
			n++
		}
	}
	return n
}

// start runs the receiver in a metrics and a logs pipeline, as a collector does.
func start(t *testing.T, host component.Host, root string, logs consumer.Logs, change func(*Config)) *consumertest.MetricsSink {
	t.Helper()
	f := NewFactory()
	cfg := f.CreateDefaultConfig().(*Config)
	cfg.KubeletRoot, cfg.Cluster, cfg.Node, cfg.Interval = root, "c", "n", 10*time.Millisecond
	if change != nil {
		change(cfg)
	}
	set := receivertest.NewNopSettings(Type)
	metrics := &consumertest.MetricsSink{}
	m, err := f.CreateMetrics(context.Background(), set, cfg, metrics)
	if err != nil {
		t.Fatal(err)
	}
	l, err := f.CreateLogs(context.Background(), set, cfg, logs)
	if err != nil {
		t.Fatal(err)
	}
	if m.(*torchReceiver) != l.(*torchReceiver) {
		t.Error("two instances: each rank would have two connections and end twice")
	}
	for _, c := range []component.Component{m, l} {
		if err := c.Start(context.Background(), host); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	return metrics
}

func text(m pcommon.Map) string { return fmt.Sprint(m.AsRaw()) }

// points are the newest points of each metric, by name.
func points(s *consumertest.MetricsSink) map[string][]pmetric.NumberDataPoint {
	out := map[string][]pmetric.NumberDataPoint{}
	for _, md := range s.AllMetrics() {
		for _, rm := range md.ResourceMetrics().All() {
			for _, sm := range rm.ScopeMetrics().All() {
				for _, m := range sm.Metrics().All() {
					ps := m.Sum().DataPoints
					if m.Type() == pmetric.MetricTypeGauge {
						ps = m.Gauge().DataPoints
					}
					for _, p := range ps().All() {
						out[m.Name()] = append(out[m.Name()], p)
					}
				}
			}
		}
	}
	return out
}

func TestTheEndOfARankIsToldAtOnceHoweverSlowTheSamples(t *testing.T) {
	root := t.TempDir()
	logs := &logSink{}
	start(t, componenttest.NewNopHost(), root, logs, func(c *Config) { c.Interval = time.Hour })
	rank := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), Rank: 1, LocalRank: 0, WorldSize: 2, Attempt: 3})
	a := logs.wait(t, semconv.EventTrainRankAttached)
	want := map[string]any{"k8s.pod.uid": podUID, "pitcrew.rank": int64(1), "pitcrew.local_rank": int64(0), "pitcrew.world_size": int64(2), "pitcrew.attempt": int64(3),
		"hw.id": "GPU-fake-1", "process.pid": int64(rank.PID()), "pitcrew.step": int64(0)}
	if got := text(a.Attributes()); got != fmt.Sprint(want) {
		t.Errorf("attached\n got %s\nwant %v", got, want)
	}
	rank.Tell("step 12")
	killed := time.Now()
	rank.Kill()
	x := logs.wait(t, semconv.EventTrainRankExited)
	want["pitcrew.step"], want["pitcrew.exit.clean"] = int64(12), false
	began, _ := x.Attributes().Get("process.creation.time")
	if at, err := time.Parse(time.RFC3339Nano, began.AsString()); err != nil || at.After(killed) || killed.Sub(at) > time.Minute {
		t.Errorf("the process began %q: %v", began.AsString(), err)
	}
	want["process.creation.time"] = began.AsString()
	if got := text(x.Attributes()); got != fmt.Sprint(want) {
		t.Errorf("exited\n got %s\nwant %v", got, want)
	}
	if x.SeverityNumber() != plog.SeverityNumberError {
		t.Errorf("severity %v", x.SeverityNumber())
	}
	t.Logf("told %v after the kill", x.ObservedTimestamp().AsTime().Sub(killed))
}

func TestAnEndOutlastsAPipelineThatIsBusy(t *testing.T) {
	root := t.TempDir()
	logs := &logSink{refuse: 3}
	rank := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 1})
	start(t, componenttest.NewNopHost(), root, logs, nil)
	logs.wait(t, semconv.EventTrainRankAttached)
	rank.End("raise out of memory")
	x := logs.wait(t, semconv.EventTrainRankExited)
	if e, _ := x.Attributes().Get("pitcrew.error"); e.Str() != "out of memory" {
		t.Errorf("error %q", e.Str())
	}
	if clean, _ := x.Attributes().Get("pitcrew.exit.clean"); clean.Bool() {
		t.Error("an exception counts as clean")
	}
	if n := logs.count(semconv.EventTrainRankExited); n != 1 {
		t.Errorf("told %d times", n)
	}
}

func TestEachStepIsOnePointAndWhatIsNotKnownIsNone(t *testing.T) {
	root := t.TempDir()
	metrics := start(t, componenttest.NewNopHost(), root, &logSink{}, nil)
	rank := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), Rank: 1, WorldSize: 2, Attempt: 3})
	for end := time.Now().Add(soon); len(points(metrics)["pitcrew.train.step"]) == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	for i := range 5 {
		rank.Tell(fmt.Sprint("step ", i+1))
	}
	var got map[string][]pmetric.NumberDataPoint
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		got = points(metrics)
		if s := got["pitcrew.train.step"]; len(s) > 0 && s[len(s)-1].IntValue() == 5 && len(got["pitcrew.train.step.duration"]) >= 5 {
			break
		}
	}
	time.Sleep(50 * time.Millisecond)
	got = points(metrics)
	if n := len(got["pitcrew.train.step.duration"]); n != 5 {
		t.Errorf("%d step durations of 5 steps", n)
	}
	for _, p := range got["pitcrew.train.phase.duration"] {
		if ph, _ := p.Attributes().Get("pitcrew.phase"); ph.Str() != "forward" || p.DoubleValue() != 0.004 {
			t.Errorf("phase %s of %v s: the rank measures only forward", ph.Str(), p.DoubleValue())
		}
	}
	for _, unknown := range []string{"pitcrew.train.grad_norm", "pitcrew.train.checkpoint.step", "pitcrew.train.checkpoint.age", "pitcrew.train.checkpoint.duration"} {
		if n := len(got[unknown]); n != 0 {
			t.Errorf("%s has %d points, and the rank does not know it", unknown, n)
		}
	}
	want := map[string]any{"k8s.pod.uid": podUID, "pitcrew.rank": int64(1), "pitcrew.local_rank": int64(0), "pitcrew.world_size": int64(2), "pitcrew.attempt": int64(3), "hw.id": "GPU-fake-1"}
	for _, p := range got["pitcrew.train.step"] {
		if text(p.Attributes()) != fmt.Sprint(want) {
			t.Fatalf("labels %s, want %v", text(p.Attributes()), want)
		}
	}
	for _, p := range got["pitcrew.train.step.age"] {
		if v := p.DoubleValue(); v < 0 || v > 60 {
			t.Errorf("step age %v", v)
		}
	}
}

func TestOfStepsFromBeforeThisAgentOnlyThePaceIsTold(t *testing.T) {
	root := t.TempDir()
	rank := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 1})
	for i := range 10 {
		rank.Tell(fmt.Sprint("step ", i+1))
	}
	metrics := start(t, componenttest.NewNopHost(), root, &logSink{}, nil)
	for end := time.Now().Add(soon); len(points(metrics)["pitcrew.train.step"]) < 3 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	got := points(metrics)
	if n := len(got["pitcrew.train.step.duration"]); n != 10 {
		t.Errorf("the durations of %d of 10 old steps were told", n)
	}
	if n := len(got["pitcrew.train.loss"]); n != 1 {
		t.Errorf("the losses of %d of 10 old steps were told, want the last", n)
	}
	at := map[pcommon.Timestamp]int64{}
	for _, p := range got["pitcrew.train.step"] {
		at[p.Timestamp()] = p.IntValue()
	}
	for i, p := range got["pitcrew.train.step.duration"] {
		if at[p.Timestamp()] != int64(i+1) {
			t.Errorf("the duration of step %d is of the time of step %d", i+1, at[p.Timestamp()])
		}
	}
}

func TestARankThatSaysByeHasEndedCleanly(t *testing.T) {
	root := t.TempDir()
	logs := &logSink{}
	start(t, componenttest.NewNopHost(), root, logs, nil)
	rank := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 1})
	logs.wait(t, semconv.EventTrainRankAttached)
	rank.End("bye")
	x := logs.wait(t, semconv.EventTrainRankExited)
	if clean, _ := x.Attributes().Get("pitcrew.exit.clean"); !clean.Bool() {
		t.Error("not clean")
	}
}

// hostWith is a collector with extensions.
type hostWith map[component.ID]component.Component

func (h hostWith) GetExtensions() map[component.ID]component.Component { return h }

type provider struct {
	component.StartFunc
	component.ShutdownFunc
	fleet *hook.Fleet
}

func (p provider) Fleet() *hook.Fleet { return p.fleet }

func TestTheFleetOfAnExtensionIsUsedAndLeftOpen(t *testing.T) {
	root := t.TempDir()
	fleet := hook.NewFleet(hook.FleetOptions{KubeletRoot: root})
	fleet.Start()
	defer fleet.Close()
	logs := &logSink{}
	host := hostWith{component.MustNewID("pilot"): provider{fleet: fleet}}
	t.Run("while it runs", func(t *testing.T) {
		start(t, host, "/nonexistent", logs, nil)
		hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 1})
		logs.wait(t, semconv.EventTrainRankAttached)
	})
	if len(fleet.Pods()) != 1 {
		t.Error("the receiver closed what it does not own")
	}
}

func TestTheReceiverStartsWithoutAKubeletAndEndsWithoutAStart(t *testing.T) {
	start(t, componenttest.NewNopHost(), "/nonexistent/kubelet", &logSink{}, nil)
	r, err := NewFactory().CreateLogs(context.Background(), receivertest.NewNopSettings(Type), NewDefaultConfig(), consumertest.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestRingsAreReadFromTheFirstPodToTheLast(t *testing.T) {
	root := t.TempDir()
	f := NewFactory()
	cfg := f.CreateDefaultConfig().(*Config)
	cfg.KubeletRoot, cfg.Interval = root, 5*time.Millisecond
	metrics := &consumertest.MetricsSink{}
	c, err := f.CreateMetrics(context.Background(), receivertest.NewNopSettings(Type), cfg, metrics)
	if err != nil {
		t.Fatal(err)
	}
	r := c.(*torchReceiver)
	if err := r.Start(context.Background(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() time.Time { // of the last look
		if !ended {
			ended = true
			if err := r.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		}
		return r.ration.at
	}
	t.Cleanup(func() { end() })
	time.Sleep(50 * time.Millisecond)
	began := time.Now()
	p := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 1, StepEvery: 20 * time.Millisecond})
	for until := began.Add(soon); metrics.DataPointCount() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the rank's ring is not read")
		}
	}
	p.Kill()
	if err := os.RemoveAll(filepath.Join(root, "pods", podUID)); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(soon); len(r.fleet.Pods()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the pod is not forgotten")
		}
	}
	gone := time.Now()
	time.Sleep(200 * time.Millisecond)
	if last := end(); last.Sub(gone) > 100*time.Millisecond || last.Before(began) {
		t.Errorf("the last look was %v after the last pod had gone, the first pod came at %v", last.Sub(gone), began)
	}
}

func TestOnANodeWithoutATrainingPodNothingTicks(t *testing.T) {
	f := NewFactory()
	cfg := f.CreateDefaultConfig().(*Config)
	cfg.KubeletRoot, cfg.Interval = t.TempDir(), 10*time.Millisecond
	c, err := f.CreateMetrics(context.Background(), receivertest.NewNopSettings(Type), cfg, &consumertest.MetricsSink{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(context.Background(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	if err := c.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	if at := c.(*torchReceiver).ration.at; !at.IsZero() {
		t.Errorf("rings were looked for at %v", at)
	}
}
