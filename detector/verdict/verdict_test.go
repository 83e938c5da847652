package verdict

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/rules"
)

const gpu = "0000:dc:00"

func tables(t testing.TB) *rules.Tables {
	t.Helper()
	all, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// source is a Bursts with what it reported and ended.
type source struct {
	*Bursts
	news   []Report // neither repeated nor dropped
	bursts []Burst
	seq    uint64
}

func newSource(t testing.TB) *source {
	s := &source{}
	s.Bursts = NewBursts(tables(t), func(b *Burst) { s.bursts = append(s.bursts, *b) })
	return s
}

func (s *source) at(at time.Duration, l Line) Outcome { return s.stamped(Stamp{At: at}, 1, l) }

func (s *source) stamped(at Stamp, n int, l Line) Outcome {
	s.seq++
	at.Seq = s.seq
	r, outcome := s.Add(&l, n, at)
	if outcome == New {
		s.news = append(s.news, r)
	}
	return outcome
}

func (s *source) take() []Report {
	r := s.news
	s.news = nil
	return r
}

func xid(code int) Line { return Line{Kind: Xid, PCI: gpu, Code: code} }

func onInstance(code int, mig string) Line {
	l := xid(code)
	l.MIG = mig
	return l
}

func action(words string) Line {
	l := xid(154)
	l.Action = words
	return l
}

func TestTheFirstCodeOfABurstIsTheCause(t *testing.T) {
	s := newSource(t)
	s.at(1*time.Second, xid(48))
	if r := s.take(); len(r) != 1 || r[0].Echo || r[0].Count != 1 || r[0].Stamp.Seq != 1 {
		t.Fatalf("%+v", r)
	}
	for _, l := range []Line{xid(63), xid(45), action("GPU Reset Required")} {
		s.at(1*time.Second, l)
	}
	for _, r := range s.take() {
		if !r.Echo || r.Cause != (Code{Xid, 48}) {
			t.Errorf("%d: echo %v of %v", r.Line.Code, r.Echo, r.Cause)
		}
	}
	s.at(10*time.Minute, xid(13))
	if r := s.take(); len(r) != 1 || r[0].Echo {
		t.Errorf("after the silence: %+v", r)
	}
	if len(s.bursts) != 1 || s.bursts[0].Action != "GPU Reset Required" {
		t.Errorf("%+v", s.bursts)
	}
}

// DCGM's gauge of the last code shows the echo and hides the cause.
func TestACauseIsNotHiddenByALaterEcho(t *testing.T) {
	s := newSource(t)
	s.at(0, xid(62))
	s.at(time.Millisecond, xid(45))
	s.Flush()
	if b := s.bursts[0]; b.Reports[b.Cause].Line.Code != 62 {
		t.Errorf("%+v", b)
	}
}

func TestAnEchoBeforeItsCauseIsStillTheEcho(t *testing.T) {
	s := newSource(t)
	s.at(0, xid(45))
	s.at(time.Millisecond, xid(31))
	if r := s.take(); len(r) != 2 || r[1].Echo {
		t.Fatalf("%+v", r)
	}
	s.Flush()
	if b := s.bursts[0]; b.Reports[b.Cause].Line.Code != 31 {
		t.Errorf("%+v", b)
	}
	l := xid(45)
	l.CausedBy = 149
	s.at(time.Hour, l)
	if r := s.take(); len(r) != 1 || !r[0].Echo || r[0].Cause != (Code{Xid, 149}) {
		t.Errorf("the line names its cause: %+v", r)
	}
}

func TestWhatIsWorseThanItsBurstIsNoEcho(t *testing.T) {
	s := newSource(t)
	s.at(0, xid(13))
	s.at(time.Second, xid(79))
	s.at(time.Second, xid(43))
	if r := s.take(); len(r) != 3 || r[1].Echo || r[1].Cause != (Code{Xid, 13}) || !r[2].Echo {
		t.Errorf("%+v", r)
	}
}

func TestNoneClearsTheActionAnd162Clears163(t *testing.T) {
	s := newSource(t)
	s.at(0, xid(95))
	s.at(1*time.Second, action("GPU Reset Required"))
	s.at(5*time.Second, action("None"))
	r := s.take()
	if len(r) != 3 || r[2].Verdict.Clears != 154 || r[2].Echo || r[2].Verdict.Severity != rules.Info {
		t.Fatalf("%+v", r)
	}
	if len(s.bursts) != 1 || s.bursts[0].Action != "None" {
		t.Errorf("the burst is over with None: %+v", s.bursts)
	}
	s.at(6*time.Second, xid(95))
	if r := s.take(); len(r) != 1 || r[0].Echo {
		t.Errorf("after None a code is on its own: %+v", r)
	}
	s.at(20*time.Minute, xid(163))
	s.at(20*time.Minute, xid(162))
	if r := s.take(); len(r) != 2 || r[1].Verdict.Clears != 163 || r[1].Echo {
		t.Errorf("%+v", r)
	}
}

func TestTheDriversLastActionCountsAlsoWhenItGoesBack(t *testing.T) {
	s := newSource(t)
	s.at(0, action("GPU Reset Required"))
	s.at(1, action("Node Reboot Required"))
	s.take()
	s.at(2, action("GPU Reset Required"))
	if r := s.take(); len(r) != 1 || r[0].Line.Action != "GPU Reset Required" || r[0].Stamp.Seq != 3 {
		t.Errorf("%+v", r)
	}
}

func TestWhatComesBackAfterItsClearIsNews(t *testing.T) {
	s := newSource(t)
	for range 3 {
		s.at(time.Second, xid(163))
		s.at(time.Second, xid(162))
	}
	r := s.take()
	if len(r) != 6 {
		t.Fatalf("%d reports of three faults and three clears: %+v", len(r), r)
	}
	for i, r := range r {
		if want := []int{163, 162}[i%2]; r.Line.Code != want || r.Stamp.Seq != uint64(i+1) {
			t.Errorf("report %d: xid %d of line %d, want %d of %d", i, r.Line.Code, r.Stamp.Seq, want, i+1)
		}
	}
}

func TestAFaultThatNeverStopsIsReportedAgain(t *testing.T) {
	s := newSource(t)
	for i := range 60 {
		s.at(time.Duration(i)*time.Minute, xid(92))
	}
	if n := len(s.take()); n != 4 {
		t.Errorf("%d times in an hour, want 4", n)
	}
}

func TestTheInstanceOfAnotherTenantIsNoEcho(t *testing.T) {
	s := newSource(t)
	s.at(0, onInstance(94, "5"))
	s.at(1, onInstance(94, "6"))
	if r := s.take(); len(r) != 2 || r[1].Echo {
		t.Errorf("%+v", r)
	}
	other := xid(79)
	other.PCI = "0000:02:00"
	s.at(2, other)
	other = onInstance(94, "6")
	other.PCI = "0000:02:00"
	s.at(3, other)
	if r := s.take(); len(r) != 2 || !r[1].Echo {
		t.Errorf("what befalls the GPU befalls its instances: %+v", r)
	}
}

func TestSubCodesAreKeptApart(t *testing.T) {
	sub := func(unit string, word Word, regs ...uint32) Line {
		l := xid(145)
		l.Unit, l.Word, l.Registers = unit, word, regs
		return l
	}
	s := newSource(t)
	s.at(0, sub("RLW_SRC_TRACK", NonFatal, 0x040988e2, 2))
	s.at(1, sub("RLW_SRC_TRACK", Fatal, 0x040988e2, 1))
	if r := s.take(); len(r) != 2 || r[1].Echo || r[1].Verdict.Severity != rules.Fatal {
		t.Errorf("%+v", r)
	}
	// The same unit and the same word of the driver: the registers alone distinguish the cases.
	s = newSource(t)
	s.at(0, sub("RLW_REMAP", NonFatal, 0x82, 0x100))
	s.at(1, sub("RLW_REMAP", NonFatal, 0x82, 0x40))
	if r := s.take(); len(r) != 2 || r[0].Verdict.Severity != rules.Info || r[1].Echo || r[1].Verdict.Severity != rules.Fatal {
		t.Errorf("%+v", r)
	}
}

func TestAFullBurstStillTakesWhatMustNotBeMissed(t *testing.T) {
	s := newSource(t)
	for i := range 5000 {
		l := xid(31)
		l.PCI = fmt.Sprintf("%04x:%02x:00", i>>8, i&255)
		s.at(time.Duration(i), l)
	}
	if s.Len() > maxBursts {
		t.Errorf("%d bursts are open", s.Len())
	}
	s = newSource(t)
	for i := range 5000 {
		s.at(time.Duration(i), xid(1000+i))
	}
	if n := len(s.take()); n > maxEntries {
		t.Errorf("%d reports of invented codes", n)
	}
	for _, l := range []Line{xid(79), xid(162), action("GPU Reset Required"), action("None")} {
		if s.at(5000, l) != New {
			t.Errorf("a full burst hid %+v", l)
		}
	}
	s.Flush()
	if b := s.bursts[0]; b.Others == 0 {
		t.Errorf("%+v", b.Others)
	}
}

// 168,924 lines of 45 beside ten other codes in two days were seen in the field.
func TestAStormIsOneReportInBoundedMemory(t *testing.T) {
	s := newSource(t)
	s.at(0, xid(95))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 100_000 {
		s.at(time.Duration(i)*25*time.Microsecond, xid(45))
	}
	s.stamped(Stamp{At: 3 * time.Second}, 700_000, xid(45)) // counted by the receiver
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	s.Flush()
	if r := s.bursts[0].Reports; len(s.take()) != 2 || len(r) != 2 || r[1].Count != 800_000 || !r[1].Echo {
		t.Errorf("%+v", r)
	}
}

func TestDCGMsCodeIsNoEchoOfItselfAndExplainsNoLine(t *testing.T) {
	code := func(n int) Line {
		l := xid(n)
		l.CodeOnly = true
		return l
	}
	s := newSource(t)
	s.at(0, code(45)) // the cause is unknown: a gauge hides it
	s.at(1, code(154))
	for _, r := range s.take() {
		if !r.Echo {
			t.Errorf("only the line of %d says something: %+v", r.Line.Code, r)
		}
	}
	s.at(2, code(79))
	if s.at(3, xid(79)) != Repeat {
		t.Error("the line of what DCGM reported is news")
	}
	s.at(4, xid(48))
	if r := s.take(); len(r) != 2 || r[0].Echo || r[1].Echo {
		t.Errorf("%+v", r)
	}
	s.at(5, code(62))
	if r := s.take(); len(r) != 1 || !r[0].Echo {
		t.Errorf("it follows from a line: %+v", r)
	}
}

// A log is read from its beginning after a restart, while other sources report what happens now.
func TestHistoryDoesNotEndTheBurstOfNow(t *testing.T) {
	s := newSource(t)
	s.at(time.Hour, xid(79))
	if s.stamped(Stamp{At: 0, History: true}, 1, xid(79)) != New {
		t.Error("history is a repeat of what came after it")
	}
	if s.at(time.Hour+1, xid(79)) != Repeat {
		t.Error("the burst of now is over")
	}
}

func BenchmarkStorm(b *testing.B) {
	s := newSource(b)
	l := xid(45)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		s.Add(&l, 1, Stamp{At: time.Duration(i) * 10 * time.Microsecond})
	}
}
