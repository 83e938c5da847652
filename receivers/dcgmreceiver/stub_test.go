//go:build cgo && linux

package dcgmreceiver

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pitcrew/pitcrew/sandbox/simgpu"
)

// stub builds the stub library once, into a folder that ends with the process's tests, and returns its path.
var stub = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "libdcgm-stub-")
	if err != nil {
		return "", err
	}
	removeAfterTests = append(removeAfterTests, dir)
	out, err := exec.Command("../../sandbox/libdcgm/build.sh", dir).CombinedOutput()
	if err != nil {
		return "", &exec.Error{Name: string(out), Err: err}
	}
	return filepath.Join(dir, libraryName), nil
})

// stubNode simulates a node of eight GPUs, and returns a configuration that finds the stub which reads of it.
func stubNode(tb testing.TB) (*Config, *simgpu.Node) {
	tb.Helper()
	lib, err := stub()
	if err != nil {
		tb.Fatal(err)
	}
	node, err := simgpu.New(filepath.Join(tb.TempDir(), "script"), simgpu.H100s("node-a", 8))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Setenv(simgpu.EnvScript, node.Path())
	cfg := NewDefaultConfig()
	cfg.Library, cfg.NVMLLibrary, cfg.Node = lib, filepath.Join(filepath.Dir(lib), nvmlName), "node-a"
	return cfg, node
}

// stubEngine connects to the simulated node through unmodified go-dcgm, without the receiver, and returns what the engine's log says.
func stubEngine(tb testing.TB, cfg *Config) (*engine, *observer.ObservedLogs) {
	tb.Helper()
	core, logs := observer.New(zap.InfoLevel)
	e := newDCGM(cfg, zap.New(core)).(*engine)
	// A receiver that was shut down gives the connection back when its last call has ended, which Shutdown does not wait for.
	var err error
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err = e.Connect(); err == nil || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := e.Close(); err != nil {
			tb.Error(err)
		}
	})
	return e, logs
}

// startDCGM runs the receiver, through unmodified go-dcgm, against the simulated node.
func startDCGM(t *testing.T, change func(*Config, *simgpu.Node)) (*bench, *simgpu.Node) {
	t.Helper()
	cfg, node := stubNode(t)
	b := &bench{host: &statusHost{Host: componenttest.NewNopHost()}}
	cfg.Interval, cfg.CallTimeout, cfg.RetryMax = 100*time.Millisecond, 300*time.Millisecond, 100*time.Millisecond
	if change != nil {
		change(cfg, node)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.InfoLevel)
	b.said = logs
	set := receivertest.NewNopSettings(Type)
	set.Logger = zap.New(core)
	m, err := createMetrics(t.Context(), set, cfg, &b.metrics)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = createLogs(t.Context(), set, cfg, &b.logs); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context(), b.host); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "DCGM answers", func() bool { return b.host.last() == componentstatus.StatusOK })
	return b, node
}

// rounds drives a session and a builder over the engine, a step of the clock a round.
func rounds(tb testing.TB, cfg *Config, e *engine) (round func(step time.Duration, live bool) *builder) {
	at := time.Now()
	w := newWorker(time.Now)
	tb.Cleanup(w.stop)
	s := newSession(e, w, cfg.fields(), cfg.Interval, cfg.MaxInterval, func() time.Time { return at })
	b := builderOf(cfg)
	return func(step time.Duration, live bool) *builder {
		at = at.Add(step)
		rd := s.run(live)
		if rd.err != nil {
			tb.Fatal(rd.err)
		}
		_, t := b.begin(rd.at)
		b.values(t, rd.inv, rd.values)
		b.health(t, rd.inv, rd.incidents)
		b.links(t, rd.inv, rd.links)
		return b
	}
}
