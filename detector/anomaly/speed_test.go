package anomaly

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/detector/series"
)

// BenchmarkFromLabels is the whole way of a sample of the training profile: Put, which resolves its labels, and End, which sorts the
// batch by number, walks it and judges it. Each round every signal of every GPU has a value, metric by metric as a receiver gives
// them, in batches of half of what the engine takes. Nothing is wrong, and all series are judged.
func BenchmarkFromLabels(b *testing.B) {
	type signal struct {
		m     *Metric
		s     *Signal
		level float64
	}
	var of []signal
	for i := range Catalogue {
		if s := &Catalogue[i]; s.Name != "" && s.About == GPU {
			x := signal{Lookup(s.Metric), s, 100}
			if s.Kind == series.Counter || s.Certain != 0 && s.Bad == High {
				x.level = 0
			}
			of = append(of, x)
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	var noise [1024]float64
	for i := range noise {
		noise[i] = 1 + rng.NormFloat64()/100
	}
	for _, n := range []int{200, 4000, 1 << 20} {
		gpus := (n + len(of) - 1) / len(of)
		b.Run(strconv.Itoa(gpus*len(of)), func(b *testing.B) {
			e, err := New(Options{MaxSeries: gpus * len(of)})
			if err != nil {
				b.Fatal(err)
			}
			names := make([]string, gpus)
			for i := range names {
				names[i] = fmt.Sprintf("GPU-4a3d2f1e-9a8b-4c1d-8e7f-%012d", i)
			}
			t, r, each := int64(1e18), 0, maxBatch/2/len(of)
			var put, end time.Duration
			round := func() {
				t += 1e9
				r++
				for first := 0; first < gpus; first += each {
					from := processorTime(b)
					for k, x := range of {
						for i, name := range names[first:min(first+each, gpus)] {
							e.Put(x.m, Labels{GPU: name, Rank: -1, Local: -1, Value: x.s.Value}, t, x.level*noise[(i*7+k*31+r)&1023])
						}
					}
					half := processorTime(b)
					e.End(time.Unix(0, t))
					put, end = put+half-from, end+processorTime(b)-half
				}
			}
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			round()
			for i := range names {
				names[i] = strings.Clone(names[i]) // a batch's strings are its own
			}
			for range 40 { // past the choice of a profile and the warm-up
				round()
			}
			runtime.GC()
			unknown, done := e.Counts().Unknown, 0
			put, end = 0, 0
			b.ReportAllocs()
			b.ResetTimer()
			for done < b.N {
				round()
				done += gpus * len(of)
			}
			b.StopTimer()
			if u := e.Counts().Unknown - unknown; u > 0 || e.Counts().Series < int64(gpus*len(of)) {
				b.Fatalf("%d of %d samples were not judged: %+v", u, done, e.Counts())
			}
			b.ReportMetric(float64(put)/float64(done), "put-cpu-ns/sample")
			b.ReportMetric(float64(end)/float64(done), "end-cpu-ns/sample")
		})
	}
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
