package kernel

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/rules"
)

// log is a folder with what it reported.
type log struct {
	t       testing.TB
	p       Parser
	f       *Folder
	reports []Report
	bursts  []Burst
	seq     uint64
}

func newLog(t testing.TB) *log {
	l := &log{t: t}
	l.f = NewFolder(tables(t), func(r *Report) { l.reports = append(l.reports, *r) }, func(b *Burst) { l.bursts = append(l.bursts, *b) })
	return l
}

// at adds a line; what was reported by the end of the call is in l.reports.
func (l *log) at(at time.Duration, text string) {
	l.stamped(Stamp{At: at}, text)
}

func (l *log) stamped(s Stamp, text string) {
	l.seq++
	s.Seq = l.seq
	var e Event
	switch l.p.Parse([]byte(text), &e) {
	case IsEvent:
		l.f.Add(&e, Judge(l.f.tables, &e, l.p.Driver()), s)
	case Detail:
		l.f.AddDetail(&e, s)
	default:
		l.t.Fatalf("%q is no event", text)
	}
}

func (l *log) take() []Report {
	r := l.reports
	l.reports = nil
	return r
}

func xidLine(pci string, code int, rest string) string {
	return fmt.Sprintf("NVRM: Xid (PCI:%s): %d, %s", pci, code, rest)
}

const gpu = "0000:dc:00"

func TestTheFirstCodeOfABurstIsTheCauseAndIsReportedAtOnce(t *testing.T) {
	l := newLog(t)
	l.at(1*time.Second, xidLine(gpu, 48, "DBE"))
	first := l.take()
	if len(first) != 1 || first[0].Echo || first[0].Event.Code != 48 || first[0].Count != 1 || first[0].Stamp.Seq != 1 {
		t.Fatalf("%+v", first)
	}
	l.at(1*time.Second, xidLine(gpu, 63, "Row Remapper"))
	l.at(1*time.Second, xidLine(gpu, 45, "pid=1, name=p, Ch 1"))
	l.at(1*time.Second, xidLine(gpu, 154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"))
	for _, r := range l.take() {
		if !r.Echo || r.Cause != (Code{Xid, 48}) {
			t.Errorf("%d: echo %v of %v", r.Event.Code, r.Echo, r.Cause)
		}
	}
	l.at(10*time.Minute, xidLine(gpu, 13, "later"))
	if r := l.take(); len(r) != 1 || r[0].Echo {
		t.Errorf("after the silence: %+v", r)
	}
	if len(l.bursts) != 1 || l.bursts[0].Action != "GPU Reset Required" {
		t.Errorf("%+v", l.bursts)
	}
}

// DCGM's gauge of the last code shows the echo and hides the cause.
func TestA62IsNotHiddenByALater45(t *testing.T) {
	l := newLog(t)
	l.at(0, xidLine(gpu, 62, "0096(1c54)"))
	l.at(time.Millisecond, xidLine(gpu, 45, "Ch 1"))
	l.f.Flush()
	if b := l.bursts[0]; b.Reports[b.Cause].Event.Code != 62 {
		t.Errorf("%+v", b)
	}
}

func TestA45BeforeItsCauseIsStillTheEcho(t *testing.T) {
	l := newLog(t)
	l.at(0, xidLine(gpu, 45, "Ch 1"))
	l.at(time.Millisecond, xidLine(gpu, 31, "MMU"))
	r := l.take()
	if len(r) != 2 || r[1].Echo {
		t.Fatalf("%+v", r)
	}
	l.f.Flush()
	if b := l.bursts[0]; b.Reports[b.Cause].Event.Code != 31 {
		t.Errorf("%+v", b)
	}
	l.at(time.Hour, xidLine(gpu, 45, "Ch 00000001 caused by previous Xid 149"))
	if r := l.take(); len(r) != 1 || !r[0].Echo || r[0].Cause != (Code{Xid, 149}) {
		t.Errorf("the line names its cause: %+v", r)
	}
}

func TestWhatIsWorseThanItsBurstIsNoEcho(t *testing.T) {
	l := newLog(t)
	l.at(0, xidLine(gpu, 13, "app"))
	l.at(time.Second, xidLine(gpu, 79, "GPU has fallen off the bus"))
	l.at(time.Second, xidLine(gpu, 43, "app"))
	r := l.take()
	if len(r) != 3 || r[1].Echo || r[1].Cause != (Code{Xid, 13}) || !r[2].Echo {
		t.Errorf("%+v", r)
	}
}

func TestNoneClearsTheVerdictAnd162Clears163(t *testing.T) {
	l := newLog(t)
	l.at(0, xidLine(gpu, 95, "Uncontained"))
	l.at(1*time.Second, xidLine(gpu, 154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"))
	l.at(5*time.Second, xidLine(gpu, 154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"))
	r := l.take()
	if len(r) != 3 || r[2].Verdict.Clears != 154 || r[2].Echo || r[2].Verdict.Severity != rules.Info {
		t.Fatalf("%+v", r)
	}
	if len(l.bursts) != 1 || l.bursts[0].Action != "None" {
		t.Errorf("the burst is over with None: %+v", l.bursts)
	}
	l.at(6*time.Second, xidLine(gpu, 95, "Uncontained"))
	if r := l.take(); len(r) != 1 || r[0].Echo {
		t.Errorf("after None a code stands for itself: %+v", r)
	}
	l.at(20*time.Minute, xidLine(gpu, 163, "x"))
	l.at(20*time.Minute, xidLine(gpu, 162, "x"))
	if r := l.take(); len(r) != 2 || r[1].Verdict.Clears != 163 || r[1].Echo {
		t.Errorf("%+v", r)
	}
}

func TestTheDriversLastActionCountsAlsoWhenItGoesBack(t *testing.T) {
	l := newLog(t)
	reset := xidLine(gpu, 154, "GPU recovery action changed from 0x2 (x) to 0x1 (GPU Reset Required)")
	reboot := xidLine(gpu, 154, "GPU recovery action changed from 0x1 (x) to 0x2 (Node Reboot Required)")
	l.at(0, reset)
	l.at(1, reboot)
	l.take()
	l.at(2, reset)
	if r := l.take(); len(r) != 1 || string(r[0].Event.Action) != "GPU Reset Required" || r[0].Stamp.Seq != 3 {
		t.Errorf("%+v", r)
	}
}

// A gauge of the last code cannot show repeats.
func TestRepeatsAreCountedAndSaidAgainSeldomer(t *testing.T) {
	l := newLog(t)
	for i := range 100 {
		l.at(time.Duration(i)*100*time.Millisecond, xidLine(gpu, 31, "MMU"))
	}
	if r := l.take(); len(r) < 3 || len(r) > 5 || r[0].Count != 1 || r[1].Stamp.Seq != 1 {
		t.Errorf("%d reports in ten seconds: %+v", len(r), r)
	}
	at, ok := l.f.Next()
	if !ok {
		t.Fatal("no sweep is due")
	}
	l.f.Sweep(at)
	l.f.Sweep(at + 2*Gap)
	r := l.take()
	if len(r) == 0 || r[len(r)-1].Count != 100 || l.f.Len() != 0 {
		t.Errorf("%+v, %d bursts open", r, l.f.Len())
	}
	if _, ok := l.f.Next(); ok {
		t.Error("a sweep is due though nothing is open")
	}
}

func TestAFaultThatNeverStopsIsSaidAgain(t *testing.T) {
	l := newLog(t)
	for i := range 60 {
		l.at(time.Duration(i)*time.Minute, xidLine(gpu, 92, "SBE"))
	}
	firsts := 0
	for _, r := range l.take() {
		if r.Count == 1 {
			firsts++
		}
	}
	if firsts != 4 {
		t.Errorf("%d times in an hour, want 4", firsts)
	}
}

func TestDetailsAttachAndAreNotCounted(t *testing.T) {
	l := newLog(t)
	l.at(0, "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 12028, Non-fatal, Link 62 egress non-posted PRIV error (First)")
	l.at(1, "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 12028, Severity 0 Engine instance 62 Sub-engine instance 00")
	l.at(2, "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 12028, Data {0x0000002b}")
	l.at(3, "nvidia-nvswitch9: SXid (PCI:0000:09:00.0): 12028, Data {0x0000002b}")
	l.f.Flush()
	r := l.take()
	last := r[len(r)-1]
	if last.Count != 1 || last.Detail == "" || len(l.bursts) != 1 {
		t.Errorf("%+v", r)
	}
	// Two codes of one switch: what belongs to the second is not the first's, and of many details a bounded part is kept.
	l = newLog(t)
	l.at(0, "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 22013, Non-fatal, Link 44 Minion")
	l.at(1, "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 12028, Non-fatal, Link 62 egress")
	for range 100 {
		l.at(2, "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 12028, Severity 0 Engine instance 62 Sub-engine instance 00")
	}
	l.f.Flush()
	if b := l.bursts[0].Reports; b[0].Detail != "" || !strings.Contains(b[1].Detail, "12028, Severity 0") || len(b[1].Detail) > 512 {
		t.Errorf("%d bytes: %+v", len(b[1].Detail), b)
	}
}

func TestAnotherTenantsInstanceIsNoEcho(t *testing.T) {
	l := newLog(t)
	l.at(0, "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=1, name=a, Contained")
	l.at(1, "NVRM: Xid (PCI:0000:01:00 GPU-I:06): 94, pid=2, name=b, Contained")
	if r := l.take(); len(r) != 2 || r[1].Echo {
		t.Errorf("%+v", r)
	}
	l.at(2, "NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus")
	l.at(3, "NVRM: Xid (PCI:0000:02:00 GPU-I:06): 94, Contained")
	if r := l.take(); len(r) != 2 || !r[1].Echo {
		t.Errorf("what befalls the GPU befalls its instances: %+v", r)
	}
}

func TestSubCodesAreNotFoldedIntoOneAnother(t *testing.T) {
	l := newLog(t)
	l.at(0, xidLine(gpu, 145, "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000002 0x0)"))
	l.at(1, xidLine(gpu, 145, "RLW_SRC_TRACK Fatal XC1 i0 Link 12 (0x040988e2 0x00000001 0x0)"))
	if r := l.take(); len(r) != 2 || r[1].Echo || r[1].Verdict.Severity != rules.Fatal {
		t.Errorf("%+v", r)
	}
	// The same unit and the same word of the driver: the registers alone tell the cases apart.
	l = newLog(t)
	l.at(0, xidLine(gpu, 145, "RLW_REMAP Nonfatal XC0 i0 Link 02 (0x00000082 0x00000100 0x0)"))
	l.at(1, xidLine(gpu, 145, "RLW_REMAP Nonfatal XC0 i0 Link 02 (0x00000082 0x00000040 0x0)"))
	if r := l.take(); len(r) != 2 || r[0].Verdict.Severity != rules.Info || r[1].Echo || r[1].Verdict.Severity != rules.Fatal {
		t.Errorf("%+v", r)
	}
}

func TestALineTooOldToBeNewsIsNewsOnceItGoesOn(t *testing.T) {
	l := newLog(t)
	l.stamped(Stamp{At: 0, History: true}, xidLine(gpu, 79, "gone"))
	l.stamped(Stamp{At: time.Minute}, xidLine(gpu, 79, "gone"))
	if r := l.take(); len(r) != 2 || !r[0].Stamp.History || r[1].Stamp.History || r[1].Stamp.Seq != 2 {
		t.Errorf("%+v", r)
	}
	l = newLog(t)
	l.stamped(Stamp{At: 0, History: true, Seen: true}, xidLine(gpu, 79, "gone"))
	l.stamped(Stamp{At: 1}, xidLine(gpu, 79, "gone"))
	if r := l.take(); len(r) != 1 {
		t.Errorf("what was published is only counted: %+v", r)
	}
}

// 168,924 lines of 45 beside ten other codes in two days, 800,000 rows for 29 distinct ones: seen in the field.
func TestAStormMakesAHandfulOfReportsInBoundedMemory(t *testing.T) {
	l := newLog(t)
	l.at(0, xidLine(gpu, 95, "Uncontained"))
	line := []byte(xidLine(gpu, 45, "pid=9, name=python3, Ch 00000001"))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var e Event
	for i := range 800_000 {
		l.p.Parse(line, &e)
		l.f.Add(&e, Judge(l.f.tables, &e, 0), Stamp{At: time.Duration(i) * 25 * time.Microsecond, Seq: uint64(i)})
	}
	l.f.Flush()
	runtime.GC()
	runtime.ReadMemStats(&after)
	r := l.take()
	if len(r) > 12 {
		t.Errorf("%d reports", len(r))
	}
	if last := r[len(r)-1]; last.Count != 800_000 || !last.Echo {
		t.Errorf("last: %+v", last)
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("heap grew by %d bytes", grown)
	}
}

func TestInventedAddressesAndCodesStayWithinBounds(t *testing.T) {
	l := newLog(t)
	for i := range 5000 {
		l.at(time.Duration(i), xidLine(fmt.Sprintf("%04x:%02x:00", i>>8, i&255), 31, "x"))
	}
	if l.f.Len() > maxBursts {
		t.Errorf("%d bursts open", l.f.Len())
	}
	l = newLog(t)
	for i := range 5000 {
		l.at(time.Duration(i), xidLine(gpu, 1000+i, "x"))
	}
	if n := len(l.take()); n > maxEntries {
		t.Errorf("%d reports of invented codes", n)
	}
	l.at(5000, xidLine(gpu, 79, "gone"))
	if r := l.take(); len(r) != 1 || r[0].Echo {
		t.Errorf("a full burst hid a fatal code: %+v", r)
	}
	l.f.Flush()
	if b := l.bursts[len(l.bursts)-1]; b.Others == 0 {
		t.Errorf("%+v", b.Others)
	}
}

func BenchmarkParse(b *testing.B) {
	for name, line := range map[string]string{
		"xid":     "4,1227,437812449,-;NVRM: Xid (PCI:0000:01:00): 43, pid=1814139, name=cuda_assert_64b, Ch 00000018",
		"nvlink5": "4,1227,437812449,-;NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
		"nvrm":    "4,1227,437812449,-;NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status @ kernel_channel.c:2874",
		"other":   "6,1228,437812450,-;audit: type=1400 audit(1700000000.123:77): apparmor=\"DENIED\" operation=\"open\" profile=\"snap\" name=\"/proc/1/x\" pid=77",
	} {
		b.Run(name, func(b *testing.B) {
			var p Parser
			var e Event
			data := []byte(line)
			b.ReportAllocs()
			for b.Loop() {
				if rec, ok := ParseRecord(data); ok {
					p.Parse(rec.Text, &e)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "lines/s")
		})
	}
}

// BenchmarkStorm is one storm of a single code through parser, tables and folder.
func BenchmarkStorm(b *testing.B) {
	l := newLog(b)
	line := []byte("4,1227,437812449,-;" + xidLine(gpu, 45, "pid=9, name=python3, Ch 00000001"))
	var e Event
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		if rec, ok := ParseRecord(line); ok && l.p.Parse(rec.Text, &e) == IsEvent {
			l.f.Add(&e, Judge(l.f.tables, &e, 0), Stamp{At: time.Duration(i) * 10 * time.Microsecond})
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "lines/s")
}
