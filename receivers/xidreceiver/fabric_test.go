package xidreceiver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/receivers/xidreceiver/kernel"
	"github.com/pitcrew/pitcrew/semconv"
)

// fabricWriter writes the fabric manager's log.
type fabricWriter struct {
	t    testing.TB
	path string
}

// newFabricRig makes a rig with a path for the fabric manager's log, where nothing is yet.
func newFabricRig(t testing.TB) (*rig, *fabricWriter) {
	r := newRig(t)
	r.cfg.FabricPath = filepath.Join(t.TempDir(), "fabricmanager.log")
	return r, &fabricWriter{t, r.cfg.FabricPath}
}

func fabricLine(at time.Time, word string, code int, pci string) string {
	return fmt.Sprintf("[%s] [ERROR] [tid 841] detected NVSwitch %s error %d on fid 0 on NVSwitch pci bus id 0000%s physical id 3 port 33\n",
		at.Format(kernel.FabricTime), word, code, pci)
}

func (w *fabricWriter) raw(text string) {
	w.t.Helper()
	f, err := os.OpenFile(w.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		w.t.Fatal(err)
	}
}

func (w *fabricWriter) fatal(at time.Time, code int) {
	w.t.Helper()
	w.raw(fabricLine(at, "fatal", code, "0000:86:00.0"))
}

// replace puts another file in the log's place.
func (w *fabricWriter) replace(text string) {
	w.t.Helper()
	if err := os.WriteFile(w.path+".new", []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(w.path+".new", w.path); err != nil {
		w.t.Fatal(err)
	}
}

// followed waits until the log was read to its end: the position is stored then.
func (r *rig) followed() {
	r.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if data, _ := r.store.Get(r.t.Context(), fabricKey); data != nil {
			return
		}
	}
	r.t.Fatal("the log was not read to its end")
}

// wants waits for the record of a code of the fabric manager's log.
func (r *rig) wants(code int) record {
	r.t.Helper()
	rec := r.next()
	if rec.event != semconv.EventKernelSXID || rec.code() != code || rec.attrs[semconv.LogFilePath] != r.cfg.FabricPath {
		r.t.Fatalf("want %d, got %+v", code, rec)
	}
	return rec
}

func TestAFabricManagersErrorIsReported(t *testing.T) {
	r, log := newFabricRig(t)
	log.raw("[Feb 25 2025 13:59:45] [INFO] [tid 1803] Received an inband message\n")
	r.start().followed()
	now := time.Now()
	log.fatal(now, 20034)
	rec := r.wants(20034)
	if _, seq := rec.attrs[semconv.KmsgSeq]; seq || !rec.flag(semconv.Fatal) || rec.flag(semconv.History) || rec.attrs[semconv.HWPCI] != "0000:86:00" ||
		rec.attrs[semconv.NVLinkLink] != int64(33) || rec.attrs[semconv.BootID] != "boot-1" || rec.res["k8s.node.name"] != "node-1" ||
		!strings.Contains(rec.body, "detected NVSwitch fatal error 20034") || rec.at.Before(now.Add(-2*time.Second)) || rec.at.After(time.Now()) {
		t.Errorf("%+v", rec)
	}
	r.nothingElse()
}

// Nobody knows of which boot they are, or in which zone their times are.
func TestFabricErrorsFromBeforeTheFirstStartAreNoNews(t *testing.T) {
	r, log := newFabricRig(t)
	log.fatal(time.Now(), 20034)
	r.start().followed()
	log.fatal(time.Now(), 12028)
	r.wants(12028)
	r.nothingElse()
}

func TestAFabricLogThatAppearsIsRead(t *testing.T) {
	r, log := newFabricRig(t)
	r.cfg.FabricPath = filepath.Join(filepath.Dir(log.path), "later", "fabricmanager.log")
	log.path = r.cfg.FabricPath
	r.start()
	r.nothingElse() // and the kernel log is read without it
	if n := r.said.FilterMessageSnippet("fabric").Len(); n != 0 {
		t.Errorf("a log that does not exist was logged: %v", r.said.All())
	}
	if err := os.Mkdir(filepath.Dir(log.path), 0o755); err != nil {
		t.Fatal(err)
	}
	log.raw("[Feb 25 2025 13:59:45] [INFO] [tid 1803] Fabric Manager started\n")
	r.followed()
	log.fatal(time.Now(), 20034)
	r.wants(20034)
}

func TestWithoutAPathNoFabricLogIsRead(t *testing.T) {
	r := newRig(t)
	if r.start(); r.r.fabric != nil {
		t.Error("it is read")
	}
	if err := (&Config{Path: "/dev/kmsg", BootIDPath: "/b", FabricPath: "fabricmanager.log"}).Validate(); err == nil || !strings.Contains(err.Error(), "fabric_path") {
		t.Errorf("a relative path: %v", err)
	}
}

func TestARestartMissesNoFabricErrorAndRepeatsNone(t *testing.T) {
	r, log := newFabricRig(t)
	log.raw("")
	r.start().followed()
	then := time.Now().Add(-time.Minute)
	log.fatal(then, 20034)
	r.wants(20034)
	r.stop()
	log.fatal(then, 22013) // in the second of the last one
	log.fatal(then.Add(30*time.Second), 12028)
	r.start()
	for _, code := range []int{22013, 12028} {
		if rec := r.wants(code); rec.flag(semconv.History) || time.Since(rec.at) < 20*time.Second {
			t.Errorf("%d: %+v", code, rec)
		}
	}
	r.nothingElse()
}

func TestAFabricErrorIsNewsThoughTheNodesClockWasSetBack(t *testing.T) {
	r, log := newFabricRig(t)
	log.fatal(time.Now().Add(time.Hour), 20034)
	r.start().followed()
	log.fatal(time.Now(), 12028)
	r.wants(12028)
}

// A crash between a record that was taken and its position being stored repeats the record. It misses none.
func TestAKilledAgentMissesNoFabricError(t *testing.T) {
	r, log := newFabricRig(t)
	log.raw("")
	r.start().followed()
	before := r.store.copy()
	log.fatal(time.Now(), 20034)
	r.wants(20034)
	r.stop()
	r.store = before
	r.start()
	r.wants(20034)
}

func TestAfterARebootNoOldFabricErrorIsNews(t *testing.T) {
	r, log := newFabricRig(t)
	log.raw("")
	r.start().followed()
	log.fatal(time.Now().Add(-time.Hour), 20034)
	r.wants(20034)
	r.stop()
	log.fatal(time.Now(), 12028) // just before the reboot
	old := string(r.store.data[fabricKey])
	r.boots("boot-2")
	r.start()
	for end := time.Now().Add(patience); string(r.store.copy().data[fabricKey]) == old; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the log was not read to its end")
		}
	}
	log.fatal(time.Now(), 22013)
	if rec := r.wants(22013); rec.attrs[semconv.BootID] != "boot-2" {
		t.Errorf("%+v", rec)
	}
}

func TestAFabricLogThatIsRotatedIsReadOnAndACopyRepeatsNothing(t *testing.T) {
	r, log := newFabricRig(t)
	log.raw("")
	r.start().followed()
	now := time.Now()
	log.fatal(now, 20034)
	r.wants(20034)
	log.replace(fabricLine(now.Add(time.Second), "fatal", 22013, "0000:86:00.0")) // logrotate
	r.wants(22013)
	old := fabricLine(now, "fatal", 20034, "0000:86:00.0")
	log.replace(old + fabricLine(now.Add(2*time.Second), "fatal", 12028, "0000:86:00.0")) // an editor that saved
	r.wants(12028)
	if err := os.Remove(log.path); err != nil { // rotated without a new file
		t.Fatal(err)
	}
	log.raw(fabricLine(now.Add(3*time.Second), "fatal", 20009, "0000:86:00.0"))
	r.wants(20009)
}

func TestAStormOfFabricErrorsIsAFewRecords(t *testing.T) {
	r, log := newFabricRig(t)
	log.raw("")
	r.start().followed()
	const lines = 5000
	log.raw(strings.Repeat(fabricLine(time.Now(), "non-fatal", 12028, "0000:86:00.0"), lines))
	log.raw(fabricLine(time.Now(), "fatal", 12028, "0000:86:00.0"))
	records, total := 0, 0
	for rec := r.next(); !rec.flag(semconv.Fatal); rec = r.next() {
		records, total = records+1, total+rec.count()
	}
	if total != lines || records > 8 {
		t.Errorf("%d records of %d lines, want %d lines", records, total, lines)
	}
}

func TestHostileFabricLinesAreBounded(t *testing.T) {
	r, log := newFabricRig(t)
	log.raw("")
	r.start().followed()
	line := fabricLine(time.Now(), "fatal", 20034, "0000:86:00.0")
	log.raw(strings.TrimSuffix(line, "\n") + "\x1b[2J\xff" + strings.Repeat("x", 1<<20) + "\n")
	rec := r.wants(20034)
	if len(rec.body) > 5000 || strings.ContainsRune(rec.body, 0xff) {
		t.Errorf("a body of %d bytes", len(rec.body))
	}
	log.raw("[x] [ERROR] [tid 1] detected NVSwitch fatal error 1\n\x00\x00\n" + strings.Replace(line, "20034", "12028", 1))
	r.wants(12028)
	if clipped, malformed := r.metric(semconv.KernelLinesClipped), r.metric(semconv.KernelLinesMalformed); clipped != 1 || malformed != 1 {
		t.Errorf("%d clipped, %d malformed", clipped, malformed)
	}
}

func TestBothLogsAreReadAtOnce(t *testing.T) {
	r, log := newFabricRig(t)
	log.raw("")
	r.start().followed()
	const each = 200
	go func() {
		for n := range each {
			log.raw(fabricLine(time.Now(), "fatal", 20000+n, "0000:86:00.0"))
		}
	}()
	for n := range each {
		r.log.xid("0000:1a:00", 200+n)
	}
	kernelLines, fabricLines := 0, 0
	for kernelLines < each || fabricLines < each {
		if rec := r.next(); rec.attrs[semconv.LogFilePath] != nil {
			fabricLines += rec.count()
		} else {
			kernelLines += rec.count()
		}
	}
}
