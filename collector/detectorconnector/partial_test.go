package detectorconnector

import (
	"testing"

	"go.opentelemetry.io/collector/pdata/pcommon"
)

func TestAPartOfAGPUIsNotTakenForTheGPU(t *testing.T) {
	for name, c := range map[string]struct {
		attrs map[string]any
		want  bool
	}{
		"the GPU's use":       {map[string]any{"hw.id": "GPU-1", "hw.gpu.task": "general"}, false},
		"a temperature":       {map[string]any{"hw.id": "GPU-1", "hw.sensor_location": "gpu"}, false},
		"an encoder":          {map[string]any{"hw.id": "GPU-1", "hw.gpu.task": "encoder"}, true},
		"a MIG instance's":    {map[string]any{"hw.id": "GPU-1/3", "hw.parent": "GPU-1", "pitcrew.mig": "3"}, true},
		"no attribute at all": {nil, false},
	} {
		m := pcommon.NewMap()
		if err := m.FromRaw(c.attrs); err != nil {
			t.Fatal(err)
		}
		if got := partial(m); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
