//go:build cgo && linux

package dcgmreceiver

import (
	"path/filepath"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/sandbox/simgpu"
)

// BenchmarkRound is one reading of 8 GPUs through unmodified go-dcgm and the stub, and the metrics made of it. One all-fields round a
// second is the budget's case; of the fast fields alone is what most rounds are.
func BenchmarkRound(b *testing.B) {
	lib, err := stub()
	if err != nil {
		b.Fatal(err)
	}
	node, err := simgpu.New(filepath.Join(b.TempDir(), "script"), simgpu.H100s("node-a", 8))
	if err != nil {
		b.Fatal(err)
	}
	b.Setenv(simgpu.EnvScript, node.Path())
	cfg := NewDefaultConfig()
	cfg.Library = lib
	for _, c := range []struct {
		name string
		step time.Duration
	}{{"all_fields", time.Hour}, {"fast_fields", time.Millisecond}} {
		b.Run(c.name, func(b *testing.B) {
			src := newDCGM(cfg, zap.NewNop())
			defer src.Close()
			at := time.Now()
			w := newWorker(time.Now)
			defer w.stop()
			s := newSession(src, w, cfg.fields(), cfg.Interval, cfg.MaxInterval, func() time.Time { return at })
			build := newBuilder(cfg, "node-a", func(pcommon.Resource) {})
			if rd := s.run(false); rd.err != nil {
				b.Fatal(rd.err)
			}
			b.ReportAllocs()
			for b.Loop() {
				at = at.Add(c.step)
				rd := s.run(c.name == "fast_fields")
				if rd.err != nil {
					b.Fatal(rd.err)
				}
				_, t := build.begin(rd.at)
				build.values(t, rd.devices, rd.values)
			}
		})
	}
}
