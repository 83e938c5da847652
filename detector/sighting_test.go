package detector

import (
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/detector/verdict"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

const pci1 = "0000:1a:00"

// node is one GPU as DCGM has it, and the kernel log, which can be read unless it is said not to be.
type node struct {
	*Engine
	t *testing.T
}

func blind(t *testing.T) node {
	t.Helper()
	n := node{engine(t), t}
	want(t, n.gauge(0, 0))
	want(t, n.KernelLog(false))
	return n
}

// gauge is a round of DCGM: the GPU answers, and this is its last Xid.
func (n node) gauge(s float64, code int) []finding.Finding {
	n.t.Helper()
	v := status("GPU-1", s, 1)
	v.PCI = pci1
	want(n.t, n.GPU(v))
	out := n.GPU(Value{Metric: semconv.GPUXID, GPU: "GPU-1", Time: at(s), V: float64(code)})
	want(n.t, n.Settle())
	return out
}

// policy is a violation of DCGM's policy.
func (n node) policy(s float64, code int) []finding.Finding {
	return n.Sighted(Sighting{Code: code, GPU: "GPU-1", PCI: pci1, Time: at(s), Signal: "DCGM policy", Raw: "…"})
}

// line is one of the kernel log.
func (n node) line(s float64, code int, change ...func(*Kernel)) []finding.Finding {
	k := Kernel{Line: verdict.Line{Kind: "xid", Code: code, PCI: pci1}, Time: at(s), GPU: "GPU-1", Seq: int64(1000 * s), BootID: "boot-1", Raw: "NVRM: Xid …"}
	for _, f := range change {
		f(&k)
	}
	return n.Kernel(k)
}

func TestWhereTheKernelLogCannotBeReadAPolicyTellsAnXid(t *testing.T) {
	n := blind(t)
	got := n.policy(5, 79)
	want(t, got, "+xid/79 fatal")
	e := got[0].Event
	if d := e.Data; e.Source != "//c/node/n1/dcgm" || e.Type != event.Fault || d.Target.GPU != "GPU-1" || d.Target.PCI != pci1 || d.Cause.Name != "GPU fell off the bus" ||
		d.Advice != "reboot-node" || d.Evidence.Signal != "DCGM policy" || !e.Time.Equal(at(5)) {
		t.Errorf("event %+v", e)
	}
	line := engine(t).Kernel(Kernel{Line: verdict.Line{Kind: "xid", Code: 79, PCI: pci1}, Time: at(5), GPU: "GPU-1", Seq: 1})
	if line[0].Key != got[0].Key {
		t.Errorf("the condition is %q, the kernel's is %q", got[0].Key, line[0].Key)
	}
}

func TestWhereTheKernelLogCanBeReadDcgmTellsNoXid(t *testing.T) {
	n := node{engine(t), t}
	want(t, n.gauge(0, 0))
	want(t, n.policy(5, 79))
	want(t, n.gauge(6, 79))
	want(t, n.line(5, 79), "+xid/79 fatal")
	want(t, n.KernelLog(false)) // and fails right after that
	want(t, n.policy(6, 79))
	want(t, n.gauge(7, 79))
	want(t, n.KernelLog(true))
	want(t, n.policy(400, 48))
	want(t, n.gauge(401, 48))
}

func TestWithoutAPolicyTheFieldThatChangedTellsAnXid(t *testing.T) {
	n := blind(t)
	got := n.gauge(5, 79)
	want(t, got, "+xid/79 fatal")
	if ev := got[0].Event.Data.Evidence; ev.Signal != semconv.GPUXID || !strings.Contains(ev.Raw, "was 0") {
		t.Errorf("evidence %+v", ev)
	}
	want(t, n.gauge(6, 79))
	want(t, n.policy(5, 79)) // which comes late
	want(t, n.gauge(300, 31), "+xid/31 warning")
	want(t, n.gauge(299.5, 79)) // kept from before
	want(t, n.gauge(301, 31))
}

func TestWhatTheFieldHoldsWhenItIsFirstSeenIsHistory(t *testing.T) {
	n := node{engine(t), t}
	want(t, n.KernelLog(false))
	want(t, n.gauge(0, 79))
	for s := 1.0; s < 30; s++ {
		want(t, n.gauge(s, 79))
	}
	want(t, n.gauge(30, 31), "+xid/31 warning")
}

// The field never clears, so a code that comes back is not seen by it; a host engine that was started anew holds none for a while.
func TestTheSameCodeAfterARestartOfTheHostEngineIsNoNews(t *testing.T) {
	n := blind(t)
	want(t, n.gauge(5, 79), "+xid/79 fatal")
	for _, code := range []int{0, 79, 0, 0, 79} {
		for s := range 3 {
			want(t, n.gauge(3600+float64(s), code))
		}
	}
	for s := 0; s < 60; s += 10 { // its rounds are missing, then it is back
		want(t, n.Settle())
	}
	want(t, n.gauge(7200, 79))
	want(t, n.gauge(7201, 48), "+xid/48 critical")
}

func TestAPolicysXidIsToldOnceThoughTheFieldComesLate(t *testing.T) {
	n := blind(t)
	want(t, n.policy(5, 31), "+xid/31 warning")
	want(t, n.policy(5.1, 79), "+xid/79 fatal")
	want(t, n.gauge(5.2, 0))                    // the round that was under way
	want(t, n.gauge(1000, 31))                  // DCGM hung; which of the two it saw last is its own affair
	want(t, n.gauge(1001, 79), "+xid/79 fatal") // this is one of now
}

// A round that was under way when a violation came still has the value of before.
func TestAValueOfBeforeAViolationIsNotNewsAfterIt(t *testing.T) {
	n := node{engine(t), t}
	want(t, n.KernelLog(false))
	want(t, n.gauge(0, 79)) // of last week
	want(t, n.policy(5, 31), "+xid/31 warning")
	want(t, n.gauge(5.1, 79))
	want(t, n.gauge(6, 31))
	want(t, n.gauge(7, 31))
}

func TestAnOldViolationIsHistory(t *testing.T) {
	n := blind(t)
	want(t, n.gauge(300, 0))
	want(t, n.policy(200, 79))
	if c := n.Counts(); c.History != 1 {
		t.Errorf("counts %+v", c)
	}
}

func TestAViolationIsNewsThoughTheClockWasAheadForATime(t *testing.T) {
	n := blind(t)
	n.gauge(3600, 0) // an hour ahead
	n.gauge(10, 0)   // set right
	want(t, n.policy(11, 79), "+xid/79 fatal")

	n = node{engine(t), t} // the log is lost as the clock is right again
	n.gauge(3600, 0)
	n.gauge(10, 0)
	want(t, n.policy(11, 79))
	n.gauge(12, 0)
	want(t, n.KernelLog(false), "+xid/79 fatal")
}

func TestOfABurstOnlyWhatIsWorseIsTold(t *testing.T) {
	n := blind(t)
	want(t, n.policy(4, 45)) // an echo by the table, though nothing is known that it follows from
	want(t, n.policy(5, 31), "+xid/31 warning")
	want(t, n.policy(6, 31))
	want(t, n.policy(7, 45))
	want(t, n.policy(8, 79), "+xid/79 fatal")
	want(t, n.policy(9, 62)) // follows from it
	want(t, n.policy(100, 79))
	want(t, n.policy(100+181, 79), "+xid/79 fatal") // three minutes of silence ended it
	for s := 300.0; s < 281+900; s += 100 {
		want(t, n.policy(s, 79))
	}
	want(t, n.policy(281+901, 79), "+xid/79 fatal") // one that goes on is said again
}

func TestWhatTheLineAloneWouldSayIsNotToldByItsCode(t *testing.T) {
	e := blind(t)
	want(t, e.policy(5, 154))
}

func TestACodeThatClearsAnotherClearsItByDcgmToo(t *testing.T) {
	n := blind(t)
	want(t, n.policy(5, 163), "+xid/163 warning")
	want(t, n.policy(6, 162), "-xid/163")
}

func TestWhatDcgmToldIsNotToldAgainByTheLogThatCanBeReadAtLast(t *testing.T) {
	n := blind(t)
	want(t, n.policy(500, 79), "+xid/79 fatal")
	want(t, n.KernelLog(true))
	want(t, n.line(499.4, 79)) // the whole log is read from its beginning
	want(t, n.line(499.4, 79, func(k *Kernel) { k.Count = 5 }))
	want(t, n.line(503, 79))
	want(t, n.line(499.5, 48), "+xid/48 critical") // which DCGM did not tell
	want(t, n.line(700, 79), "+xid/79 fatal")      // another
}

func TestWhatDcgmToldIsNotToldAgainAfterARestart(t *testing.T) {
	for what, readable := range map[string]bool{"the log can be read now": true, "it cannot still": false} {
		n := blind(t)
		want(t, n.policy(500, 79), "+xid/79 fatal")
		e, back := reborn(t, n.Engine)
		want(t, back, "+~xid/79 fatal")
		n = node{e, t}
		if readable {
			want(t, n.line(499.4, 79))
			want(t, n.line(499.4, 79, func(k *Kernel) { k.History = true }))
		} else {
			want(t, n.KernelLog(false))
		}
		want(t, n.gauge(520, 79))
		want(t, n.policy(500, 79))
		want(t, n.gauge(521, 79))
		if t.Failed() {
			t.Fatal(what)
		}
	}
}

func TestWhatHappensAsTheLogIsLostIsNotLost(t *testing.T) {
	n := node{engine(t), t}
	want(t, n.gauge(0, 0))
	want(t, n.policy(20, 48))
	want(t, n.line(20, 48), "+xid/48 critical")
	want(t, n.policy(100, 79))
	want(t, n.gauge(101, 79))
	want(t, n.KernelLog(false), "+xid/79 fatal")
	want(t, n.KernelLog(false))
	want(t, n.gauge(102, 79))
	want(t, n.KernelLog(true))
	want(t, n.policy(500, 79))
	want(t, n.gauge(515, 79)) // the log had its time to tell
	want(t, n.KernelLog(false))
}

func TestALineThatHasTheAddressAloneIsOfTheSameGpu(t *testing.T) {
	n := node{engine(t), t}
	want(t, n.gauge(0, 0))
	want(t, n.line(5, 79, func(k *Kernel) { k.GPU = "" }), "+xid/79 fatal")
	want(t, n.KernelLog(false))
	want(t, n.policy(6, 79))
	want(t, n.gauge(7, 79))
}

func TestTheSXidOfASwitchIsNotToldAgainByItsLine(t *testing.T) {
	e := engine(t)
	last := func(s, code float64) []finding.Finding {
		e.Link(LinkValue{Metric: semconv.NVSwitchStatus, ID: "S", PCI: "0000:05:00", Number: -1, Time: at(s), V: 1})
		out := e.Link(LinkValue{Metric: "pitcrew.nvswitch.sxid", Kind: "fatal", ID: "S", PCI: "0000:05:00", Number: -1, Time: at(s), V: code})
		return append(out, e.Settle()...)
	}
	want(t, last(0, 0))
	want(t, last(5, 20034), "+sxid/20034 fatal")
	line := Kernel{Line: verdict.Line{Kind: "sxid", Code: 20034, PCI: "0000:05:00", Word: verdict.Fatal}, Time: at(4.5), Seq: 9}
	want(t, e.Kernel(line))
	line.Seq, line.Time = 10, at(5+181)
	want(t, e.Kernel(line), "+sxid/20034 fatal")
}

func TestASightingOfNothingIsCountedAndDropped(t *testing.T) {
	n := blind(t)
	before := n.Counts().Malformed
	for _, s := range []Sighting{
		{GPU: "GPU-1", PCI: pci1, Time: at(1)}, {Code: -79, GPU: "GPU-1", PCI: pci1, Time: at(1)}, {Code: 79, GPU: "gpu-3", Time: at(1)},
		{Code: 79, GPU: "GPU-1", PCI: pci1}, {Code: 79, GPU: strings.Repeat("x", 1<<12), PCI: pci1, Time: at(1)}, {Code: 79, PCI: strings.Repeat("x", 1<<12), Time: at(1)},
	} {
		want(t, n.Sighted(s))
	}
	want(t, n.gauge(2, -1))
	want(t, n.gauge(3, 1<<40))
	if c := n.Counts().Malformed - before; c != 8 {
		t.Errorf("%d were malformed", c)
	}
	for i := range 10_000 { // and a storm is held in bounds
		n.policy(4+float64(i)/1000, 1+i%200)
	}
	if x := n.xidsOf(event.Target{PCI: pci1}); len(x.told) > maxTold {
		t.Errorf("%d are kept", len(x.told))
	}
	quiet := node{engine(t), t}
	for i := range 1000 {
		quiet.policy(float64(i), 79)
	}
	if len(quiet.held) > maxHeld {
		t.Errorf("%d are held", len(quiet.held))
	}
}
