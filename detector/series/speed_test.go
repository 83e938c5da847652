package series

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"
	"time"
)

const many = 1 << 20

func population(b *testing.B, cfg Config, n int) *Engine {
	b.Helper()
	cfg.MaxSeries, cfg.MaxContext = n, n
	e, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	for range n {
		if _, err := e.Add(Ratio); err != nil {
			b.Fatal(err)
		}
	}
	return e
}

// values are one round of noise that all series share, shifted: making noise must not be what is measured.
func values() [1024]float64 {
	rng := rand.New(rand.NewPCG(1, 1))
	var v [1024]float64
	for i := range v {
		v[i] = 100 + rng.NormFloat64()
	}
	return v
}

func walk(b *testing.B, e *Engine, n int, step int64) {
	v := values()
	t := int64(0)
	if n == many {
		e, t = warm(b, e)
	}
	round := func(r int) {
		t += step
		for id := range n {
			e.Observe(ID(id), Sample{T: t, V: v[(id*7+r)&1023]})
		}
	}
	if n != many {
		for r := range 300 { // past the warm-up
			round(r)
		}
	}
	b.ReportMetric(float64(StateSize), "B/series")
	timed(b, n, round)
}

// timed runs rounds of n samples and reports the processor time of the thread beside the clock's: on a busy machine only the former
// says what a sample costs.
func timed(b *testing.B, n int, round func(int)) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b.ReportAllocs()
	b.ResetTimer()
	before, done := processorTime(b), 0
	for r := 300; done < b.N; r++ {
		round(r)
		done += n
	}
	b.StopTimer()
	b.ReportMetric(float64(processorTime(b)-before)/float64(done), "cpu-ns/sample")
}

// processorTime of this thread.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	const thread = 1 // RUSAGE_THREAD
	if err := syscall.Getrusage(thread, &u); err != nil {
		b.Skip(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// warm gives a million series past their warm-up, by a snapshot of one: they differ in what they see from then on.
func warm(b *testing.B, e *Engine) (*Engine, int64) {
	b.Helper()
	v := values()
	t := int64(0)
	for r := range 200 {
		t += 1e9
		e.Observe(0, Sample{T: t, V: v[(r*7)&1023]})
	}
	for i := range e.states {
		e.states[i] = e.states[0]
	}
	return e, t
}

func BenchmarkTrainingInIDOrder(b *testing.B) {
	walk(b, population(b, Config{}, many), many, 1e9)
}

// BenchmarkTrainingInCache is the work of a sample without the memory's.
func BenchmarkTrainingInCache(b *testing.B) {
	walk(b, population(b, Config{}, 1<<10), 1<<10, 1e9)
}

func BenchmarkFacilityInIDOrder(b *testing.B) {
	n := 1 << 14
	walk(b, population(b, Config{Profile: Facility}, n), n, 60e9)
}

func BenchmarkTrainingWithLabelLookup(b *testing.B) {
	n := many
	e := population(b, Config{}, n)
	ids := make(map[string]ID, n)
	names := make([]string, n)
	for i := range n {
		names[i] = fmt.Sprintf("step.duration{job=a,rank=%d}", i)
		ids[names[i]] = ID(i)
	}
	v := values()
	e, t := warm(b, e)
	round := func(r int) {
		t += 1e9
		for i, name := range names {
			e.Observe(ids[name], Sample{T: t, V: v[(i*7+r)&1023]})
		}
	}
	timed(b, n, round)
}

func BenchmarkSnapshotOfAMillion(b *testing.B) {
	e := population(b, Config{}, many)
	for id := range many {
		e.Observe(ID(id), Sample{T: 1, V: 1})
	}
	b.ResetTimer()
	for b.Loop() {
		s := e.Snapshot()
		next, _ := New(Config{MaxSeries: many})
		if err := next.Restore(s); err != nil {
			b.Fatal(err)
		}
	}
}
