package xidreceiver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/pitcrew/pitcrew/receivers/xidreceiver/kernel"
	"github.com/pitcrew/pitcrew/semconv"
)

// It takes every older record out of this machine's log and hurries all its readers, so it runs where nothing else does.
func TestTheRealRingIsOverwrittenUnderTheReader(t *testing.T) {
	if os.Getenv("PITCREW_TEST_FULL") == "" {
		t.Skip("overwrites this machine's kernel log; make test-full")
	}
	mode, err := os.ReadFile("/proc/sys/kernel/printk_devkmsg")
	if err == nil && strings.TrimSpace(string(mode)) == "off" {
		t.Skip("kernel.printk_devkmsg is off: nothing may be written to /dev/kmsg")
	}
	w, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		t.Skipf("/dev/kmsg cannot be written here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	oldest(t)
	r := newRig(t)
	r.cfg.UserRecords = true
	r.cfg.Path, r.cfg.BootIDPath = "/dev/kmsg", createDefaultConfig().(*Config).BootIDPath
	bus := time.Now().UnixNano() >> 12
	pci := func(device int) string { return fmt.Sprintf("f%03x:%02x:%02x", bus>>8&0xfff, bus&0xff, device) }
	xid := func(device int) {
		t.Helper()
		if _, err := fmt.Fprintf(w, "<4>NVRM: Xid (PCI:%s): 999, test of pitcrew's xid receiver\n", pci(device)); err != nil {
			t.Fatal(err)
		}
	}
	// While an event is being taken nothing is read: the kernel's ring is the queue.
	var hold atomic.Bool
	held, release := make(chan struct{}, 1), make(chan struct{})
	r.refuse = func() error {
		if hold.CompareAndSwap(true, false) {
			held <- struct{}{}
			<-release
		}
		return nil
	}
	r.start()
	xid(1)
	begin, _ := r.mine(pci(1)).attrs[semconv.KmsgSeq].(int64) // what there was has been read
	hold.Store(true)
	xid(2)
	<-held
	first := flood(t, begin+100)
	xid(3)
	close(release)

	last, next := r.mine(pci(2)).attrs[semconv.KmsgSeq].(int64), int64(0)
	said, lost := 0, int64(0)
	for {
		rec := r.next()
		if rec.attrs[semconv.HWPCI] == pci(3) {
			if rec.code() != 999 || rec.flag(semconv.History) || rec.count() != 1 {
				t.Errorf("the next event: %+v", rec)
			}
			next = rec.attrs[semconv.KmsgSeq].(int64)
			break
		}
		if rec.event == eventLinesLost {
			said++
			lost += rec.attrs[semconv.Count].(int64)
			if rec.attrs[semconv.LostReason] != lostOverrun {
				t.Errorf("%+v", rec)
			}
		}
	}
	// What the ring had no more when the reader was let go, and what the next event itself and others' lines pushed out after that.
	if least := first - last - 1; said != 1 || lost < least || lost > least+100 || last+lost >= next {
		t.Errorf("records %d to %d were overwritten at least: %d lost before %d, said %d times", last+1, first-1, lost, next, said)
	}
	counted := map[string]int64{}
	if m, err := r.tel.GetMetric(semconv.KernelLinesLost); err != nil {
		t.Error(err)
	} else {
		for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
			reason, _ := p.Attributes.Value("reason")
			counted[reason.AsString()] = p.Value
		}
	}
	if counted[lostOverrun] != lost || counted[lostGap] != 0 {
		t.Errorf("%d said, counted %v", lost, counted)
	}
	if n := r.metric(semconv.KernelLogReopened); n != 0 {
		t.Errorf("opened again %d times", n)
	}
	if s, err := r.host.last(); s != componentstatus.StatusOK {
		t.Errorf("status %v: %v", s, err)
	}
	t.Logf("%d records were overwritten", lost)
}

// flood writes to the kernel's log until its ring has nothing older than a record, and returns the number of the oldest it has then.
func flood(t *testing.T, record int64) int64 {
	t.Helper()
	const perOpen, most = 10, 64 << 20 // a process may write ten lines in five seconds through each descriptor
	line := []byte("<15>pitcrew: this line is for overwriting the kernel log: " + strings.Repeat("x", 900) + "\n")
	for written := 0; written < most; written += perOpen * len(line) {
		w, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		for range perOpen {
			if _, err := w.Write(line); err != nil {
				t.Fatal(err)
			}
		}
		w.Close()
		if first := oldest(t); first > record {
			return first
		}
		time.Sleep(5 * time.Millisecond) // others follow this log too
	}
	t.Fatalf("after %d bytes the ring still has record %d", most, record)
	return 0
}

// oldest is the number of the oldest record in the kernel's ring.
func oldest(t *testing.T) int64 {
	t.Helper()
	fd, err := syscall.Open("/dev/kmsg", syscall.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrPermission) {
		t.Skipf("/dev/kmsg cannot be read here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	buf := make([]byte, 8192)
	for {
		n, err := syscall.Read(fd, buf)
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		rec, ok := kernel.ParseRecord(buf[:n])
		if !ok {
			t.Fatalf("no record: %q", buf[:n])
		}
		return int64(rec.Seq)
	}
}
