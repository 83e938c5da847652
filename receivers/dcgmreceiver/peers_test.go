package dcgmreceiver

import (
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/semconv"
)

// Each test here names a weakness that users of other exporters report; docs/peer-weaknesses.md maps them.

func TestTheRecoveryActionOfBeforeTheAgentStartedIsInTheFirstRound(t *testing.T) {
	src := replayOf(t, func() time.Time { return t0 })
	src.Set(0, 1523, 2)
	p, ok := points(metricsOf(t, src, false), "pitcrew.gpu.recovery_action", semconv.HWID)["GPU-a"]
	if !ok || p.IntValue() != 2 {
		t.Errorf("the first round has %v %v, want the reboot that the driver asks for", ok, p.IntValue())
	}
}

func TestASeriesFollowsTheCardAndNotItsNumber(t *testing.T) {
	b := builderOf(NewDefaultConfig())
	read := func(at time.Duration, devices ...Device) map[string]int64 {
		md, batch := b.begin(t0.Add(at))
		var values []Value
		for _, d := range devices {
			values = append(values, Value{ID: d.ID, Link: -1, Field: 310, I: int64(d.Serial[0])})
		}
		b.values(batch, cards(devices...), values)
		out := map[string]int64{}
		for id, p := range points(md, "hw.errors", semconv.HWID) {
			out[id] = p.IntValue()
			if start := p.StartTimestamp().AsTime(); !start.Equal(t0) {
				t.Errorf("after %v the counter of %s began anew, at %v", at, id, start)
			}
		}
		return out
	}
	read(0, Device{ID: 0, UUID: "GPU-a", Serial: "9"}, Device{ID: 1, UUID: "GPU-b", Serial: "1"})
	got := read(time.Second, Device{ID: 0, UUID: "GPU-b", Serial: "1"}) // GPU-a is gone, and the engine has renumbered
	if len(got) != 1 || got["GPU-b"] != '1' {
		t.Errorf("values by card: %v", got)
	}
}

func TestNoProfilingFieldIsReadUnlessItIsAskedFor(t *testing.T) {
	for _, f := range NewDefaultConfig().fields() {
		if f.Cost == Profiling {
			t.Errorf("%s is read by default: it clashes with Nsight and needs rights", f.DCGM)
		}
	}
	cfg := NewDefaultConfig()
	cfg.ExtraFields = []uint16{1004}
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}

func TestProfilingFieldsThatGoBlankTakeNothingElseWithThem(t *testing.T) {
	src := replayOf(t, func() time.Time { return t0 })
	for _, f := range Fields {
		if f.Cost == Profiling {
			src.SetBlank(0, f.ID)
		}
	}
	md := metricsOf(t, src, true)
	if _, ok := points(md, "hw.temperature", semconv.HWSensorLocation)["gpu"]; !ok {
		t.Error("no temperature")
	}
	if n := len(points(md, "pitcrew.gpu.activity", semconv.GPUPipe)); n != 0 {
		t.Errorf("%d blanks became values", n)
	}
}
