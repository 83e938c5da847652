package collector

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

var kept []byte

// litter makes garbage of so many MiB.
func litter(mib int) {
	for range mib {
		kept = make([]byte, 1<<20)
	}
	kept = nil
}

func collections() uint32 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.NumGC
}

func TestGarbageIsCollectedBetweenBurstsAndOnlyWhenThereIsEnough(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // what is collected is collected by the test's ticks
	runtime.GC()
	ticks, done, ended := make(chan time.Time), make(chan struct{}), make(chan struct{})
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	quiet := m.HeapAlloc // more than a third of what lives
	go func() { defer close(ended); thrift{quiet: quiet}.collect(ticks, done) }()
	look := func() uint32 {
		before := collections()
		ticks <- time.Time{}
		ticks <- time.Time{} // is taken when the first one's work is done, and finds nothing to do
		return collections() - before
	}
	if n := look(); n != 0 {
		t.Errorf("%d collections of next to nothing", n)
	}
	for range 3 {
		litter(int(quiet>>20) + 2)
		if n := look(); n != 1 {
			t.Errorf("%d collections of more than is to be kept, want 1", n)
		}
	}
	close(done)
	<-ended
}

func TestTheMoreLivesTheLessGarbageMayBeOnTop(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	ticks, done, ended := make(chan time.Time), make(chan struct{}), make(chan struct{})
	held := make([][]byte, 64)
	for i := range held {
		held[i] = make([]byte, 1<<20)
	}
	const headroom = 32 << 20
	go func() {
		defer close(ended)
		thrift{percent: 100, quiet: 1 << 20, headroom: headroom}.collect(ticks, done)
	}()
	ticks <- time.Time{} // begins to count
	litter(80)
	ticks <- time.Time{}
	close(done)
	<-ended
	runtime.KeepAlive(held)
	if now := debug.SetGCPercent(100); now > 50 || now < leastPercent {
		t.Errorf("GC at %d %% of 64 MiB and more, want at most 50", now)
	}
	agent := thrifts[Agent]
	for _, c := range []struct {
		lives uint64
		want  int
	}{{0, agent.percent}, {4 << 20, agent.percent}, {16 << 20, 50}, {1 << 30, leastPercent}} {
		if got := agent.percentFor(c.lives); got != c.want {
			t.Errorf("%d MiB live: %d %%, want %d", c.lives>>20, got, c.want)
		}
	}
}

func TestWhatAProcessOfANodeBeganToSaveEndsWithIt(t *testing.T) {
	percent := debug.SetGCPercent(100)
	defer debug.SetGCPercent(percent)
	t.Setenv("GOMAXPROCS", "2") // the other tests'
	for _, m := range []Mode{Agent, DCGM, Gateway, Router} {
		before := runtime.NumGoroutine()
		stop := economise(m)
		now := debug.SetGCPercent(100)
		if want := map[Mode]int{Agent: thrifts[Agent].percent, DCGM: thrifts[DCGM].percent, Gateway: 100, Router: 100}[m]; now != want {
			t.Errorf("%s: GC at %d %%, want %d", m, now, want)
		}
		stop()
		if n := runtime.NumGoroutine(); n > before {
			t.Errorf("%s: %d goroutines before and %d after", m, before, n)
		}
	}
	t.Setenv("GOGC", "80")
	stop := economise(Agent)
	defer stop()
	if now := debug.SetGCPercent(100); now != 100 {
		t.Errorf("GOGC is set, and GC is at %d %%", now)
	}
}
