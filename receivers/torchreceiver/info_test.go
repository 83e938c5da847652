package torchreceiver

import (
	"testing"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/pmetric"

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
