package series

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/detector/index"
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

// BenchmarkTrainingWithLabelLookup has a label of its own for each of a million series, of which a sample brings its own copy. A
// batch is resolved, then sorted by number, then walked, as package anomaly does it; there a look-up finds some twenty series, a GPU's
// or rank's, so that it has fewer to know (its BenchmarkFromLabels). Samples come in the order in which they came first, which is that
// of the numbers: sorting finds little to do. The Go map beside it is what the index is measured against.
func BenchmarkTrainingWithLabelLookup(b *testing.B) {
	n := many
	e := population(b, Config{}, n)
	table, err := index.New(n)
	if err != nil {
		b.Fatal(err)
	}
	ids := make(map[string]ID, n)
	names := make([]string, n)
	for i := range n {
		name := fmt.Sprintf("step.duration{job=a,rank=%d}", i)
		id, ok := table.Put(index.Key{Name: name})
		if !ok || id != uint32(i) {
			b.Fatalf("%s has number %d %t", name, id, ok)
		}
		ids[name] = ID(i)
		names[i] = strings.Clone(name)
	}
	v := values()
	e, t := warm(b, e)
	type sample struct {
		id ID
		v  float64
	}
	batch := make([]sample, 0, 1<<15)
	for way, resolve := range map[string]func(name string) ID{
		"map":   func(name string) ID { return ids[name] },
		"index": func(name string) ID { id, _ := table.Find(index.Key{Name: name}); return ID(id) },
	} {
		b.Run(way, func(b *testing.B) {
			runtime.GC()
			timed(b, n, func(r int) {
				t += 1e9
				for first := 0; first < n; first += cap(batch) {
					batch = batch[:0]
					for i, name := range names[first : first+cap(batch)] {
						batch = append(batch, sample{resolve(name), v[(i*7+r)&1023]})
					}
					slices.SortStableFunc(batch, func(a, b sample) int { return cmp.Compare(a.id, b.id) })
					for _, x := range batch {
						e.Observe(x.id, Sample{T: t, V: x.v})
					}
				}
			})
		})
	}
	if e.Counts().Late > 0 {
		b.Fatalf("samples were late: %+v", e.Counts())
	}
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
