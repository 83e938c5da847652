//go:build cgo && linux

package dcgmreceiver

import (
	"testing"
	"time"
)

// BenchmarkRound is one reading of 8 GPUs through unmodified go-dcgm and the stub, and the metrics made of it. One all-fields round a
// second is the budget's case; of the fast fields alone is what most rounds are.
func BenchmarkRound(b *testing.B) {
	cfg, _ := stubNode(b)
	for _, c := range []struct {
		name string
		step time.Duration
	}{{"all_fields", time.Hour}, {"fast_fields", time.Millisecond}} {
		b.Run(c.name, func(b *testing.B) {
			e, _ := stubEngine(b, cfg)
			round := rounds(b, cfg, e)
			round(0, false)
			b.ReportAllocs()
			for b.Loop() {
				round(c.step, c.name == "fast_fields")
			}
		})
	}
}
