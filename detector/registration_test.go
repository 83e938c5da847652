package detector

import (
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/semconv"
)

// joined gives an engine values of one metric of a GPU's part of the fabric.
func joined(e *Engine, metric string) func(s, x float64) []finding.Finding {
	return func(s, x float64) []finding.Finding {
		return e.GPU(Value{Metric: metric, GPU: "GPU-1", Time: at(s), V: x})
	}
}

func TestAGPUThatTheFabricManagerDoesNotRegisterIsToldWhereThereAreSwitches(t *testing.T) {
	e := engine(t)
	v := joined(e, semconv.GPUFabricStatus)
	alone := joined(engine(t), semconv.GPUFabricStatus)
	e.Link(LinkValue{Metric: semconv.NVSwitchStatus, ID: "NVSWITCH-0", Number: -1, Time: at(0), V: 1})
	for s := 1.0; s < 600; s += 60 {
		want(t, v(s, 1))
		want(t, alone(s, 1))
	}
	got := v(601, 1)
	want(t, got, "+gpu/nvlink warning")
	if d := got[0].Event.Data; !d.Onset.Equal(at(1)) || !strings.Contains(d.Evidence.Raw, "fabric manager") || d.Advice != checkFabric {
		t.Errorf("%+v", d)
	}
	want(t, alone(601, 1))
	want(t, v(661, 1))
	want(t, v(721, 2), "-gpu/nvlink")
	want(t, v(781, 3))
}

func TestARegistrationMayTakeItsTimeAfterABootAndNotForEver(t *testing.T) {
	v := joined(engine(t), semconv.GPUFabricStatus)
	want(t, v(1, 2))
	want(t, v(300, 3))
	want(t, v(301, 2)) // anew
	want(t, v(900, 2))
	want(t, v(901, 2), "+gpu/nvlink warning")
	want(t, v(902, 3), "-gpu/nvlink")
}

func TestARegistrationThatFailedIsToldWithItsError(t *testing.T) {
	e := engine(t)
	v := joined(e, semconv.GPUFabricStatus)
	want(t, v(1, 4))
	want(t, joined(e, semconv.GPUFabricError)(1, -10))
	got := v(61, 4)
	want(t, got, "+gpu/nvlink warning")
	if raw := got[0].Event.Data.Evidence.Raw; !strings.HasSuffix(raw, "failed: error -10") {
		t.Error(raw)
	}
	want(t, v(121, 3), "-gpu/nvlink")
	for _, m := range []string{semconv.GPUFabricStatus, semconv.GPUFabricError, semconv.GPUFabricHealthMask} {
		if !WantsGPU(m) {
			t.Errorf("%s is not read", m)
		}
	}
}

func TestOfARegistrationThatIsUnknownNothingIsSaid(t *testing.T) {
	for _, x := range []float64{0, 3, 5, 6, 7, -1, 257, 1 << 40, 1e300} {
		v := joined(engine(t), semconv.GPUFabricStatus)
		want(t, v(1, x))
		want(t, v(3601, x))
	}
}

func TestEachPartOfTheFabricsHealthIsReadFromItsOwnBits(t *testing.T) {
	const well = 0x1aa
	for _, c := range []struct {
		mask     float64
		severity string
		what     string
	}{
		{0x1a9, "warning", "bandwidth"},
		{0x1a6, "info", "being recovered"},
		{0x19a, "warning", "unhealthy"},
		{0x16a, "info", "time-out"},
		{0x4aa, "warning", "configured"},
		{0x8aa, "warning", "configured"}, // the driver wants the GPU to be reset then
		{0x1, "warning", "bandwidth"},    // of a driver that knows no more of it
	} {
		v := joined(engine(t), semconv.GPUFabricHealthMask)
		want(t, v(1, 0))
		want(t, v(2, well))
		got := v(3, c.mask)
		want(t, got, "+gpu/nvlink "+c.severity)
		if d := got[0].Event.Data; !strings.Contains(d.Evidence.Raw, c.what) {
			t.Errorf("%#x: %+v", int(c.mask), d)
		}
		want(t, v(4, well), "-gpu/nvlink")
	}
	for _, mask := range []float64{0xff, -1, 1 << 62, 1e300} { // what no driver was heard of to say
		want(t, joined(engine(t), semconv.GPUFabricHealthMask)(1, mask))
	}
}
