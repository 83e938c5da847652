package verdict

import (
	"testing"
	"time"
)

func sxid(code int, word Word) Line {
	return Line{Kind: SXid, PCI: "0000:86:00", Code: code, Word: word}
}

func inFabric(l Line) Line {
	l.Fabric = true
	return l
}

func TestWhatTheFabricManagerRepeatsIsOneFault(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, second Line
		outcome       Outcome
		echo          bool
		count         int
	}{
		{"the fabric manager repeats the kernel", sxid(20034, Fatal), inFabric(sxid(20034, Fatal)), Repeat, true, 1},
		{"the kernel is read later", inFabric(sxid(20034, Fatal)), sxid(20034, Fatal), Repeat, false, 2},
		{"the fabric manager repeats itself", inFabric(sxid(20034, Fatal)), inFabric(sxid(20034, Fatal)), Repeat, false, 2},
		{"another code", sxid(20034, Fatal), inFabric(sxid(12028, Fatal)), New, true, 1},
		{"a worse word", sxid(20009, NonFatal), inFabric(sxid(20009, Fatal)), New, false, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSource(t)
			s.at(time.Second, c.first)
			r, outcome := s.Add(&c.second, 1, Stamp{At: 2 * time.Second})
			if outcome != c.outcome || r.Echo != c.echo || r.Count != c.count {
				t.Errorf("%v %+v", outcome, r)
			}
		})
	}
	t.Run("another switch", func(t *testing.T) {
		s := newSource(t)
		s.at(0, sxid(20034, Fatal))
		other := inFabric(sxid(20034, Fatal))
		other.PCI = "0000:87:00"
		if s.at(0, other) != New {
			t.Error("it is a fault of its own")
		}
	})
	t.Run("after the burst", func(t *testing.T) {
		s := newSource(t)
		s.at(0, sxid(20034, Fatal))
		if s.at(Gap+time.Second, inFabric(sxid(20034, Fatal))) != New {
			t.Error("it is a fault of its own")
		}
	})
}

// 10005 ends 10004. The fabric manager is later than the kernel log.
func TestALateFabricLineDoesNotBringBackWhatTheKernelLogEnded(t *testing.T) {
	s := newSource(t)
	s.at(1*time.Second, sxid(10004, NonFatal))
	s.at(2*time.Second, sxid(10005, NonFatal))
	s.take()
	for _, code := range []int{10004, 10005} {
		late := inFabric(sxid(code, NonFatal))
		if r, outcome := s.Add(&late, 1, Stamp{At: 3 * time.Second}); outcome != Repeat || !r.Echo {
			t.Errorf("%d: %v %+v", code, outcome, r)
		}
	}
	if s.at(4*time.Second, sxid(10004, NonFatal)) != New {
		t.Error("what the kernel log says again is new")
	}
}

// What was too old to be news when it was read hides nothing.
func TestAKernelLineThatWasNoNewsDoesNotHideTheFabricManagers(t *testing.T) {
	s := newSource(t)
	s.stamped(Stamp{At: time.Second, History: true}, 1, sxid(20034, Fatal))
	if s.at(2*time.Second, inFabric(sxid(20034, Fatal))) != New {
		t.Error("it is an echo")
	}
}

// Of one SXid, one link's error is fatal and another's is not.
func TestAFatalLineIsNotARepeatOfANonFatalOne(t *testing.T) {
	s := newSource(t)
	s.at(0, sxid(20009, NonFatal))
	s.take()
	if s.at(time.Second, sxid(20009, Fatal)) != New {
		t.Fatal("it is a repeat")
	}
	if r := s.take()[0]; r.Echo || r.Line.Word != Fatal || !r.Verdict.Severity.Worse(Judge(tables(t), &Line{Kind: SXid, Code: 20009, Word: NonFatal}).Severity) {
		t.Errorf("%+v", r)
	}
	if s.at(2*time.Second, sxid(20009, NonFatal)) != Repeat {
		t.Error("a line that is less bad is new")
	}
}
