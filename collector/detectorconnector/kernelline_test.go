package detectorconnector

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/connector/connectortest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"golang.org/x/sys/unix"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/receivers/xidreceiver"
)

// followLog has the real receiver read a kernel log of these lines into the detector, and calls found with each finding.
func followLog(t testing.TB, cfg *Config, lines []string, found func(plog.LogRecord)) (stop func()) {
	t.Helper()
	next, err := consumer.NewLogs(func(_ context.Context, ld plog.Logs) error {
		for _, rl := range ld.ResourceLogs().All() {
			for _, sl := range rl.ScopeLogs().All() {
				for _, r := range sl.LogRecords().All() {
					found(r)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewFactory().CreateLogsToLogs(t.Context(), connectortest.NewNopSettings(Type), cfg, next)
	if err != nil {
		t.Fatal(err)
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for i, line := range lines {
		fmt.Fprintf(&text, "4,%d,%d,-;%s\n", i, ts.Nano()/1000+int64(i), line)
	}
	f := xidreceiver.NewFactory()
	rc := f.CreateDefaultConfig().(*xidreceiver.Config)
	rc.Path, rc.BootIDPath, rc.Proc = filepath.Join(t.TempDir(), "kmsg"), cfg.BootIDFile, t.TempDir()
	if err := os.WriteFile(rc.Path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := f.CreateLogs(t.Context(), receivertest.NewNopSettings(xidreceiver.Type), rc, c)
	if err != nil {
		t.Fatal(err)
	}
	host := componenttest.NewNopHost()
	if err := c.Start(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := r.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := c.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// The receiver carries facts, and the detector judges them: nothing may be lost on the way.
func TestALineOfTheKernelLogIsJudgedByAllThatItSays(t *testing.T) {
	lines := map[string]string{ // by device
		"0000:01:00": "NVRM: Xid (PCI:0000:01:00): 145, RLW_SRC_TRACK Fatal XC1 i0 Link 12 (0x040988e2 0x00000001 0x0 0x0)|xid/145 fatal reset-gpu",
		"0000:02:00": "NVRM: Xid (PCI:0000:02:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 02 (0x00000082 0x00000040 0x0)|xid/145 fatal reset-gpu",
		"0000:03:00": "NVRM: Xid (PCI:0000:03:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 02|xid/145 warning check-nvlink/fabric",
		"0000:04:00": "NVRM: Xid (PCI:0000:04:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reb|xid/154 fatal reboot-node",
		"0000:05:00": "NVRM: Xid (PCI:0000:05:00): 79, pid=7, name=x, GPU has fallen off the bus.|xid/79 fatal reboot-node",
		"0000:06:00": "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 12020, Fatal, Link 48 x|sxid/12020 fatal reboot-node",
		"0000:07:00": "NVRM: GPU 0000:07:00.0: GPU has fallen off the bus.|gpu/lost fatal reboot-node",
		"0000:08:00": "NVRM: GPU 0000:08:00.0: rm_init_adapter failed, device minor number 0|gpu/init fatal reset-gpu",
		"0000:09:00": "pcieport 0000:09:00.0: AER: can't recover (no error_detected callback)|pcie/aer warning reboot-node",
		"0000:0a:00": "NVRM: Xid (PCI:0000:0a:00 GPU-I:05 GPU-CI:01): 94, pid=7194, name=python3, Contained|xid/94 critical restart-app",
	}
	text, want := []string{"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15  Release Build"}, map[string]string{}
	for device, l := range lines {
		line, judged, _ := strings.Cut(l, "|")
		text, want[device] = append(text, line), judged
	}
	got := make(chan event.Event, 100)
	stop := followLog(t, config(t), text, func(r plog.LogRecord) {
		e, err := event.Decode(r.Body().Bytes().AsRaw())
		if err != nil {
			t.Error(err)
		}
		got <- e
	})
	defer stop()
	for range lines {
		select {
		case e := <-got:
			d := &e.Data
			if is := d.Cause.Signal() + " " + string(d.Severity) + " " + d.Advice; is != want[d.Target.PCI] {
				t.Errorf("%s: %s, want %s", d.Target.PCI, is, want[d.Target.PCI])
			}
		case <-time.After(20 * time.Second):
			t.Fatal("a finding is missing")
		}
	}
}

// BenchmarkKernelLineToFinding reads a log of lines that are each a finding.
func BenchmarkKernelLineToFinding(b *testing.B) {
	const n = 20_000
	lines := make([]string, n)
	for i := range lines {
		lines[i] = fmt.Sprintf("NVRM: Xid (PCI:%04x:%02x:00): 79, pid=7, name=python3, GPU has fallen off the bus.", i>>8, i&0xff)
	}
	boot := filepath.Join(b.TempDir(), "boot_id")
	if err := os.WriteFile(boot, []byte("boot-1\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		cfg := createDefaultConfig().(*Config)
		cfg.Node, cfg.PodResourcesSocket, cfg.BootIDFile, cfg.Anomalies.Enabled = "n1", "", boot, false
		var found atomic.Int64
		all := make(chan struct{})
		begun := time.Now()
		stop := followLog(b, cfg, lines, func(plog.LogRecord) {
			if found.Add(1) == n {
				close(all)
			}
		})
		<-all
		b.ReportMetric(float64(time.Since(begun).Nanoseconds())/n, "ns/line")
		b.StopTimer()
		stop()
		b.StartTimer()
	}
}
