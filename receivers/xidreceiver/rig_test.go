package xidreceiver

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/pitcrew/pitcrew/receivers/xidreceiver/internal/tail"
	"github.com/pitcrew/pitcrew/semconv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come; it is no measure of speed.
const patience = 20 * time.Second

// rig is a receiver over a kernel log that the test writes.
type rig struct {
	t     testing.TB
	cfg   *Config
	log   *kernelLog
	store *memory
	out   chan record
	heard chan bool // whether the log can be read, as it is said
	// refuse, when set, is asked before a record is taken.
	refuse func() error
	open   func(context.Context, string) (tail.Source, error)
	r      *logReceiver
	host   *host
	said   *observer.ObservedLogs
	tel    *componenttest.Telemetry
}

// record is a log record as a test reads it.
type record struct {
	event string
	attrs map[string]any
	body  string
	res   map[string]any
	at    time.Time
}

func (r record) code() int          { c, _ := r.attrs[semconv.XIDCode].(int64); return int(c) }
func (r record) flag(n string) bool { b, _ := r.attrs[n].(bool); return b }
func (r record) count() int         { c, _ := r.attrs[semconv.Count].(int64); return int(c) }

func newRig(t testing.TB) *rig {
	t.Helper()
	dir := t.TempDir()
	boot := filepath.Join(dir, "boot_id")
	if err := os.WriteFile(boot, []byte("boot-1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := createDefaultConfig().(*Config)
	cfg.Path, cfg.BootIDPath, cfg.Cluster, cfg.Node = filepath.Join(dir, "log", "kmsg"), boot, "c1", "node-1"
	id := component.MustNewID("memory")
	cfg.StorageID = &id
	if err := os.Mkdir(filepath.Dir(cfg.Path), 0o755); err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, cfg: cfg, store: newMemory(), log: newKernelLog(t, cfg.Path), out: make(chan record, 4096), heard: make(chan bool, 64)}
}

// start runs a receiver; the test's end stops it.
func (r *rig) start() *rig {
	r.t.Helper()
	core, said := observer.New(zap.InfoLevel)
	r.said, r.tel = said, componenttest.NewTelemetry()
	set := receivertest.NewNopSettings(Type)
	set.TelemetrySettings = r.tel.NewTelemetrySettings()
	set.Logger = zap.New(core)
	next, err := consumer.NewLogs(func(_ context.Context, logs plog.Logs) error {
		if r.refuse != nil {
			if err := r.refuse(); err != nil {
				return err
			}
		}
		rl := logs.ResourceLogs().At(0)
		lr := rl.ScopeLogs().At(0).LogRecords().At(0)
		if lr.EventName() == eventLog {
			can, _ := lr.Attributes().Get(semconv.KernelLogReadable)
			r.heard <- can.Bool()
			return nil
		}
		r.out <- record{lr.EventName(), lr.Attributes().AsRaw(), lr.Body().AsString(), rl.Resource().Attributes().AsRaw(), lr.Timestamp().AsTime()}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	if r.r, err = newReceiver(set, r.cfg, next); err != nil {
		r.t.Fatal(err)
	}
	if r.open != nil {
		r.r.open = r.open
	}
	r.host = &host{ext: r.store, changed: make(chan struct{}, 64)}
	if err := r.r.Start(context.Background(), r.host); err != nil {
		r.t.Fatal(err)
	}
	running := r.r
	r.t.Cleanup(func() { running.Shutdown(context.Background()); r.tel.Shutdown(context.Background()) })
	return r
}

func (r *rig) stop() {
	r.t.Helper()
	if err := r.r.Shutdown(context.Background()); err != nil {
		r.t.Fatal(err)
	}
}

// boots begins another boot: its id, an empty log, and a clock and a sequence that begin at 0.
func (r *rig) boots(id string) {
	r.t.Helper()
	if err := os.WriteFile(r.cfg.BootIDPath, []byte(id+"\n"), 0o644); err != nil {
		r.t.Fatal(err)
	}
	r.log.seq, r.log.age = 0, monotonic()
	r.log.create()
}

// next waits for the next record.
func (r *rig) next() record {
	r.t.Helper()
	select {
	case rec := <-r.out:
		return rec
	case <-time.After(patience):
		r.t.Fatalf("no record came; the receiver said %v", r.said.All())
		return record{}
	}
}

// readable waits until the receiver says whether the log can be read.
func (r *rig) readable() bool {
	r.t.Helper()
	select {
	case can := <-r.heard:
		return can
	case <-time.After(patience):
		r.t.Fatalf("nothing was said; the receiver said %v", r.said.All())
		return false
	}
}

// nothingElse writes a line that comes after all else and expects it next.
func (r *rig) nothingElse() {
	r.t.Helper()
	r.log.marker++
	r.log.write("NVRM: Xid (PCI:fffe:%02x:%02x): 997, marker", r.log.marker>>8, r.log.marker&0xff)
	if rec := r.next(); rec.code() != 997 {
		r.t.Fatalf("there is more: %+v", rec)
	}
}

// nothingElseButLost is nothingElse where lines may have been lost, and were said to be.
func (r *rig) nothingElseButLost() {
	r.t.Helper()
	r.log.write("NVRM: Xid (PCI:fffe:00:00): 997, marker")
	for rec := r.next(); rec.code() != 997; rec = r.next() {
		if rec.event != eventLinesLost && rec.count() == 1 {
			r.t.Fatalf("there is more: %+v", rec)
		}
	}
}

// status waits for a status and returns its error.
func (r *rig) status(want componentstatus.Status) error {
	r.t.Helper()
	end := time.After(patience)
	for {
		if s, err := r.host.last(); s == want {
			return err
		}
		select {
		case <-r.host.changed:
		case <-end:
			s, err := r.host.last()
			r.t.Fatalf("status is %v (%v), want %v", s, err, want)
		}
	}
}

// metric sums an own metric over its attributes.
func (r *rig) metric(name string) int64 {
	r.t.Helper()
	m, err := r.tel.GetMetric(name)
	if err != nil {
		return 0
	}
	return sum(m)
}

// host has one storage extension and remembers the status reported.
type host struct {
	ext     component.Component
	mu      sync.Mutex
	event   *componentstatus.Event
	changed chan struct{}
}

func (h *host) GetExtensions() map[component.ID]component.Component {
	return map[component.ID]component.Component{component.MustNewID("memory"): h.ext}
}

func (h *host) Report(e *componentstatus.Event) {
	h.mu.Lock()
	h.event = e
	h.mu.Unlock()
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

func (h *host) last() (componentstatus.Status, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.event == nil {
		return componentstatus.StatusNone, nil
	}
	return h.event.Status(), h.event.Err()
}

// memory is a storage extension that outlives receivers.
type memory struct {
	component.StartFunc
	component.ShutdownFunc
	mu   sync.Mutex
	data map[string][]byte
}

// copy is what is stored now, as an agent that is killed leaves it.
func (m *memory) copy() *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &memory{data: maps.Clone(m.data)}
}

func newMemory() *memory { return &memory{data: map[string][]byte{}} }

func (m *memory) GetClient(context.Context, component.Kind, component.ID, string) (storage.Client, error) {
	return m, nil
}

func (m *memory) Get(_ context.Context, key string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.data[key], nil
}

func (m *memory) Set(_ context.Context, key string, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.data[key] = value
	return nil
}

func (m *memory) Delete(_ context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.data, key)
	return nil
}

func (m *memory) Batch(context.Context, ...*storage.Operation) error { return nil }
func (m *memory) Close(context.Context) error                        { return nil }

// kernelLog writes records as a kernel does.
type kernelLog struct {
	t      testing.TB
	path   string
	f      *os.File
	seq    uint64
	marker int
	age    time.Duration // how long ago lines claim to have been written
}

func newKernelLog(t testing.TB, path string) *kernelLog {
	l := &kernelLog{t: t, path: path}
	l.create()
	t.Cleanup(func() { l.f.Close() })
	return l
}

// create makes the log anew under its path, as a rotation or a boot does.
func (l *kernelLog) create() {
	l.t.Helper()
	if l.f != nil {
		l.f.Close()
	}
	f, err := os.OpenFile(l.path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o644)
	if err == nil {
		err = os.Rename(f.Name(), l.path)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	l.f = f
}

func monotonic() time.Duration {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return time.Duration(ts.Nano())
}

func (l *kernelLog) write(format string, args ...any) {
	l.t.Helper()
	l.raw(l.next(format, args...))
}

// next returns the next record without writing it.
func (l *kernelLog) next(format string, args ...any) string {
	l.seq++
	return fmt.Sprintf("4,%d,%d,-;%s\n", l.seq-1, (monotonic() - l.age).Microseconds(), fmt.Sprintf(format, args...))
}

func (l *kernelLog) raw(s string) {
	l.t.Helper()
	if _, err := l.f.WriteString(s); err != nil {
		l.t.Fatal(err)
	}
}

func (l *kernelLog) xid(pci string, code int) {
	l.t.Helper()
	l.write("NVRM: Xid (PCI:%s): %d, pid=77, name=python3, text", pci, code)
}
