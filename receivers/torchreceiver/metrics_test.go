package torchreceiver

import (
	"fmt"
	"math"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/hook/hooktest"
)

func TestWhatADeviceTellsLaterBearsTheTimeOfItsStep(t *testing.T) {
	root := t.TempDir()
	metrics := start(t, componenttest.NewNopHost(), root, &logSink{}, nil)
	rank := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 1})
	rank.Tell("late 0")
	until(t, metrics, func(got map[string][]pmetric.NumberDataPoint) bool { return len(got["pitcrew.train.step"]) > 0 })
	for i := range 5 {
		rank.Tell(fmt.Sprint("step ", i+1))
	}
	until(t, metrics, func(got map[string][]pmetric.NumberDataPoint) bool {
		return len(got["pitcrew.train.step.duration"]) == 5
	})
	time.Sleep(30 * time.Millisecond)
	if n := len(points(metrics)["pitcrew.train.loss"]); n != 0 {
		t.Errorf("%d losses are told that are not final", n)
	}
	rank.Tell("late 3")
	got := until(t, metrics, func(got map[string][]pmetric.NumberDataPoint) bool { return len(got["pitcrew.train.loss"]) == 3 })
	for i, p := range got["pitcrew.train.loss"] {
		if p.Timestamp() != got["pitcrew.train.step.duration"][i].Timestamp() {
			t.Errorf("loss %d is %v from its step", i, p.Timestamp().AsTime().Sub(got["pitcrew.train.step.duration"][i].Timestamp().AsTime()))
		}
	}
	rank.Tell("late 5")
	got = until(t, metrics, func(got map[string][]pmetric.NumberDataPoint) bool { return len(got["pitcrew.train.loss"]) == 5 })
	if n := len(got["pitcrew.train.step.duration"]); n != 5 {
		t.Errorf("%d durations of 5 steps", n)
	}
}

func TestWhatARankCountsIsToldWithItsUnit(t *testing.T) {
	root := t.TempDir()
	metrics := start(t, componenttest.NewNopHost(), root, &logSink{}, nil)
	rank := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 1})
	until(t, metrics, func(got map[string][]pmetric.NumberDataPoint) bool { return len(got["pitcrew.train.step"]) > 0 })
	for _, field := range []string{"904 3", "912 100", "920 200", "928 150", "936 1", "944 1", "952 4741671816366391296", "960 4756540486875873280", "968 77"} {
		rank.Tell("put " + field) // FLOPs a step 1e9, peak 1e10
	}
	rank.Tell("late 9")
	rank.Tell("step 1")
	got := until(t, metrics, func(got map[string][]pmetric.NumberDataPoint) bool {
		return len(got["pitcrew.train.mfu"]) > 0 && len(got["pitcrew.train.memory.peak"]) > 0 // the state comes once a second
	})
	for name, want := range map[string]float64{
		"pitcrew.train.throughput": 3200, "pitcrew.train.mfu": 10, "pitcrew.train.nonfinite": 3, "pitcrew.train.memory.allocated": 100,
		"pitcrew.train.memory.reserved": 200, "pitcrew.train.memory.peak": 150, "pitcrew.train.memory.retries": 1, "pitcrew.train.checkpoint.size": 77,
	} {
		p := got[name]
		if len(p) == 0 {
			t.Errorf("%s is not told", name)
			continue
		}
		last := p[len(p)-1]
		v := last.DoubleValue()
		if last.ValueType() == pmetric.NumberDataPointValueTypeInt {
			v = float64(last.IntValue())
		}
		if math.Abs(v-want) > 1e-6 {
			t.Errorf("%s is %v, want %v", name, v, want)
		}
		if unit, ok := last.Attributes().Get("pitcrew.unit"); ok != (name == "pitcrew.train.throughput") || ok && unit.Str() != "samples" {
			t.Errorf("%s has the unit %q", name, unit.AsString())
		}
	}
	if p := got["pitcrew.train.nonfinite"]; len(p) == 0 || p[0].StartTimestamp() == 0 {
		t.Error("a count without its beginning")
	}
}

func TestAWallClockThatIsSetMovesTheStepsWithIt(t *testing.T) {
	var c clock
	began := time.Unix(1_700_000_000, 0)
	first := c.at(began, 1000, 500)
	if again := c.at(began.Add(20*time.Millisecond), 1000, 500); again != first {
		t.Errorf("the same step is %v later in the next sample", again.AsTime().Sub(first.AsTime()))
	}
	if set := c.at(began.Add(-time.Hour), 1000, 500); first.AsTime().Sub(set.AsTime()) != time.Hour {
		t.Errorf("the clock was set back by an hour, the step by %v", first.AsTime().Sub(set.AsTime()))
	}
	if ahead := c.at(began, 1000, math.MaxUint64); ahead.AsTime().After(began) {
		t.Errorf("a step ends in the future, at %v", ahead.AsTime())
	}
	if before := (&clock{}).at(time.Unix(0, 5), math.MaxInt64, 0); before != 0 {
		t.Errorf("a time before all times: %v", before)
	}
}

// until waits for points that are as wanted, and gives them.
func until(t *testing.T, s *consumertest.MetricsSink, enough func(map[string][]pmetric.NumberDataPoint) bool) map[string][]pmetric.NumberDataPoint {
	t.Helper()
	for end := time.Now().Add(soon); ; time.Sleep(time.Millisecond) {
		got := points(s)
		if enough(got) {
			return got
		}
		if time.Now().After(end) {
			t.Fatalf("not told in %v", soon)
		}
	}
}
