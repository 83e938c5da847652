package torchreceiver

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/hook/hooktest"
	"github.com/pitcrew/pitcrew/semconv"
)

// Each metric is the value of one field, in its unit: no two fields of what is read here are alike.
func TestEachMetricTellsItsOwnField(t *testing.T) {
	const second = uint64(time.Second)
	s := hook.Snapshot{
		NowMono: 100 * second, StepMono: 97 * second, HeartbeatMono: 95 * second, Section: hook.SectionEval, Flags: hook.FlagSettles,
		CkptStep: 40, CkptMono: 89 * second, CkptDuration: 13 * time.Second, CkptBytes: 17, NonFinite: 19,
		MemoryAllocated: 23, MemoryReserved: 29, MemoryPeak: 31, MemoryRetries: 37, MemoryMono: 1, StepFLOPs: 6e12, PeakFLOPS: 2e12,
	}
	r := hook.Record{
		Step: 41, Duration: 10 * time.Second, DataWait: time.Second, Forward: 2 * time.Second, Backward: 3 * time.Second, Optimizer: 500 * time.Millisecond,
		Comm: 2500 * time.Millisecond, LaunchLatency: 70 * time.Millisecond, Loss: 0.25, GradNorm: 0.125, Count: 640, Flags: hook.RecordLoss | hook.RecordGradNorm,
	}
	got := map[string]float64{}
	tell := func(name string, v float64, known bool) {
		if known {
			got[name] = v
		}
	}
	all := func(s *hook.Snapshot, r *hook.Record) {
		clear(got)
		for _, ms := range [][]stateMetric{lifeMetrics, stateMetrics} {
			for _, m := range ms {
				v, known := m.value(s)
				tell(m.name, v, known)
			}
		}
		for _, ms := range [][]stepMetric{paceMetrics, detailMetrics} {
			for _, m := range ms {
				v, known := m.value(s, r)
				tell(m.name+m.phase, v, known)
			}
		}
	}
	same := func(want map[string]float64) {
		t.Helper()
		for name, v := range want {
			if have, told := got[name]; !told || math.Abs(have-v) > 1e-9 {
				t.Errorf("%s is %v (told %v), want %v", name, have, told, v)
			}
		}
		if len(got) != len(want) {
			t.Errorf("told %v", got)
		}
	}
	all(&s, &r)
	const train = "pitcrew.train."
	same(map[string]float64{
		train + "step.age": 3, train + "heartbeat.age": 5, train + "section": 3,
		train + "checkpoint.step": 40, train + "checkpoint.age": 11, train + "checkpoint.duration": 13, train + "checkpoint.size": 17, train + "nonfinite": 19,
		train + "memory.allocated": 23, train + "memory.reserved": 29, train + "memory.peak": 31, train + "memory.retries": 37,
		train + "step": 41, train + "step.duration": 10, train + "phase.durationdata_wait": 1, train + "phase.durationforward": 2, train + "phase.durationbackward": 3,
		train + "phase.durationoptimizer": 0.5, train + "communication.wait": 2.5, train + "compute.duration": 6.5, train + "launch.latency": 0.07,
		train + "throughput": 64, train + "mfu": 0.3, train + "loss": 0.25, train + "grad_norm": 0.125,
	})
	all(&hook.Snapshot{}, &hook.Record{}) // a rank that has told nothing yet
	same(map[string]float64{train + "section": 0, train + "step": 0})
}

// A rank that died is told of while that is news; its series end with a heartbeat that is a minute old, and at once where it said bye.
func TestTheSeriesOfARankThatIsGoneEnd(t *testing.T) {
	for _, c := range []struct {
		name, end string
		heartbeat time.Duration // ago
		told      bool
	}{
		{"killed", "", 2 * time.Second, true},
		{"killed a while ago", "", forgotten + time.Second, false},
		{"said bye", "bye", 2 * time.Second, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, logs := t.TempDir(), &logSink{}
			dir := hooktest.Pod(t, root, podUID)
			metrics := start(t, componenttest.NewNopHost(), root, logs, nil)
			rank := hooktest.Start(t, hooktest.Config{Dir: dir, WorldSize: 1})
			logs.wait(t, semconv.EventTrainRankAttached)
			if c.end == "" {
				rank.Kill()
			} else {
				rank.End(c.end)
			}
			logs.wait(t, semconv.EventTrainRankExited)
			f, err := os.OpenFile(filepath.Join(dir, hook.RingName(0)), os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			at := hook.Monotonic() - uint64(c.heartbeat)
			if _, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, at), 512); err != nil {
				t.Fatal(err)
			}
			if c.told {
				until(t, metrics, func(got map[string][]pmetric.NumberDataPoint) bool {
					ages := got["pitcrew.train.heartbeat.age"]
					return len(ages) > 0 && ages[len(ages)-1].DoubleValue() >= c.heartbeat.Seconds()
				})
				return
			}
			time.Sleep(30 * time.Millisecond) // a look that was under way
			metrics.Reset()
			time.Sleep(50 * time.Millisecond)
			if n := metrics.DataPointCount(); n != 0 {
				t.Errorf("%d points of a rank that is gone", n)
			}
		})
	}
}
