package kernel

import (
	"testing"
	"time"
)

const (
	resetRequired = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
	allWell       = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
)

func TestNothingThatStoodBeforeAClearIsSaidAfterIt(t *testing.T) {
	for name, c := range map[string]struct {
		fault, clear string
	}{
		"a recovery action": {xidLine(gpu, 154, resetRequired), xidLine(gpu, 154, allWell)},
		"163 and 162":       {xidLine(gpu, 163, "x"), xidLine(gpu, 162, "x")},
		"a switch":          {"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 10004, Non-fatal, x", "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 10005, Non-fatal, x"},
	} {
		l := newLog(t)
		l.at(1*time.Second, c.fault)
		l.at(1*time.Second, c.fault)
		l.at(2*time.Second-1, c.clear)
		l.f.Sweep(time.Minute)
		l.f.Flush()
		cleared := false
		for _, r := range l.take() {
			if cleared && r.Verdict.Clears == 0 {
				t.Errorf("%s: xid %d, seen %d times, is said once more after it was cleared", name, r.Event.Code, r.Count)
			}
			cleared = cleared || r.Verdict.Clears != 0
		}
		if !cleared {
			t.Errorf("%s: the clear was not said", name)
		}
	}
}

func TestWhatComesBackAfterItsClearIsNews(t *testing.T) {
	l := newLog(t)
	for range 3 {
		l.at(time.Second, xidLine(gpu, 163, "x"))
		l.at(time.Second, xidLine(gpu, 162, "x"))
	}
	r := l.take()
	if len(r) != 6 {
		t.Fatalf("%d reports of three faults and three clears: %+v", len(r), r)
	}
	for i, r := range r {
		if want := []int{163, 162}[i%2]; r.Event.Code != want || r.Stamp.Seq != uint64(i+1) {
			t.Errorf("report %d: xid %d of line %d, want %d of %d", i, r.Event.Code, r.Stamp.Seq, want, i+1)
		}
	}
}

func TestABurstThatIsFullLetsVerdictsAndClearsThrough(t *testing.T) {
	l := newLog(t)
	l.at(0, xidLine(gpu, 79, "GPU has fallen off the bus")) // nothing is worse
	for code := 500; code < 600; code++ {
		l.at(0, xidLine(gpu, code, "x"))
	}
	l.take()
	for _, line := range []string{xidLine(gpu, 162, "x"), xidLine(gpu, 154, resetRequired), xidLine(gpu, 154, allWell)} {
		l.at(0, line)
		if r := l.take(); len(r) == 0 || r[0].Line != line {
			t.Errorf("%s: %+v", line, r)
		}
	}
}
