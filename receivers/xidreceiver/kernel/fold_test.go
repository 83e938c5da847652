package kernel

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// log is a folder with what it reported.
type log struct {
	t       testing.TB
	p       Parser
	f       *Folder
	reports []Report
	seq     uint64
}

func newLog(t testing.TB) *log {
	l := &log{t: t}
	l.f = NewFolder(func(r *Report) { l.reports = append(l.reports, *r) })
	return l
}

// at adds a line; what was reported by the end of the call is in l.reports.
func (l *log) at(at time.Duration, text string) { l.stamped(Stamp{At: at}, text) }

func (l *log) stamped(s Stamp, text string) {
	l.seq++
	s.Seq = l.seq
	var e Event
	switch l.p.Parse([]byte(text), &e) {
	case IsEvent:
		l.f.Add(&e, s)
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

// lines adds up how many lines the reports stand for.
func lines(reports []Report) (n int) {
	for _, r := range reports {
		n += r.Count
	}
	return n
}

func codes(reports []Report) (all []int) {
	for _, r := range reports {
		all = append(all, r.Event.Code)
	}
	return all
}

func xidLine(pci string, code int, rest string) string {
	return fmt.Sprintf("NVRM: Xid (PCI:%s): %d, %s", pci, code, rest)
}

const (
	gpu           = "0000:dc:00"
	resetRequired = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
	allWell       = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
)

func TestALineThatSaysSomethingNewIsReportedWithinTheCall(t *testing.T) {
	l := newLog(t)
	for i, line := range []string{
		xidLine(gpu, 48, "DBE"), xidLine(gpu, 45, "Ch 1"), xidLine("0000:01:00", 48, "DBE"), "NVRM: Xid (PCI:" + gpu + " GPU-I:05): 48, DBE",
		xidLine(gpu, 154, resetRequired), xidLine(gpu, 154, allWell),
		xidLine(gpu, 145, "RLW_REMAP Nonfatal XC0 i0 Link 02 (0x00000082 0x00000100 0x0)"),
		xidLine(gpu, 145, "RLW_REMAP Nonfatal XC0 i0 Link 02 (0x00000082 0x00000040 0x0)"), // the registers alone distinguish the cases
		xidLine(gpu, 145, "RLW_REMAP Fatal XC0 i0 Link 02 (0x00000082 0x00000040 0x0)"),
		"nvidia 0000:03:00.0: AER: can't recover (no error_detected callback)", "pcieport 0000:03:00.0: AER: Corrected error message received",
	} {
		l.at(time.Millisecond, line)
		if r := l.take(); len(r) != 1 || r[0].Count != 1 || r[0].Line != line || r[0].Stamp.Seq != uint64(i+1) {
			t.Errorf("%s: %+v", line, r)
		}
	}
}

// A gauge of the last code cannot show repeats.
func TestRepeatsAreCountedAndReportedSeldomer(t *testing.T) {
	l := newLog(t)
	for i := range 100 {
		l.at(time.Duration(i)*100*time.Millisecond, xidLine(gpu, 31, "MMU"))
	}
	r := l.take()
	if len(r) < 3 || len(r) > 6 || r[0].Count != 1 || r[1].Stamp.Seq != 2 {
		t.Errorf("%d reports in ten seconds: %+v", len(r), r)
	}
	at, ok := l.f.Next()
	if !ok {
		t.Fatal("no sweep is due")
	}
	l.f.Sweep(at)
	if r = append(r, l.take()...); lines(r) != 100 {
		t.Errorf("%d lines: %+v", lines(r), r)
	}
	if _, ok := l.f.Next(); ok {
		t.Error("a sweep is due though nothing was counted")
	}
	l.at(5*time.Minute, xidLine(gpu, 31, "MMU"))
	if r := l.take(); len(r) != 1 || r[0].Count != 1 {
		t.Errorf("after a silence: %+v", r)
	}
}

func TestALineThatGoesOnForHoursIsReportedAtLeastEveryHalfMinute(t *testing.T) {
	l := newLog(t)
	last := time.Duration(0)
	for at := time.Duration(0); at < 2*time.Hour; at += time.Second {
		l.at(at, xidLine(gpu, 92, "SBE"))
		if len(l.take()) > 0 {
			last = at
		}
		if at-last > lastWait+time.Second {
			t.Fatalf("nothing was reported from %v to %v", last, at)
		}
	}
}

// The judge takes the last report of a device for its last line.
func TestTheLastReportOfADeviceIsItsLastLine(t *testing.T) {
	for name, c := range map[string]struct{ fault, clear string }{
		"a recovery action": {xidLine(gpu, 154, resetRequired), xidLine(gpu, 154, allWell)},
		"163 and 162":       {xidLine(gpu, 163, "x"), xidLine(gpu, 162, "x")},
		"a switch":          {"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 10004, Non-fatal, x", "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 10005, Non-fatal, x"},
	} {
		l := newLog(t)
		for _, line := range []string{c.fault, c.fault, c.clear} {
			l.at(time.Second, line)
		}
		if r := l.take(); len(r) != 3 || r[2].Line != c.clear {
			t.Errorf("%s: what was counted before the clear is not reported before it: %+v", name, r)
		}
		for n := 1; n < 40; n++ { // some of them wait
			for _, last := range []string{c.fault, c.clear} {
				l := newLog(t)
				for range n {
					l.at(time.Second, c.fault)
					l.at(time.Second, c.clear)
				}
				for range n {
					l.at(time.Second, last)
				}
				l.f.Sweep(time.Minute)
				r := l.take()
				if r[len(r)-1].Line != last || lines(r) != 3*n {
					t.Fatalf("%s, %d times: the last report is %q of %d lines", name, n, r[len(r)-1].Line, lines(r))
				}
			}
		}
	}
}

func TestALineThatAlternatesIsReportedAtOnceForAFewTimes(t *testing.T) {
	l := newLog(t)
	for range promptReports {
		l.at(time.Second, xidLine(gpu, 163, "x"))
		l.at(time.Second, xidLine(gpu, 162, "x"))
	}
	r := l.take()
	if want := slices.Repeat([]int{163, 162}, promptReports); !slices.Equal(codes(r), want) {
		t.Errorf("%v", codes(r))
	}
	for range 100_000 {
		l.at(time.Second, xidLine(gpu, 163, "x"))
		l.at(time.Second, xidLine(gpu, 162, "x"))
	}
	if r := l.take(); len(r) > 2 {
		t.Errorf("%d reports of a storm of two", len(r))
	}
}

func TestHistoryAndNewsAreNotCountedTogether(t *testing.T) {
	l := newLog(t)
	for _, s := range []Stamp{
		{EarlierBoot: true, History: true}, {EarlierBoot: true, History: true}, {History: true, Published: true}, {History: true}, {History: true}, {}, {At: 1},
	} {
		l.stamped(s, xidLine(gpu, 79, "gone"))
	}
	l.f.Sweep(time.Hour)
	r := l.take()
	if len(r) != 7 || lines(r) != 7 {
		t.Fatalf("%+v", r)
	}
	for i, want := range []Stamp{
		{EarlierBoot: true, History: true}, {EarlierBoot: true, History: true}, {History: true, Published: true}, {History: true}, {History: true}, {}, {},
	} {
		if r[i].Stamp.age() != want {
			t.Errorf("report %d is %+v, want %+v", i, r[i].Stamp, want)
		}
	}
}

func TestDetailsAttachAndAreNotCounted(t *testing.T) {
	l := newLog(t)
	l.at(0, "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 22013, Non-fatal, Link 44 Minion")
	l.at(0, "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 12028, Non-fatal, Link 62 egress non-posted PRIV error (First)")
	l.take()
	for range 100 {
		l.at(1, "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 12028, Severity 0 Engine instance 62 Sub-engine instance 00")
	}
	l.at(3, "nvidia-nvswitch9: SXid (PCI:0000:09:00.0): 12028, Data {0x0000002b}")
	l.f.Flush()
	r := l.take()
	if len(r) != 1 || r[0].Count != 0 || r[0].Event.Code != 12028 || !strings.Contains(r[0].Detail, "12028, Severity 0") || len(r[0].Detail) > maxDetail {
		t.Errorf("%+v", r)
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
		l.f.Add(&e, Stamp{At: time.Duration(i) * 25 * time.Microsecond, Seq: uint64(i) + 2})
	}
	l.f.Flush()
	runtime.GC()
	runtime.ReadMemStats(&after)
	r := l.take()
	if len(r) > 12 || lines(r) != 800_001 {
		t.Errorf("%d reports of %d lines", len(r), lines(r))
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("heap grew by %d bytes", grown)
	}
}

func TestInventedAddressesCodesAndRegistersStayWithinBounds(t *testing.T) {
	l := newLog(t)
	for i := range 5000 {
		l.at(time.Duration(i), xidLine(fmt.Sprintf("%04x:%02x:00", i>>8, i&255), 31, "x"))
	}
	if l.f.Len() > maxDevices {
		t.Errorf("%d devices", l.f.Len())
	}
	l = newLog(t)
	for i := range 5000 {
		l.at(time.Duration(i), xidLine(gpu, 1000+i, "x"))
	}
	for _, d := range l.f.devices {
		if len(d.folds) > maxFolds {
			t.Errorf("%d folds", len(d.folds))
		}
	}
	l.take()
	l.at(5000, xidLine(gpu, 79, "gone"))
	if r := l.take(); len(r) != 1 || r[0].Event.Code != 79 {
		t.Errorf("a flood hid a fatal code: %+v", r)
	}
	l = newLog(t)
	for i := range 50_000 {
		l.at(time.Duration(i), xidLine(gpu, 145, fmt.Sprintf("RLW_REMAP Nonfatal XC0 i0 Link 02 (0x%08x 0x00000040 0x0)", i)))
	}
	if n := len(l.take()); n > maxVariants+2 {
		t.Errorf("%d reports of registers that never repeat", n)
	}
	l.at(50_000, xidLine(gpu, 145, "RLW_REMAP Fatal XC0 i0 Link 02 (0x00100082 0x00000040 0x0)"))
	if r := l.take(); len(r) == 0 || r[len(r)-1].Event.Word != Fatal {
		t.Errorf("a flood hid what the driver calls fatal: %+v", r)
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

// BenchmarkStorm is one storm of a single code through parser and folder.
func BenchmarkStorm(b *testing.B) {
	l := newLog(b)
	line := []byte("4,1227,437812449,-;" + xidLine(gpu, 45, "pid=9, name=python3, Ch 00000001"))
	var e Event
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		if rec, ok := ParseRecord(line); ok && l.p.Parse(rec.Text, &e) == IsEvent {
			l.f.Add(&e, Stamp{At: time.Duration(i) * 10 * time.Microsecond})
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "lines/s")
}
