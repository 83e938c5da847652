package xidreceiver

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/semconv"
)

// BenchmarkLatency is the time from a line's being appended to ConsumeLogs' being
// called with its event, over a file and over the real kernel log.
func BenchmarkLatency(b *testing.B) {
	b.Run("file", func(b *testing.B) {
		r := newRig(b).start()
		r.log.xid("0000:1a:00", 31)
		r.next()
		measure(b, r, func(i int) { r.log.write("NVRM: Xid (PCI:%s): 79, gone", pciOf(i)) })
	})
	// What a program writes to /dev/kmsg goes through printk and its deferred wake-up of readers.
	b.Run("kmsg", func(b *testing.B) {
		w, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
		if err != nil {
			b.Skip(err)
		}
		defer w.Close()
		r := newRig(b)
		r.cfg.Path, r.cfg.UserRecords = "/dev/kmsg", true
		r.start()
		n := 0
		measure(b, r, func(i int) {
			// printk lets ten lines in five seconds through for each descriptor.
			if n++; n%8 == 0 {
				w.Close()
				if w, err = os.OpenFile("/dev/kmsg", os.O_WRONLY, 0); err != nil {
					b.Fatal(err)
				}
			}
			if _, err := fmt.Fprintf(w, "<4>NVRM: Xid (PCI:%s): 999, pitcrew benchmark\n", pciOf(i)); err != nil {
				b.Fatal(err)
			}
		})
	})
}

func pciOf(i int) string { return fmt.Sprintf("fe%02x:%02x:%02x", i>>16&0xff, i>>8&0xff, i&0xff) }

func measure(b *testing.B, r *rig, write func(i int)) {
	var took []time.Duration
	i := 0
	salt := int(time.Now().UnixNano()) & 0xff0000
	for b.Loop() {
		i++
		begun := time.Now()
		write(salt + i)
		for r.next().attrs[semconv.HWPCI] != pciOf(salt+i) {
		}
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// BenchmarkBacklog reads a log of a million lines, one in ten an Xid of one storm.
func BenchmarkBacklog(b *testing.B) {
	const lines = 1_000_000
	r := newRig(b)
	var text strings.Builder
	for i := range lines {
		if i%10 == 0 {
			text.WriteString(r.log.next("NVRM: Xid (PCI:0000:1a:00): 45, pid=9, name=python3, Ch 00000001"))
		} else {
			text.WriteString(r.log.next("audit: type=1400 audit(1700000000.123:77): apparmor=\"DENIED\" operation=\"open\" name=\"/proc/1/x\""))
		}
	}
	text.WriteString(r.log.next("NVRM: Xid (PCI:0000:1b:00): 79, the end"))
	r.log.raw(text.String())
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		r.store = newMemory()
		r.start()
		for r.next().code() != 79 {
		}
		b.StopTimer()
		r.stop()
		for len(r.out) > 0 {
			<-r.out
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(n*lines)/b.Elapsed().Seconds(), "lines/s")
}
