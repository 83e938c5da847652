//go:build cgo && linux

package dcgmreceiver

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/sandbox/simgpu"
)

// resident is the process's memory in MiB, the C library's with it, once Go has given back what it can.
func resident(t *testing.T) float64 {
	t.Helper()
	runtime.GC()
	debug.FreeOSMemory()
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(raw))[1])
	if err != nil {
		t.Fatal(err)
	}
	return float64(pages*os.Getpagesize()) / (1 << 20)
}

// A leak of one value of 4 KiB a round would be 4 MiB here; what others report is 500 MiB a day.
func TestAThousandRoundsLeaveNoMoreMemory(t *testing.T) {
	lib, err := stub()
	if err != nil {
		t.Fatal(err)
	}
	node, err := simgpu.New(filepath.Join(t.TempDir(), "script"), simgpu.H100s("node-a", 8))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(simgpu.EnvScript, node.Path())
	cfg := NewDefaultConfig()
	cfg.Mode, cfg.Library = ModeEmbedded, lib
	src := newDCGM(cfg, zap.NewNop())
	defer src.Close()
	at := time.Now()
	w := newWorker(time.Now)
	defer w.stop()
	s := newSession(src, w, cfg.fields(), cfg.Interval, cfg.MaxInterval, func() time.Time { return at })
	b := newBuilder(cfg, "node-a", func(pcommon.Resource) {})
	rounds := func(n int) {
		for range n {
			at = at.Add(cfg.Interval)
			rd := s.run(false)
			if rd.err != nil {
				t.Fatal(rd.err)
			}
			_, batch := b.begin(rd.at)
			b.values(batch, rd.devices, rd.values)
			b.health(batch, rd.devices, rd.incidents)
		}
	}
	rounds(200)
	before, counters := resident(t), len(b.counters)
	rounds(1000)
	if after := resident(t); after > before+4 {
		t.Errorf("%.1f MiB after 200 rounds, %.1f MiB after 1200", before, after)
	}
	if len(b.counters) != counters {
		t.Errorf("%d counters are remembered, then %d", counters, len(b.counters))
	}
}
