package detector

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/detector/verdict"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/rules"
	"github.com/pitcrew/pitcrew/semconv"
)

var t0 = time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)

func at(s float64) time.Time { return t0.Add(time.Duration(s * float64(time.Second))) }

func tables() *rules.Tables {
	t, err := rules.Builtin()
	if err != nil {
		panic(err)
	}
	return t
}

func engine(t *testing.T, change ...func(*Options)) *Engine {
	t.Helper()
	o := Options{Cluster: "c", Node: "n1", BootID: "boot-1", Rules: tables()}
	for _, f := range change {
		f(&o)
	}
	return New(o)
}

// words turns findings into what tests compare: "+gpu/lost fatal", "-rank/stalled", "~xid/79" for a condition without an event.
func words(fs []finding.Finding) []string {
	var out []string
	for _, f := range fs {
		if _, err := event.Encode(f.Event); err != nil {
			panic(err)
		}
		sign, sev := "+", " "+string(f.Event.Data.Severity)
		if !f.Active {
			sign, sev = "-", ""
		}
		if f.ConditionOnly {
			sign += "~"
		}
		out = append(out, sign+f.Event.Data.Cause.Signal()+sev)
	}
	return out
}

func want(t *testing.T, got []finding.Finding, w ...string) {
	t.Helper()
	if g := words(got); !slices.Equal(g, w) {
		t.Fatalf("findings %q, want %q", g, w)
	}
}

func TestAnXidIsNamedByTheTableAndKeepsItsIdAcrossEngines(t *testing.T) {
	k := Kernel{Line: verdict.Line{Kind: "xid", Code: 79, PCI: "0000:1a:00"}, Time: at(1), GPU: "GPU-1", Seq: 7, BootID: "boot-1", Raw: "NVRM: Xid …"}
	a, b := engine(t).Kernel(k), engine(t).Kernel(k)
	want(t, a, "+xid/79 fatal")
	if a[0].Event.ID != b[0].Event.ID {
		t.Error("the same line has two ids")
	}
	d := a[0].Event.Data
	if d.Cause.Name != "GPU fell off the bus" || d.Advice != "reboot-node" || d.Evidence.Raw == "" || d.Evidence.Baseline != "table" || d.Target.GPU != "GPU-1" {
		t.Errorf("finding %+v", d)
	}
	k.Seq = 8
	if c := engine(t).Kernel(k); c[0].Event.ID == a[0].Event.ID {
		t.Error("two lines have one id")
	}
}

func TestTheRegistersOfALineSayMoreThanItsCode(t *testing.T) {
	line := verdict.Line{Kind: "xid", Code: 145, Unit: "RLW_SRC_TRACK", Registers: []uint32{0x040988e2, 1}}
	got := engine(t).Kernel(Kernel{Line: line, Time: at(1), Seq: 1})
	want(t, got, "+xid/145 fatal")
	line.Registers = []uint32{0x040988e2, 2}
	if again := engine(t).Kernel(Kernel{Line: line, Time: at(1), Seq: 1}); again[0].Event.Data.Severity == event.Fatal {
		t.Errorf("another error status: %q", words(again))
	}
}

func TestAnEchoIsCountedAndNotFound(t *testing.T) {
	e := engine(t)
	want(t, e.Kernel(Kernel{Line: verdict.Line{Kind: "xid", Code: 79}, Time: at(1), Seq: 1}), "+xid/79 fatal")
	want(t, e.Kernel(Kernel{Line: verdict.Line{Kind: "xid", Code: 45}, Time: at(1), Seq: 2}))
	want(t, e.Kernel(Kernel{Line: verdict.Line{Kind: "xid", Code: 62}, Time: at(1), Seq: 3}))
	if e.Counts().Echoes != 2 {
		t.Errorf("counts %+v", e.Counts())
	}
}

func TestHistorySetsTheConditionOnceAndPublishesNothing(t *testing.T) {
	e := engine(t)
	k := Kernel{Line: verdict.Line{Kind: "xid", Code: 79}, Time: at(1), GPU: "GPU-1", Seq: 1, BootID: "boot-1", History: true}
	want(t, e.Kernel(k), "+~xid/79 fatal")
	k.Seq = 2
	want(t, e.Kernel(k))
	k.BootID, k.GPU = "boot-0", "GPU-2"
	want(t, e.Kernel(k))
}

func TestAClearingCodeEndsTheConditionItNames(t *testing.T) {
	e := engine(t)
	want(t, e.Kernel(Kernel{Line: verdict.Line{Kind: "xid", Code: 163}, Time: at(1), GPU: "GPU-1", Seq: 1}), "+xid/163 warning")
	want(t, e.Kernel(Kernel{Line: verdict.Line{Kind: "xid", Code: 162}, Time: at(2), GPU: "GPU-1", Seq: 2}), "-xid/163")
}

func TestAStormOfOneCodeIsOneOccurrenceThatCounts(t *testing.T) {
	e := engine(t)
	line := func(i int) Kernel {
		return Kernel{Line: verdict.Line{Kind: "xid", Code: 31}, Time: at(float64(i) / 5000), GPU: "GPU-1", Seq: int64(i + 1)}
	}
	first := e.Kernel(line(0))
	want(t, first, "+xid/31 warning")
	for i := range 10_000 {
		got := e.Kernel(line(i + 1))
		if len(got) != 1 || !got[0].ConditionOnly || got[0].Event.ID != first[0].Event.ID || got[0].Event.Data.Count != i+2 {
			t.Fatalf("line %d: %+v", i+1, got)
		}
	}
	want(t, e.Kernel(Kernel{Line: verdict.Line{Kind: "xid", Code: 79}, Time: at(1), GPU: "GPU-1", Seq: 20_001}), "+xid/79 fatal")
}

func TestLinesThatTheReceiverCountedAreOneOccurrence(t *testing.T) {
	e := engine(t)
	k := Kernel{Line: verdict.Line{Kind: "xid", Code: 79}, Time: at(1), GPU: "GPU-1", Seq: 1}
	first := e.Kernel(k)
	want(t, first, "+xid/79 fatal")
	k.Seq, k.Time, k.Count = 2, at(2), 5
	again := e.Kernel(k)
	want(t, again, "+~xid/79 fatal")
	if e := again[0].Event; e.ID != first[0].Event.ID || e.Data.Count != 6 || !e.Time.Equal(at(1)) {
		t.Errorf("%+v", e)
	}
	k.Seq, k.Time, k.Count = 3, at(2+181), 1 // three minutes of silence ended the burst
	want(t, e.Kernel(k), "+xid/79 fatal")
}

func TestAClockThatWasSetBackHidesNoFault(t *testing.T) {
	e := engine(t)
	k := Kernel{Line: verdict.Line{Kind: "xid", Code: 79, PCI: "0000:1a:00"}, Time: at(86_400), Seq: 1}
	want(t, e.Kernel(k), "+xid/79 fatal")
	k.Seq, k.Time = 2, at(0)
	want(t, e.Kernel(k), "+xid/79 fatal")
}

func TestAFaultOfAnotherBootIsNotARepeat(t *testing.T) {
	e := engine(t)
	k := Kernel{Line: verdict.Line{Kind: "xid", Code: 79, PCI: "0000:1a:00"}, Time: at(1), Seq: 1, BootID: "boot-1"}
	want(t, e.Kernel(k), "+xid/79 fatal")
	k.BootID, k.Time = "boot-2", at(2)
	want(t, e.Kernel(k), "+xid/79 fatal")
}

func TestALineTooOldToBeNewsIsNewsOnceItGoesOn(t *testing.T) {
	for published, again := range map[bool]string{false: "+xid/79 fatal", true: "+~xid/79 fatal"} {
		e := engine(t)
		k := Kernel{Line: verdict.Line{Kind: "xid", Code: 79, PCI: "0000:1a:00"}, Time: at(1), Seq: 1, History: true, Published: published}
		want(t, e.Kernel(k), "+~xid/79 fatal")
		k.History, k.Published, k.Seq, k.Time = false, false, 2, at(2)
		want(t, e.Kernel(k), again)
	}
}

func TestALostGPUWithoutAnXidIsAFinding(t *testing.T) {
	e := engine(t)
	got := e.Kernel(Kernel{Line: verdict.Line{Kind: "gpu_lost", Case: "fallen off the bus", PCI: "0000:18:00"}, Time: at(1), Seq: 1, Raw: "NVRM: GPU 18:00.0: GPU has fallen off the bus."})
	want(t, got, "+gpu/lost fatal")
	if d := got[0].Event.Data; d.Target.PCI != "0000:18:00" || d.Advice != "reboot-node" || d.Evidence.Raw == "" {
		t.Errorf("%+v", d)
	}
}

func TestAnEchoThatNoBurstExplainsIsSaid(t *testing.T) {
	e := engine(t)
	want(t, e.Kernel(Kernel{Line: verdict.Line{Kind: "xid", Code: 45}, Time: at(1), Seq: 1}), "+xid/45 info")
}

func TestAMalformedLineIsCountedAndDropped(t *testing.T) {
	e := engine(t)
	want(t, e.Kernel(Kernel{Line: verdict.Line{Kind: "xid"}, Time: at(1)}))
	want(t, e.Kernel(Kernel{Line: verdict.Line{Kind: "xid", Code: 79}}))
	if e.Counts().Malformed != 2 {
		t.Errorf("counts %+v", e.Counts())
	}
}

func status(gpu string, s, v float64) Value {
	return Value{Metric: "pitcrew.gpu.status", GPU: gpu, Time: at(s), V: v}
}

func TestALostGpuIsOneFaultWhoeverSaysItFirst(t *testing.T) {
	e := engine(t)
	want(t, e.GPU(status("GPU-1", 0, 1)))
	want(t, e.GPU(status("GPU-1", 1, 0)), "+gpu/lost fatal")
	want(t, e.GPU(status("GPU-1", 2, 0)))
	want(t, e.Kernel(Kernel{Line: verdict.Line{Kind: "gpu_lost"}, Time: at(2), GPU: "GPU-1", Seq: 3}))
	want(t, e.GPU(status("GPU-2", 2, 0)), "+gpu/lost fatal")
	want(t, e.GPU(status("GPU-1", 3, 1)), "-gpu/lost")
	want(t, e.GPU(status("GPU-1", 4, 0)), "+gpu/lost fatal")
}

func TestASilentSourceIsNotALostGpu(t *testing.T) {
	e := engine(t)
	e.GPU(status("GPU-1", 0, 1))
	e.GPU(Value{Metric: semconv.GPUCount, Time: at(0), V: 1})
	e.GPU(Value{Metric: semconv.GPUExpected, Time: at(0), V: 1})
	for s := 1.0; s < 60; s++ { // other samples go on
		e.Rank(sample(0, s, 1, 0.1))
		want(t, e.Settle())
	}
}

func count(e *Engine, s, have, expected float64) []finding.Finding {
	e.GPU(Value{Metric: semconv.GPUCount, Time: at(s), V: have})
	e.GPU(Value{Metric: semconv.GPUExpected, Time: at(s), V: expected})
	return e.Settle()
}

func TestAGpuThatIsNoLongerCountedIsNamed(t *testing.T) {
	e := engine(t)
	e.GPU(status("GPU-1", 0, 1))
	e.GPU(status("GPU-2", 0, 1))
	want(t, count(e, 0, 2, 2))
	e.GPU(status("GPU-1", 1, 1))
	want(t, count(e, 1, 1, 2))
	e.GPU(status("GPU-1", 2, 1))
	got := count(e, 2, 1, 2)
	want(t, got, "+gpu/lost fatal")
	if got[0].Event.Data.Target.GPU != "GPU-2" {
		t.Errorf("lost %+v", got[0].Event.Data.Target)
	}
	want(t, e.GPU(status("GPU-2", 3, 1)), "-gpu/lost")
}

func TestAGpuThatWasNeverSeenIsMissedByCount(t *testing.T) {
	e := engine(t)
	e.GPU(status("GPU-1", 0, 1))
	want(t, count(e, 0, 1, 2))
	e.GPU(status("GPU-1", 1, 1))
	got := count(e, 1, 1, 2)
	want(t, got, "+gpu/lost fatal")
	if d := got[0].Event.Data; d.Target.GPU != "" || *d.Evidence.Value != 1 || *d.Evidence.Expected != 2 {
		t.Errorf("finding %+v", d)
	}
	e.GPU(status("GPU-1", 2, 1))
	want(t, count(e, 2, 1, 2))
	e.GPU(status("GPU-1", 3, 1))
	want(t, count(e, 3, 2, 2), "-gpu/lost")
}

func TestOneLostStatusIsNotASecondFaultByCount(t *testing.T) {
	e := engine(t)
	e.GPU(status("GPU-1", 0, 1))
	for s := 1.0; s < 5; s++ {
		e.GPU(status("GPU-1", s, 1))
		e.GPU(status("GPU-2", s, 0))
		want(t, count(e, s, 1, 2))
	}
}

func TestUncorrectedErrorsAreAFaultWhenTheyRiseAndAResetIsNot(t *testing.T) {
	e := engine(t)
	ecc := func(s, v float64) []finding.Finding {
		return e.GPU(Value{Metric: "hw.errors", Kind: "uncorrected", GPU: "GPU-1", Time: at(s), V: v})
	}
	want(t, ecc(0, 5)) // what was there before is unknown, not new
	want(t, ecc(1, 5))
	want(t, ecc(2, 6), "+gpu/ecc critical")
	want(t, ecc(3, 7))
	want(t, ecc(4, 0), "-gpu/ecc")
	want(t, ecc(5, 1), "+gpu/ecc critical")
	want(t, ecc(900, 1), "-gpu/ecc")
	want(t, e.GPU(Value{Metric: "hw.errors", Kind: "corrected", GPU: "GPU-1", Time: at(901), V: 9}))
	want(t, e.GPU(Value{Metric: "hw.errors", Kind: "corrected", GPU: "GPU-1", Time: at(902), V: 99}))
}

func TestRowRemapPendingIsCriticalAndFailedIsFatal(t *testing.T) {
	e := engine(t)
	v := func(s float64, which string, x float64) []finding.Finding {
		return e.GPU(Value{Metric: "pitcrew.gpu.row_remap." + which, GPU: "GPU-1", Time: at(s), V: x})
	}
	want(t, v(1, "pending", 0))
	want(t, v(2, "pending", 1), "+gpu/row-remap critical")
	want(t, v(3, "failed", 1), "+gpu/row-remap fatal")
	want(t, v(4, "pending", 0), "-gpu/row-remap")
}

// After a violation the driver is asked at once; DCGM's own value of the second before comes after it.
func TestAnOlderValueNeitherEndsWhatALaterOneBeganNorBeginsItAnew(t *testing.T) {
	e := engine(t)
	pending := func(s, x float64) []finding.Finding {
		return e.GPU(Value{Metric: "pitcrew.gpu.row_remap.pending", GPU: "GPU-1", Time: at(s), V: x})
	}
	want(t, pending(1, 0))
	want(t, pending(1.93, 1), "+gpu/row-remap critical")
	want(t, pending(1.85, 0)) // kept from before the fault
	want(t, pending(2.85, 1))
	want(t, pending(3.93, 0), "-gpu/row-remap")
	want(t, pending(3.85, 1)) // kept from before the repair
	want(t, pending(4.85, 0))
	want(t, pending(-3600, 1), "+gpu/row-remap critical") // the clock was set back by an hour
	want(t, pending(-3599, 0), "-gpu/row-remap")
}

func TestABlankValueIsNeitherZeroNorHealth(t *testing.T) {
	e := engine(t)
	want(t, e.GPU(status("GPU-1", 1, 0)), "+gpu/lost fatal")
	want(t, e.GPU(status("GPU-1", 2, math.NaN())))
}

func TestOpenFindingsOutliveTheProcessAndNotTheBoot(t *testing.T) {
	e := engine(t)
	e.GPU(status("GPU-1", 1, 0))
	e.Kernel(Kernel{Line: verdict.Line{Kind: "xid", Code: 79}, GPU: "GPU-1", Time: at(1), Seq: 1}) // said again by its receiver
	saved := e.Snapshot()
	after := engine(t)
	want(t, after.Restore(saved), "+~gpu/lost fatal")
	want(t, after.GPU(status("GPU-1", 5, 0)))
	want(t, after.GPU(status("GPU-1", 6, 1)), "-gpu/lost")
	rebooted := engine(t, func(o *Options) { o.BootID = "boot-2" })
	want(t, rebooted.Restore(saved))
	want(t, rebooted.GPU(status("GPU-1", 5, 0)), "+gpu/lost fatal")
}

func TestStateIsBoundedWhateverComes(t *testing.T) {
	const bound = 64
	e := engine(t, func(o *Options) { o.MaxSeries = bound })
	for i := range 10 * bound {
		id := fmt.Sprintf("GPU-%d", i)
		e.GPU(Value{Metric: "hw.errors", Kind: "uncorrected", GPU: id, Series: id, Time: at(1), V: 1})
		e.GPU(status(id, 1, 0))
		s := sample(i, 1, 1, 0.1)
		s.Target.PodUID = id
		e.Rank(s)
		e.Kernel(Kernel{Line: verdict.Line{Kind: "xid", Code: 79}, GPU: id, Time: at(1), Seq: int64(i)})
	}
	for name, n := range map[string]int{"open": e.open.len(), "ranks": e.ranks.len(), "series": e.series.len(), "gpus": e.gpus.len()} {
		if n > bound {
			t.Errorf("%d %s, bound %d", n, name, bound)
		}
	}
	if e.Counts().Evicted == 0 {
		t.Error("evictions are not counted")
	}
}

func TestTheSketchIsNeverTooLowAndAtMostATenthTooHigh(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var s sketch
	var vs []float64
	for range 400 {
		v := 0.2 * math.Exp(0.3*rng.NormFloat64())
		s.add(v)
		vs = append(vs, v)
	}
	slices.Sort(vs)
	exact := vs[int(math.Ceil(0.99*400))-1]
	if got := s.quantile(0.99); got < exact || got > 1.1*exact {
		t.Errorf("p99 %g, exact %g", got, exact)
	}
}

func TestKeysTellConditionsApart(t *testing.T) {
	e := engine(t)
	e.GPU(status("GPU-1", 1, 0))
	e.Kernel(Kernel{Line: verdict.Line{Kind: "xid", Code: 79}, GPU: "GPU-1", Time: at(1), Seq: 1})
	e.Kernel(Kernel{Line: verdict.Line{Kind: "xid", Code: 79, PCI: "0000:1a:00"}, Time: at(1), Seq: 2})
	var keys []string
	e.open.each(func(key string, _ *finding.Open) { keys = append(keys, key) })
	if got := strings.Join(keys, ","); got != "gpu/lost gpu/GPU-1,xid/79 gpu/GPU-1,xid/79 pci/0000:1a:00" {
		t.Errorf("keys %s", got)
	}
}
