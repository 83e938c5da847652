package verdict

import (
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/rules"
)

// What clears a condition must get through however many lines its burst holds: otherwise the condition lasts until the next boot.
func TestAClearIsTakenThoughItsBurstIsFull(t *testing.T) {
	s := newSource(t)
	for code := range maxEntries {
		s.at(time.Second, xid(1000+code))
	}
	for i := range reserve {
		s.at(time.Second, action(string(rune('a'+i))))
	}
	if out := s.at(time.Second, xid(163)); out != Dropped {
		t.Fatalf("outcome %v: the burst is not full", out)
	}
	if out := s.at(time.Second, xid(162)); out != New {
		t.Errorf("a clear in a full burst: outcome %v", out)
	}
	if out := s.at(time.Second, action("None")); out != New {
		t.Errorf("the driver says that all is well in a full burst: outcome %v", out)
	}
}

func TestACauseThatWasClearedExplainsNothingAfterIt(t *testing.T) {
	s := newSource(t)
	s.at(1*time.Second, xid(163))
	s.at(2*time.Second, xid(162))
	s.take()
	s.at(3*time.Second, xid(31))
	if r := s.take(); len(r) != 1 || r[0].Echo || r[0].Cause != (Code{}) {
		t.Errorf("a fault after the end of another: %+v", r)
	}
	s.at(4*time.Second, xid(13))
	if r := s.take(); len(r) != 1 || !r[0].Echo || r[0].Cause != (Code{Xid, 31}) {
		t.Errorf("what follows from it: %+v", r)
	}
}

func TestALineThatIsWorseThanTheOneItRepeatsIsAnOccurrence(t *testing.T) {
	s := newSource(t)
	sxid := func(w Word) Line { return Line{Kind: SXid, PCI: gpu, Code: 10000, Word: w} }
	s.at(1*time.Second, sxid(NonFatal))
	s.take()
	s.at(2*time.Second, sxid(Fatal))
	if r := s.take(); len(r) != 1 || r[0].Echo || r[0].Verdict.Severity != rules.Fatal || r[0].Line.Word != Fatal || r[0].Count != 2 {
		t.Errorf("a link error that became fatal: %+v", r)
	}
	for range 3 {
		s.at(3*time.Second, sxid(NonFatal))
		s.at(3*time.Second, sxid(Fatal))
	}
	if r := s.take(); len(r) != 0 {
		t.Errorf("it goes on: %+v", r)
	}
}
