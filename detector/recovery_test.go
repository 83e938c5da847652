package detector

import (
	"testing"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/detector/verdict"
	"github.com/pitcrew/pitcrew/semconv"
)

func TestARecoveryActionThatStoodBeforeTheAgentCameIsToldOnce(t *testing.T) {
	e := New(Options{Cluster: "c", Node: "n", BootID: "boot-1", Rules: tables()})
	asks := func(s, v float64) []finding.Finding {
		return e.GPU(Value{Metric: semconv.GPURecoveryAction, GPU: "GPU-1", PCI: "0000:1a:00", Time: at(s), V: v})
	}
	want(t, asks(1, 2))
	want(t, asks(5, 2)) // the kernel log may tell of it yet
	want(t, asks(4, 0)) // what DCGM had kept from before
	got := asks(12, 2)
	want(t, got, "+xid/154 fatal")
	if d := got[0].Event.Data; d.Target.GPU != "GPU-1" || d.Target.PCI != "0000:1a:00" || d.Advice != "reboot-node" || d.Cause.Name != "Node Reboot Required" || *d.Evidence.Value != 2 {
		t.Errorf("%+v", d)
	}
	want(t, asks(30, 2))
	want(t, asks(31, 0), "-xid/154")
	want(t, asks(32, 2)) // what changes is told by the kernel log
	want(t, asks(90, 2))
}

func TestARecoveryActionIsToldThoughTheClockWasAheadWhenItWasFirstSeen(t *testing.T) {
	e := New(Options{Cluster: "c", Node: "n", BootID: "boot-1", Rules: tables()})
	for _, s := range []float64{3600, 10, 19} {
		want(t, e.GPU(Value{Metric: semconv.GPURecoveryAction, GPU: "GPU-1", Time: at(s), V: 2}))
	}
	want(t, e.GPU(Value{Metric: semconv.GPURecoveryAction, GPU: "GPU-1", Time: at(20), V: 2}), "+xid/154 fatal")
}

func TestARecoveryActionOfWhichTheKernelLogTellsIsNotToldAgain(t *testing.T) {
	e := New(Options{Cluster: "c", Node: "n", BootID: "boot-1", Rules: tables()})
	asks := func(s, v float64) []finding.Finding {
		return e.GPU(Value{Metric: semconv.GPURecoveryAction, GPU: "GPU-1", Time: at(s), V: v})
	}
	line := Kernel{Line: verdict.Line{Kind: "xid", Code: 154, Action: "Node Reboot Required"}, Time: at(2), GPU: "GPU-1", Seq: 7, History: true}
	want(t, asks(1, 2))
	if f := e.Kernel(line); len(f) != 1 || !f[0].ConditionOnly {
		t.Fatalf("the line of before: %q", words(f))
	}
	want(t, asks(20, 2))
	want(t, asks(21, 0)) // the log ends what the log began
	line.History, line.Seq, line.Time, line.Action = false, 8, at(22), "None"
	want(t, e.Kernel(line), "-xid/154")
}

func TestAnActionThatIsToldEndsAcrossANewAgent(t *testing.T) {
	o := Options{Cluster: "c", Node: "n", BootID: "boot-1", Rules: tables()}
	e := New(o)
	asks := func(s, v float64) []finding.Finding {
		return e.GPU(Value{Metric: semconv.GPURecoveryAction, GPU: "GPU-1", Time: at(s), V: v})
	}
	asks(1, 2)
	want(t, asks(12, 2), "+xid/154 fatal")
	left := e.Snapshot()
	e = New(o)
	e.Restore(left)
	want(t, asks(20, 2))
	want(t, asks(40, 2)) // it stands, and was told
	want(t, asks(41, 0), "-xid/154")
}

func TestWhereTheKernelLogCannotBeReadEachActionIsTold(t *testing.T) {
	e := New(Options{Cluster: "c", Node: "n", BootID: "boot-1", Rules: tables()})
	asks := func(s, v float64) []finding.Finding {
		return e.GPU(Value{Metric: semconv.GPURecoveryAction, GPU: "GPU-1", Time: at(s), V: v})
	}
	want(t, asks(1, 0))
	want(t, asks(2, 2))
	want(t, asks(20, 2)) // the log tells of it
	e.KernelLog(false)
	want(t, asks(30, 0))
	want(t, asks(31, 2))
	want(t, asks(45, 2), "+xid/154 fatal")
	want(t, asks(46, 0), "-xid/154")
}

// What says that a card is to be replaced does not stop it from working: it is told, with that advice, and acts on nothing by itself.
func TestACardThatIsToBeReplacedIsToldUntilItIs(t *testing.T) {
	for metric, w := range map[string]string{
		"pitcrew.gpu.ecc.sram.exceeded": "gpu/ecc", "pitcrew.gpu.memory.unrepairable": "gpu/ecc", "pitcrew.gpu.row_remap.banks.exhausted": "gpu/row-remap",
	} {
		e := engine(t)
		v := func(s, x float64) []finding.Finding {
			return e.GPU(Value{Metric: metric, GPU: "GPU-1", Time: at(s), V: x})
		}
		want(t, v(1, 0))
		got := v(2, 1)
		want(t, got, "+"+w+" warning")
		if d := got[0].Event.Data; d.Advice != "drain-and-rma" || d.Evidence.Signal != metric {
			t.Errorf("%+v", d)
		}
		want(t, v(3, 1))
		want(t, v(4, 0), "-"+w)
	}
}

func TestAFabricThatIsUnhealthyOrReducedIsToldAndOneThatIsUnknownIsNot(t *testing.T) {
	e := engine(t)
	v := func(s, x float64) []finding.Finding {
		return e.GPU(Value{Metric: "pitcrew.gpu.fabric.health", GPU: "GPU-1", Time: at(s), V: x})
	}
	want(t, v(1, 0)) // not supported
	want(t, v(2, 1))
	want(t, v(3, 2), "+gpu/nvlink warning")
	want(t, v(4, 3))
	want(t, v(5, 1), "-gpu/nvlink")
	want(t, v(6, 3), "+gpu/nvlink warning")
}
