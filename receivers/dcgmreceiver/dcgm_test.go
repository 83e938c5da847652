//go:build cgo && linux

package dcgmreceiver

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componentstatus"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/sandbox/simgpu"
	"github.com/pitcrew/pitcrew/semconv"
)

func uuidOf(n *simgpu.Node, i int) string { return n.GPUs()[i].UUID }

func TestDCGMGivesEachCoreField(t *testing.T) {
	b, node := startDCGM(t, nil)
	eventually(t, "the first values", func() bool { _, ok := b.newest("pitcrew.gpu.nvlink.link.state"); return ok })
	seen := map[string]int{}
	for _, md := range b.metrics.AllMetrics() {
		for _, sm := range md.ResourceMetrics().At(0).ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				seen[m.Name()]++
			}
		}
	}
	for _, f := range coreFields {
		if !f.Optional && seen[f.Name] == 0 {
			t.Errorf("no %s (field %d)", f.Name, f.ID)
		}
		if !f.Optional && f.Level != NodeLevel && seen[f.PrometheusName()] == 0 {
			t.Errorf("no %s", f.PrometheusName())
		}
	}
	for _, m := range own {
		if m.Name != semconv.GPUMIGInfo && m.Name != semconv.NVSwitchStatus && seen[m.Name] == 0 {
			t.Errorf("no %s", m.Name)
		}
	}
	md, _ := b.newest("pitcrew.gpu.nvlink.link.state")
	if got := points(md, "pitcrew.gpu.nvlink.link.state", semconv.NVLinkLink); len(got) != 18 {
		t.Errorf("%d NVLinks", len(got))
	}
	md, _ = b.newest(semconv.GPUInfo)
	p, ok := points(md, semconv.GPUInfo, semconv.HWID)[uuidOf(node, 3)]
	if !ok {
		t.Fatal("GPU 3 has no identity")
	}
	if a := p.Attributes().AsRaw(); a[semconv.HWPCI] != "0000:66:00" || a[semconv.HWModel] != "NVIDIA H100 80GB HBM3" || a[semconv.HWDriverVersion] != "570.124.06" {
		t.Errorf("GPU 3 is %v", a)
	}
}

func TestDCGMLosesAGPUWithinAnInterval(t *testing.T) {
	b, node := startDCGM(t, nil)
	for _, lose := range []func(int) error{node.Lose, node.Remove} {
		began := time.Now()
		if err := lose(3); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is lost", func() bool { v, ok := b.status(uuidOf(node, 3)); return ok && v == 0 })
		t.Logf("seen after %v", time.Since(began))
		if err := node.Restore(3); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is back", func() bool { v, ok := b.status(uuidOf(node, 3)); return ok && v == 1 })
	}
}

func TestDCGMTellsAnXIDAtOnce(t *testing.T) {
	b, node := startDCGM(t, func(c *Config, _ *simgpu.Node) { c.Interval = 5 * time.Second })
	began := time.Now()
	if err := node.XID(6, 79); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the record", func() bool { return b.logs.LogRecordCount() == 1 })
	record := time.Since(began)
	eventually(t, "the value", func() bool {
		md, ok := b.newest("pitcrew.gpu.xid")
		return ok && points(md, "pitcrew.gpu.xid", semconv.HWID)[uuidOf(node, 6)].IntValue() == 79
	})
	t.Logf("record after %v, value after %v, the interval is 5s", record, time.Since(began))
	lr := b.logs.AllLogs()[0].ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0)
	if a := lr.Attributes().AsRaw(); a[semconv.HWID] != uuidOf(node, 6) || a[semconv.Policy] != "xid" || a[semconv.XIDCode] != int64(79) {
		t.Errorf("record is %v", a)
	}
}

func TestDCGMHangsAndRecovers(t *testing.T) {
	b, node := startDCGM(t, nil)
	if err := node.Hang("dcgmEntitiesGetLatestValues", time.Minute); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the status says so", func() bool { return b.host.last() == componentstatus.StatusRecoverableError })
	eventually(t, "the data is stale", func() bool { return b.stale() > 0.5 })
	if err := node.XID(1, 119); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a violation gets through", func() bool { return b.logs.LogRecordCount() == 1 })
	if err := node.Answer("dcgmEntitiesGetLatestValues"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it recovers by itself", func() bool { return b.host.last() == componentstatus.StatusOK && b.stale() < 0.3 })
}

func TestDCGMReconnectsAndHearsViolationsAgain(t *testing.T) {
	b, node := startDCGM(t, nil)
	for i, restart := range []func() error{
		node.RestartEngine,
		func() error {
			if err := node.EngineDown(true); err != nil {
				return err
			}
			eventually(t, "the status says so", func() bool { return b.host.last() == componentstatus.StatusRecoverableError })
			return node.EngineDown(false)
		},
	} {
		if err := restart(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(150 * time.Millisecond)
		eventually(t, "it answers again", func() bool { return b.host.last() == componentstatus.StatusOK && b.stale() >= 0 && b.stale() < 0.2 })
		b.logs.Reset()
		if err := node.XID(2, 31+i); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a violation", func() bool { return b.logs.LogRecordCount() == 1 })
	}
}

func TestDCGMBlanksAreNoPoints(t *testing.T) {
	b, node := startDCGM(t, nil)
	for _, how := range []string{"blank", "notsupported"} {
		for _, field := range []uint16{310, 155} {
			if err := node.Blank(4, field, how); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(300 * time.Millisecond)
		b.metrics.Reset()
		eventually(t, "values of its neighbours", func() bool { _, ok := b.newest("hw.errors"); return ok })
		md, _ := b.newest("hw.errors")
		got := 0
		for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
			if m.Name() != "hw.errors" {
				continue
			}
			for _, p := range m.Sum().DataPoints().All() {
				id, _ := p.Attributes().Get(semconv.HWID)
				kind, _ := p.Attributes().Get(semconv.ErrorType)
				if id.Str() == uuidOf(node, 4) && kind.Str() == "corrected" {
					got++
				}
			}
		}
		if got != 0 {
			t.Errorf("%s: a blank counter gave a point", how)
		}
	}
}

func TestDCGMIsConnectedToOncePerProcess(t *testing.T) {
	startDCGM(t, nil)
	second := newDCGM(NewDefaultConfig(), zap.NewNop())
	if err := second.Connect(); err == nil || !strings.Contains(err.Error(), "keep one dcgm receiver") {
		t.Errorf("a second connection in one process: %v", err)
	}
}

func TestDCGMHealthNamesTheSystem(t *testing.T) {
	cfg, node := stubNode(t)
	cfg.Mode = ModeEmbedded
	src, _ := stubEngine(t, cfg)
	inv, err := src.Inventory()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := src.Watch(inv, []Watch{{time.Second, []uint16{150}}}); err != nil {
		t.Fatal(err)
	}
	if err := node.Health(2, "mem", "fail", 95, "row remap failed"); err != nil {
		t.Fatal(err)
	}
	if _, err := src.Health(); err != nil { // the first check reports nothing, by DCGM's own word
		t.Fatal(err)
	}
	got, err := src.Health()
	if want := (Incident{ID: 2, System: "mem", Fail: true, Code: 95, Text: "row remap failed"}); err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("incidents are %+v, %v; want %+v", got, err, want)
	}
}

func TestDCGMMissingIsOneLineWithARemedy(t *testing.T) {
	library.Lock()
	was := library.handle
	library.handle = nil
	library.Unlock()
	defer func() {
		library.Lock()
		defer library.Unlock()
		library.handle = was
	}()
	err := openLibrary("/nonexistent/libdcgm.so.4")
	if err == nil || !strings.Contains(err.Error(), "install DCGM 4") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error is %v", err)
	}
	empty := filepath.Join(t.TempDir(), "libdcgm.so.4")
	src := filepath.Join(t.TempDir(), "old.c")
	if err := os.WriteFile(src, []byte("int dcgmInit(void) { return 0; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", empty, src).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := openLibrary(empty); err == nil || !strings.Contains(err.Error(), "lacks dcgmShutdown") {
		t.Errorf("an old library gives %v", err)
	}
}
