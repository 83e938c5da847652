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
	percent  int    // of what lives: Go's own word is 100
	quiet    uint64 // bytes of garbage that are collected between two bursts
	headroom uint64 // bytes of garbage that a burst may make, where percent would allow more; 0: percent alone
}

// thrifts of the processes of a training node. What they allocate comes in bursts: a reading of all GPUs, a scrape. Go starts to collect
// while memory is being taken, in the middle of a burst, and counts what is in use just then as live. So garbage is looked at once a second
// and collected in a quiet moment. percent is for what a burst allocates on top, and it bounds what Go keeps of the system's memory: it is to
// be more than quiet is of what lives. headroom keeps what hostile pods make live from counting twice. Measured with make bench-agent.
var thrifts = map[Mode]thrift{Agent: {90, 5 << 20, 8 << 20}, DCGM: {100, 4 << 20, 0}}

// economise sets what Go takes of a training node, where the environment (GOGC, GOMAXPROCS) does not say: on a hundred cores Go would
// collect garbage on as many as are idle, and these two processes need a fiftieth of one. What it began ends with stop.
func economise(m Mode) (stop func()) {
	t, ok := thrifts[m]
	if !ok {
		return func() {}
	}
	smallPages()
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

const (
	// settling is how long after its start a process runs what it runs once.
	settling = 10 * time.Second
	// releaseEvery is how often the program's file is unmapped after that: what runs once a minute or less does not stay mapped. Mapping what is
	// used again takes a millisecond.
	releaseEvery = 30 * time.Second
)

// collect collects garbage at a tick that finds as much as is to be collected in quiet, or a third of what lives where that is more.
func (t thrift) collect(ticks <-chan time.Time, done <-chan struct{}) {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	used := func() uint64 {
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	percent := t.percent
	lives, settled, file := used(), time.Now().Add(settling), program(nil)
	for {
		select {
		case <-done:
			return
		case <-ticks:
		}
		if now := time.Now(); now.After(settled) {
			settled = now.Add(releaseEvery)
			if file == nil {
				debug.FreeOSMemory()    // what the start took beyond what lives
				file, _ = thisProgram() // nil where /proc does not say: the file stays mapped
			}
			_, _ = file.release()
		}
		if used() > lives+max(t.quiet, lives/3) {
			runtime.GC()
			lives = used()
			if p := t.percentFor(lives + s[1].Value.Uint64()); p != percent {
				percent = p
				debug.SetGCPercent(p)
			}
		}
	}
}

// leastPercent bounds how often garbage is collected, however much lives.
const leastPercent = 20

// percentFor is the percentage at which a burst makes no more garbage than headroom. What is scanned, stacks too, counts as living.
func (t thrift) percentFor(lives uint64) int {
	if t.headroom == 0 || lives == 0 {
		return t.percent
	}
	return min(t.percent, max(leastPercent, int(100*t.headroom/lives)))
}
