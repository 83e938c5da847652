package detector

import (
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/detector/verdict"
	"github.com/pitcrew/pitcrew/event"
)

func history(k *Kernel) { k.History, k.Published = true, true }

// DCGM reported the fault while the log could not be read. What the log says of before came before the fault.
func TestAClearOlderThanTheFaultDoesNotEndIt(t *testing.T) {
	n := blind(t)
	want(t, n.policy(100, 163), "+xid/163 warning")
	want(t, n.KernelLog(true))
	want(t, n.line(40, 162, history))
	want(t, n.gauge(110, 163))
	want(t, n.line(50, 162))
	want(t, n.line(100.5, 163)) // its own line
	want(t, n.line(200, 162), "-xid/163")
}

func TestAClearEndsAFaultFromBeforeTheClockWasSetBack(t *testing.T) {
	n := blind(t)
	want(t, n.policy(7200, 163), "+xid/163 warning")
	want(t, n.KernelLog(true))
	want(t, n.gauge(3600, 163)) // an hour back
	want(t, n.line(3700, 162), "-xid/163")
}

// The line of the fault may be gone from the log, and a restarted agent does not know of it. Its condition is still set.
func TestAClearOfAnUnknownFaultEndsItsCondition(t *testing.T) {
	n := node{engine(t), t}
	got := n.line(5, 162)
	want(t, got, "-~xid/163")
	if fault := (node{engine(t), t}).line(1, 163); got[0].Key != fault[0].Key {
		t.Errorf("condition %q, the fault's is %q", got[0].Key, fault[0].Key)
	}
	want(t, (node{engine(t), t}).line(5, 162, history)) // the earlier agent ended it
}

func TestALineThatIsWorseThanWhatDcgmToldIsNoRepetition(t *testing.T) {
	n := blind(t)
	want(t, n.policy(5, 145), "+xid/145 critical")
	want(t, n.KernelLog(true))
	want(t, n.line(5.5, 145, func(k *Kernel) {
		k.Unit, k.Registers, k.Word = "RLW_REMAP", []uint32{0x82, 0x40}, 1
	}), "+xid/145 fatal")
}

// A record of the kernel log can hold several lines. The bus drops a second event of one id.
func TestTwoFaultsInOneRecordAreTwoEvents(t *testing.T) {
	e, ids := engine(t), map[string]bool{}
	for _, k := range []Kernel{
		{Line: verdict.Line{Kind: "xid", Code: 79, PCI: "0000:1a:00"}}, {Line: verdict.Line{Kind: "xid", Code: 79, PCI: "0000:1b:00"}},
		{Line: verdict.Line{Kind: "xid", Code: 48, PCI: "0000:1c:00"}}, {Line: verdict.Line{Kind: "sxid", Code: 10000, PCI: "0000:1c:00"}},
		{Line: verdict.Line{Kind: kernelLost, PCI: "0000:1d:00"}}, {Line: verdict.Line{Kind: "xid", Code: 94, PCI: "0000:1e:00", MIG: "1"}},
		{Line: verdict.Line{Kind: "xid", Code: 94, PCI: "0000:1e:00", MIG: "2"}},
	} {
		k.Seq, k.Time, k.BootID = 7, at(1), "boot-1"
		for _, f := range e.Kernel(k) {
			ids[f.Event.ID] = true
		}
	}
	one := engine(t).Kernel(Kernel{Line: verdict.Line{Kind: "xid", Code: 79, PCI: "0000:1a:00"}, Seq: 7, Time: at(1), BootID: "boot-1"})
	if !ids[one[0].Event.ID] || one[0].Event.ID != event.NewID("//c/node/n1/xid", "boot-1", "7") {
		t.Error("the first line of a record has not the id of a record of one line")
	}
	if len(ids) != 7 {
		t.Errorf("%d ids of 7 faults", len(ids))
	}
}

func TestAFaultIsFoundHoweverLongItsLine(t *testing.T) {
	long := strings.Repeat("\x00<", event.MaxBytes)
	got := engine(t).Kernel(Kernel{Line: verdict.Line{Kind: "xid", Code: 79, PCI: "0000:1a:00"}, Time: at(1), Seq: 7, Raw: long})
	want(t, got, "+xid/79 fatal") // it encodes the event
}
