package collector

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
)

// BenchmarkKernelLineToStoredEvent measures, over the whole agent and a real JetStream with file storage, from before a line is
// written to the kernel log until its event has come back from the stream: a little more than until its acknowledgement. It
// reports percentiles, so run it with a count: go test -run - -bench KernelLine -benchtime 2000x ./collector
//
// pause is the time between lines: 0 writes the next line when the last one's event has come, otherwise lines come at a rate.
func BenchmarkKernelLineToStoredEvent(b *testing.B) {
	for _, pause := range []time.Duration{0, 5 * time.Millisecond} {
		b.Run(fmt.Sprintf("pause=%v", pause), func(b *testing.B) { latency(b, pause) })
	}
}

func latency(b *testing.B, pause time.Duration) {
	s := bustest.Server(b)
	kmsg := surround(b, b.TempDir(), s.URL())
	c := bustest.Connect(b, s.URL())
	defer run(b, Agent)()
	f, err := os.OpenFile(kmsg, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()

	type arrival struct {
		pci string
		at  time.Time
	}
	arrived := make(chan arrival, 1<<20)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- c.Events(ctx, "", func(_ context.Context, d bus.Delivery) error {
			arrived <- arrival{d.Event.Data.Target.PCI, time.Now()}
			return nil
		}, func(subject string, err error) { b.Errorf("%s: %v", subject, err) })
	}()
	pci := func(i int) string { return fmt.Sprintf("%04x:%02x:%02x", i>>13, i>>5&0xff, i&0x1f) }
	for i := 0; ; i++ { // until the new consumer hears
		write(b, f, line(1_000_000+i, "ffff:00:00", 13+i))
		select {
		case <-arrived:
		case <-time.After(100 * time.Millisecond):
			continue
		}
		break
	}
	time.Sleep(500 * time.Millisecond) // set-up: what else the first lines set off
	for len(arrived) > 0 {
		<-arrived
	}

	written := make(map[string]time.Time, b.N)
	took := make([]time.Duration, 0, b.N)
	take := func(wait time.Duration) bool {
		select {
		case a := <-arrived:
			if at, ok := written[a.pci]; ok {
				took = append(took, a.at.Sub(at))
			}
			return true
		case <-time.After(wait):
			return false
		}
	}
	b.ResetTimer()
	for i := range b.N {
		l := line(2_000_000+i, pci(i), 79)
		written[pci(i)] = time.Now()
		write(b, f, l)
		if pause > 0 {
			time.Sleep(pause)
			for len(arrived) > 0 {
				take(0)
			}
		} else if !take(10 * time.Second) {
			b.Fatalf("event %d never came", i)
		}
	}
	for len(took) < b.N {
		if !take(10 * time.Second) {
			b.Fatalf("%d of %d events came", len(took), b.N)
		}
	}
	b.StopTimer()
	cancel()
	if err := <-ended; err != nil {
		b.Error(err)
	}
	slices.Sort(took)
	at := func(q float64) float64 { return float64(took[min(len(took)-1, int(q*float64(len(took))))]) / 1e6 }
	b.ReportMetric(at(0.5), "p50-ms")
	b.ReportMetric(at(0.99), "p99-ms")
	b.ReportMetric(float64(took[len(took)-1])/1e6, "max-ms")
}
