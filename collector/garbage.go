package collector

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// thrift is how the garbage of a process is collected.
type thrift struct {
	percent int    // of what lives: Go's own word is 100
	quiet   uint64 // bytes of garbage that are collected between two bursts
}

// thrifts of the processes of a training node. What they make comes in bursts: a reading of all GPUs, a scrape. Go begins to collect
// while memory is being taken, in the middle of one, when half as much again is in use, and takes that for what lives. So garbage is
// looked at once a second and collected in a quiet moment, and percent is for what a burst brings on top. Measured with make bench-agent.
var thrifts = map[Mode]thrift{Agent: {75, 4 << 20}, DCGM: {150, 4 << 20}}

// economise sets what Go takes of a training node, where the environment (GOGC, GOMAXPROCS) does not say: on a hundred cores Go would
// collect garbage on as many as are idle, and these two processes need a fiftieth of one. What it began ends with stop.
func economise(m Mode) (stop func()) {
	t, ok := thrifts[m]
	if !ok {
		return func() {}
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	debug.SetGCPercent(t.percent)
	done, tick := make(chan struct{}), time.NewTicker(time.Second)
	var task sync.WaitGroup
	task.Go(func() { t.collect(tick.C, done) })
	return func() {
		tick.Stop()
		close(done)
		task.Wait()
	}
}

// collect collects garbage at a tick that finds as much as is to be collected in quiet, or half of what lives where that is more.
func (t thrift) collect(ticks <-chan time.Time, done <-chan struct{}) {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	used := func() uint64 {
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	lives := used()
	for {
		select {
		case <-done:
			return
		case <-ticks:
		}
		if used() > lives+max(t.quiet, lives/2) {
			runtime.GC()
			lives = used()
		}
	}
}
