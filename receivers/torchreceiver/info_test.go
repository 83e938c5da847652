package torchreceiver

import (
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/hook/hooktest"
)

func TestWhatARankRunsIsToldByTheAttributesOfItsInfo(t *testing.T) {
	root := t.TempDir()
	metrics := start(t, componenttest.NewNopHost(), root, &logSink{}, nil)
	hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 1, Workload: "model=gpt;tokens=8"})
	got := until(t, metrics, func(got map[string][]pmetric.NumberDataPoint) bool { return len(got["pitcrew.train.info"]) > 0 })
	p := got["pitcrew.train.info"][0]
	for name, want := range map[string]string{"pitcrew.workload": "model=gpt;tokens=8", "k8s.pod.uid": podUID, "hw.id": "GPU-fake-0"} {
		if v, _ := p.Attributes().Get(name); v.AsString() != want {
			t.Errorf("%s is %q, want %q", name, v.AsString(), want)
		}
	}
	if _, has := p.Attributes().Get("pitcrew.framework"); has || p.IntValue() != 1 {
		t.Errorf("a framework that the ring does not name: %v", p.Attributes().AsRaw())
	}
}

func TestInfoIsSaidOnceASecondHoweverOftenRingsAreRead(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	s, last, n := &hook.Snapshot{Torch: "2.9.0"}, time.Time{}, 0
	for range 30 {
		b := newBatch(&torchReceiver{cfg: NewDefaultConfig()}, at)
		last = b.info(podUID, s, last)
		if n += b.md.DataPointCount(); b.md.DataPointCount() > 0 {
			eachPoint(b.md.ResourceMetrics().At(0), func(p pmetric.NumberDataPoint) {
				if v, _ := p.Attributes().Get("pitcrew.framework"); v.Str() != "torch 2.9.0" || p.Timestamp() != pcommon.NewTimestampFromTime(at) {
					t.Errorf("%v: %v", at, p.Attributes().AsRaw())
				}
			})
		}
		at = at.Add(100 * time.Millisecond)
	}
	if n != 3 {
		t.Errorf("said %d times in 3 s", n)
	}
}
