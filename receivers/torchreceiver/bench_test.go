package torchreceiver

import (
	"testing"
	"time"

	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/hook/hooktest"
)

// BenchmarkSampleOfEightRanks is what one tick costs on a node of eight ranks, each with a step since the last.
func BenchmarkSampleOfEightRanks(b *testing.B) {
	root := b.TempDir()
	dir := hooktest.Pod(b, root, podUID)
	for i := range 8 {
		hooktest.Start(b, hooktest.Config{Dir: dir, Rank: i, LocalRank: i, WorldSize: 8, NoSocket: 1}).Tell("step 1")
	}
	fleet := hook.NewFleet(hook.FleetOptions{KubeletRoot: root})
	fleet.Start()
	defer fleet.Close()
	r, err := newReceiver(receivertest.NewNopSettings(Type), NewDefaultConfig(), func() {})
	if err != nil {
		b.Fatal(err)
	}
	r.fleet = fleet
	var cursors map[*hook.Ring]cursor
	for now := time.Now(); len(cursors) < 8; {
		_, cursors = r.sample(nil, now)
	}
	now := time.Now()
	_, cursors = r.sample(cursors, now)
	for ring, c := range cursors {
		c.pace, c.detail = c.pace-1, c.detail-1
		cursors[ring] = c
	}
	b.ReportAllocs()
	for b.Loop() {
		r.sample(cursors, now)
	}
}
