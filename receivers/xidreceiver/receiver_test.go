package xidreceiver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"golang.org/x/sys/unix"

	"github.com/pitcrew/pitcrew/receivers/xidreceiver/internal/tail"
	"github.com/pitcrew/pitcrew/semconv"
)

func sum(m metricdata.Metrics) (n int64) {
	if s, ok := m.Data.(metricdata.Sum[int64]); ok {
		for _, p := range s.DataPoints {
			n += p.Value
		}
	}
	return n
}

func TestAnXidLineBecomesARecordAsTheContractSays(t *testing.T) {
	r := newRig(t)
	r.log.write("NVRM: GPU at PCI:0000:1a:00: GPU-aeab3757-56a6-7e30-3f7c-1f322454bde2")
	r.start()
	r.log.write("NVRM: Xid (PCI:0000:1a:00 GPU-I:05 GPU-CI:01): 94, pid=7194, name=python3, Contained")
	rec := r.next()
	want := map[string]any{
		semconv.XIDCode: int64(94), semconv.HWPCI: "0000:1a:00",
		semconv.HWID: "GPU-aeab3757-56a6-7e30-3f7c-1f322454bde2", semconv.MIG: "5/1", semconv.ProcessPID: int64(7194),
		semconv.ProcessExecutableName: "python3",
		semconv.Count:                 int64(1), semconv.BootID: "boot-1", semconv.KmsgSeq: int64(1), semconv.History: false,
	}
	if rec.event != "pitcrew.kernel.xid" || !strings.Contains(rec.body, "GPU-I:05") {
		t.Errorf("%+v", rec)
	}
	for k, v := range want {
		if rec.attrs[k] != v {
			t.Errorf("%s is %v, want %v", k, rec.attrs[k], v)
		}
	}
	if len(rec.attrs) != len(want) {
		t.Errorf("attributes: %v", rec.attrs)
	}
	for k, v := range map[string]any{semconv.K8sClusterName: "c1", semconv.K8sNodeName: "node-1", semconv.HostBootID: "boot-1"} {
		if rec.res[k] != v {
			t.Errorf("resource %s is %v, want %v", k, rec.res[k], v)
		}
	}
	if d := time.Since(rec.at); d < 0 || d > time.Minute {
		t.Errorf("timestamp is %v old", d)
	}
}

// Missed by a monitor that reads only from its own start on (NVSentinel 1532).
func TestLinesFromBeforeTheAgentStartedAreNews(t *testing.T) {
	r := newRig(t)
	r.log.xid("0000:1a:00", 79)
	r.start()
	if rec := r.next(); rec.code() != 79 || rec.flag(semconv.History) {
		t.Errorf("%+v", rec)
	}
}

func TestAtAFirstStartOldLinesAreHistory(t *testing.T) {
	r := newRig(t)
	r.log.age = time.Duration(min(int64(11*time.Minute), int64(monotonic()-time.Second)))
	r.cfg.NewsWindow = r.log.age - time.Second
	r.log.xid("0000:1a:00", 79)
	r.log.age = 0
	r.log.xid("0000:1b:00", 31)
	r.start()
	if rec := r.next(); rec.code() != 79 || !rec.flag(semconv.History) {
		t.Errorf("%+v", rec)
	}
	if rec := r.next(); rec.code() != 31 || rec.flag(semconv.History) {
		t.Errorf("%+v", rec)
	}
}

// One malformed record ends gpud's follower.
func TestAMalformedRecordDoesNotEndTheReader(t *testing.T) {
	r := newRig(t).start()
	r.log.raw("no record at all\n,,,;\n4,notanumber,1,-;x\n\n\xff\xfe\x00;\n")
	r.log.write(`NVRM: Xid (PCI:zzzz): 79, x`)
	r.log.xid("0000:1a:00", 79)
	if rec := r.next(); rec.code() != 79 {
		t.Errorf("%+v", rec)
	}
	if n := r.metric(semconv.KernelLinesMalformed); n != 5 {
		t.Errorf("%d malformed lines, want 5", n)
	}
}

func TestARecordOfAMegabyteAndBrokenTextAreRead(t *testing.T) {
	r := newRig(t).start()
	r.log.write("NVRM: Xid (PCI:0000:1a:00): 13, pid=1, name=a, %s", strings.Repeat("x", 1<<20))
	r.log.write(`NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=\xff\xfe, text \xc3\x28`)
	if rec := r.next(); rec.code() != 13 || len(rec.body) > 4096 {
		t.Errorf("%d, %d bytes", rec.code(), len(rec.body))
	}
	rec := r.next()
	if name, _ := rec.attrs[semconv.ProcessExecutableName].(string); rec.code() != 31 || strings.ToValidUTF8(name+rec.body, "") != name+rec.body {
		t.Errorf("%+v", rec)
	}
	r.nothingElse()
	if n := r.metric(semconv.KernelLinesClipped); n != 1 {
		t.Errorf("%d lines clipped", n)
	}
}

// script is a source that a test drives.
type script struct {
	steps chan any // string: a line; error: that error
	ctx   context.Context
	live  atomic.Bool
}

func (s *script) Next(deadline time.Time) ([]byte, error) {
	var due <-chan time.Time
	if !deadline.IsZero() {
		due = time.After(time.Until(deadline))
	}
	select {
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	case <-due:
		return nil, tail.ErrDeadline
	case step := <-s.steps:
		if err, ok := step.(error); ok {
			return nil, err
		}
		return []byte(step.(string)), nil
	}
}

func (s *script) Live() bool      { return s.live.Load() }
func (s *script) Device() bool    { return true }
func (s *script) Clipped() uint64 { return 0 }
func (s *script) Close() error    { return nil }

// gpud skips an overrun in silence, and no peer counts what was lost.
func TestAnOverrunIsCountedAndSaid(t *testing.T) {
	r := newRig(t)
	src := &script{steps: make(chan any, 10)}
	src.live.Store(true)
	r.open = func(ctx context.Context, _ string) (tail.Source, error) { src.ctx = ctx; return src, nil }
	r.start()
	src.steps <- "4,100,1000000,-;hello"
	src.steps <- tail.ErrOverrun
	src.steps <- "4,150,1000001,-;hello"
	rec := r.next()
	if rec.event != eventLinesLost || rec.attrs[semconv.LostReason] != lostOverrun || rec.count() != 49 {
		t.Errorf("%+v", rec)
	}
	said := time.Now()
	src.steps <- "4,160,1000002,-;hello" // within a second: said with the next
	src.steps <- "4,162,1000003,-;hello" // a single line is one too many
	if rec := r.next(); rec.attrs[semconv.LostReason] != lostGap || rec.count() != 9+1 || time.Since(said) < lostEvery/2 {
		t.Errorf("after %v: %+v", time.Since(said), rec)
	}
	if n := r.metric(semconv.KernelLinesLost); n != 100+49+9+1 { // 100 before the start
		t.Errorf("%d lines lost", n)
	}
}

// node-problem-detector's descriptor was closed under flood, and its restarts spun.
func TestAFailedDescriptorIsOpenedAgainAndDoesNotSpin(t *testing.T) {
	r := newRig(t)
	var opens atomic.Int64
	sources := make(chan *script, 4)
	r.open = func(ctx context.Context, _ string) (tail.Source, error) {
		opens.Add(1)
		src := &script{steps: make(chan any, 10), ctx: ctx}
		src.live.Store(true)
		sources <- src
		return src, nil
	}
	r.start()
	begun := time.Now()
	src := <-sources
	src.steps <- "4,1,1000000,-;NVRM: Xid (PCI:0000:1a:00): 31, x"
	if rec := r.next(); rec.code() != 31 {
		t.Fatalf("%+v", rec)
	}
	src.steps <- errors.New("file already closed")
	if err := r.status(componentstatus.StatusRecoverableError); err == nil || !strings.Contains(err.Error(), "already closed") {
		t.Errorf("%v", err)
	}
	src = <-sources
	if since := time.Since(begun); since < shortLived {
		t.Errorf("opened again after %v", since)
	}
	r.status(componentstatus.StatusOK)
	// A device is read from the ring's beginning again: what was taken is not taken twice.
	src.steps <- "4,1,1000000,-;NVRM: Xid (PCI:0000:1a:00): 31, x"
	src.steps <- "4,2,1000001,-;NVRM: Xid (PCI:0000:1b:00): 79, x"
	if rec := r.next(); rec.code() != 79 {
		t.Errorf("%+v", rec)
	}
	if n := opens.Load(); n != 2 {
		t.Errorf("opened %d times", n)
	}
}

// Lines lost when the journal rotates: NVSentinel 1417.
func TestRotationLosesNoLine(t *testing.T) {
	r := newRig(t).start()
	r.nothingElse() // it is being read
	for round := range 4 {
		for i := range 10 { // some of these are unread when the log is replaced
			r.log.write("NVRM: Xid (PCI:%04x:%02x:00): 31, x", round, i)
			if i == 5 {
				r.log.create()
			}
		}
		for seen := 0; seen < 10; {
			rec := r.next()
			if rec.event == eventLinesLost {
				t.Fatalf("%+v", rec)
			}
			if rec.count() == 1 {
				seen++
			}
		}
	}
	// Replaced twice at once, the one in between is gone: that is said.
	r.log.write("x")
	r.log.create()
	r.log.write("x")
	r.log.create()
	r.nothingElseButLost()
}

func TestATruncatedLogIsReadFromItsNewBeginning(t *testing.T) {
	r := newRig(t).start()
	r.log.xid("0000:1a:00", 31)
	r.next()
	if err := r.log.f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	r.log.xid("0000:1b:00", 79)
	if rec := r.next(); rec.code() != 79 || rec.flag(semconv.History) {
		t.Errorf("%+v", rec)
	}
}

func TestALogWrittenAnewToMoreThanItsLengthIsNoticed(t *testing.T) {
	r := newRig(t).start()
	r.log.write("x")
	r.log.xid("0000:1a:00", 31)
	r.next()
	r.log.seq = 100
	text := "4,100,99,-;a longer first line than the other log had, which pushes what follows it beyond the old end of the file\n" +
		"4,101,99,-;NVRM: Xid (PCI:0000:1c:00): 79, gone\n"
	if err := os.WriteFile(r.cfg.Path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for {
		if rec := r.next(); rec.code() == 79 {
			return
		}
	}
}

// A node that boots has a new boot id, and its log begins at 0: all of it is news.
func TestABootWhileRunningMakesANewLogNews(t *testing.T) {
	r := newRig(t).start()
	for range 5 {
		r.log.write("usb 1-1: new high-speed USB device")
	}
	r.log.xid("0000:1a:00", 79)
	r.next()
	r.stop()
	r.start() // with a position of the first boot, which must not hide what stands at the same place of the second
	r.next()
	r.boots("boot-2")
	r.log.xid("0000:1a:00", 79)
	rec := r.next()
	if rec.code() != 79 || rec.flag(semconv.History) || rec.count() != 1 || rec.attrs[semconv.BootID] != "boot-2" || rec.attrs[semconv.KmsgSeq] != int64(0) {
		t.Errorf("%+v", rec)
	}
}

func TestAFIFOIsFollowed(t *testing.T) {
	r := newRig(t)
	r.cfg.Path = filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(r.cfg.Path, 0o600); err != nil {
		t.Fatal(err)
	}
	r.start()
	for i := range 3 { // each writer comes and goes
		f, err := os.OpenFile(r.cfg.Path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		r.log.f.Close()
		r.log.f = f
		r.log.write("NVRM: Xid (PCI:0000:1%d:00): 79, gone", i)
		f.Close()
		if rec := r.next(); rec.code() != 79 || rec.flag(semconv.History) {
			t.Errorf("%+v", rec)
		}
	}
}

func TestAClockStepMovesNoEvent(t *testing.T) {
	r := newRig(t).start()
	// The log's clock is an hour ahead of ours, as one that was suspended or is
	// not this machine's. What was there at opening may be taken for an earlier
	// boot's; what is written from then on is news.
	r.log.age = -time.Hour
	for i := range 100 {
		r.log.write("NVRM: Xid (PCI:0000:%02x:00): 79, gone", i)
		if rec := r.next(); rec.flag(semconv.History) {
			continue
		} else if time.Since(rec.at) > time.Minute || time.Until(rec.at) > time.Second {
			t.Errorf("%v ago: %+v", time.Since(rec.at), rec)
		}
		return
	}
	t.Error("nothing became news")
}

func TestRepeatsAreCountedAndDetailsComeLater(t *testing.T) {
	r := newRig(t).start()
	for range 500 {
		r.log.xid("0000:1a:00", 31)
	}
	r.log.write("nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 12028, Non-fatal, Link 62 egress non-posted PRIV error (First)")
	r.log.write("nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 12028, Severity 0 Engine instance 62 Sub-engine instance 00")
	lines, switched, last := 0, 0, int64(-1)
	for detail := ""; lines < 500 || detail == ""; {
		rec := r.next()
		if rec.code() == 31 {
			if seq, _ := rec.attrs[semconv.KmsgSeq].(int64); seq <= last {
				t.Fatalf("a line is in two records: %+v", rec)
			} else {
				last = seq
			}
			lines += rec.count()
			continue
		}
		switched += rec.count()
		detail, _ = rec.attrs[semconv.KernelDetail].(string)
		if switched != 1 || rec.count() == 1 && rec.attrs[semconv.Fatal] != false {
			t.Fatalf("%+v", rec)
		}
	}
	if lines != 500 {
		t.Errorf("%d lines", lines)
	}
}

func TestAStormOf45IsAHandfulOfRecords(t *testing.T) {
	r := newRig(t)
	r.log.xid("0000:1a:00", 95)
	for range 100 {
		var b strings.Builder
		for range 1000 {
			b.WriteString(r.log.next("NVRM: Xid (PCI:0000:1a:00): 45, pid=9, name=python3, Ch 00000001"))
		}
		r.log.raw(b.String())
	}
	r.start()
	if rec := r.next(); rec.code() != 95 {
		t.Errorf("%+v", rec)
	}
	n, count := 1, 0
	for count < 100_000 {
		n, count = n+1, count+r.next().count()
	}
	if n > 10 || count != 100_000 {
		t.Errorf("%d records of %d lines for one storm", n, count)
	}
}

// The detector decodes the registers of an NVLink 5 line, and the recovery action of an Xid 154.
func TestWhatTheLineSaysIsInItsRecord(t *testing.T) {
	r := newRig(t).start()
	r.log.write("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15  Release Build")
	r.log.write("NVRM: Xid (PCI:0000:1a:00): 145, RLW_SRC_TRACK Fatal XC1 i0 Link 12 (0x840988e2 0x00000001 0x0 0x0 0x0 0x0)")
	r.log.write("NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reb")
	r.log.write("mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).")
	for _, want := range []map[string]any{
		{semconv.NVLinkUnit: "RLW_SRC_TRACK", semconv.NVLinkLink: int64(12), semconv.Fatal: true, semconv.HWDriverVersion: "570.86.15"},
		{semconv.XIDAction: "Node Reb", semconv.XIDActionValue: int64(2)},
		{semconv.XIDName: "slot power"},
	} {
		rec := r.next()
		for k, v := range want {
			if rec.attrs[k] != v {
				t.Errorf("%s is %v, want %v: %+v", k, rec.attrs[k], v, rec)
			}
		}
		if registers, ok := rec.attrs[semconv.NVLinkRegisters].([]any); ok != (rec.code() == 145) || ok && !slices.Equal(registers, []any{int64(0x840988e2), int64(1)}) {
			t.Errorf("registers %v", rec.attrs[semconv.NVLinkRegisters])
		}
	}
}
