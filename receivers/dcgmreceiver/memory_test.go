//go:build cgo && linux

package dcgmreceiver

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
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
	cfg, _ := stubNode(t)
	cfg.Mode = ModeEmbedded
	e, _ := stubEngine(t, cfg)
	round := rounds(t, cfg, e)
	var b *builder
	run := func(n int) {
		for range n {
			b = round(cfg.Interval, false)
		}
	}
	run(200)
	before, counters := resident(t), len(b.counters)
	run(1000)
	if after := resident(t); after > before+4 {
		t.Errorf("%.1f MiB after 200 rounds, %.1f MiB after 1200", before, after)
	}
	if len(b.counters) != counters {
		t.Errorf("%d counters are remembered, then %d", counters, len(b.counters))
	}
}
