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
// while memory is being taken, in the middle of one, and takes what is in use just then for what lives, so that the next collection
// comes late. So garbage is looked at once a second and collected in a quiet moment, and percent is for what a burst brings on top.
// The DCGM process keeps two readings: go-dcgm takes 4 KiB for a value. Measured with make bench-agent.
var thrifts = map[Mode]thrift{Agent: {125, 3 << 20}, DCGM: {200, 3 << 20}}

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

// collect collects garbage at a tick that finds as much as is to be collected in quiet, or a third of what lives where that is more.
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
		if used() > lives+max(t.quiet, lives/3) {
			runtime.GC()
			lives = used()
		}
	}
}
