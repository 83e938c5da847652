package detectorconnector

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/connector/connectortest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/event"
)

func TestAKernelLineBecomesAnEventWithTheGpuThatMetricsNamed(t *testing.T) {
	r := start(t, config(t))
	r.sample(t, samples(t0, status(1)))
	r.line(t, xid79())
	e := r.want(t, "xid/79")[0]
	if e.Type != event.Fault || e.Source != "//c/node/n1/xid" || e.Subject != "gpu/GPU-1" || !e.Time.Equal(t0) {
		t.Errorf("event %+v", e)
	}
	if d := e.Data; d.Target.GPU != "GPU-1" || d.Target.PCI != "0000:1a:00" || d.Severity != event.Fatal || d.Evidence.Raw == "" {
		t.Errorf("data %+v", d)
	}
}

func TestBothInstancesShareOneEngine(t *testing.T) {
	r := start(t, config(t))
	r.sample(t, samples(t0, status(0)))
	r.line(t, kernelLine("pitcrew.kernel.gpu_lost", map[string]any{"hw.pci": "0000:1a:00", "pitcrew.kmsg.seq": 1}))
	r.want(t, "gpu/lost")
}

func TestAResourceNamesItsNode(t *testing.T) {
	r := start(t, config(t))
	ld := xid79()
	res := ld.ResourceLogs().At(0).Resource().Attributes()
	res.PutStr("k8s.node.name", "n2")
	res.PutStr("k8s.cluster.name", "other")
	res.PutStr("host.boot.id", "boot-9")
	r.line(t, ld)
	if e := r.want(t, "xid/79")[0]; e.Data.Target.Node != "n2" || e.Data.Target.Cluster != "other" {
		t.Errorf("target %+v", e.Data.Target)
	}
}

func TestRecordsOfOtherNamesAndValuesWithoutATimePassUnseen(t *testing.T) {
	r := start(t, config(t))
	r.line(t, kernelLine("something.else", nil))
	r.line(t, kernelLine("pitcrew.kernel.xid", nil))
	md := samples(time.Unix(0, 0), status(0))
	r.sample(t, md)
	r.sample(t, pmetric.NewMetrics())
	gauge := pmetric.NewMetrics()
	gauge.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty().SetName("pitcrew.gpu.status")
	r.sample(t, gauge)
	r.want(t)
}

func TestKernelLinesWithoutACodeAreFindings(t *testing.T) {
	r := start(t, config(t))
	for kind, name := range map[string]string{
		"gpu_init": "adapter initialisation failed", "gsp": "GSP firmware fault", "aer": "unrecovered", "mlx5": "slot power", "lines_lost": "",
	} {
		r.line(t, kernelLine("pitcrew.kernel."+kind, map[string]any{
			"hw.pci": "0000:1a:00", "pitcrew.xid.name": name, "pitcrew.kmsg.seq": 7, "pitcrew.boot_id": "boot-1",
		}))
	}
	ids := map[string]bool{}
	es, signals := r.found(t)
	for _, e := range es {
		ids[e.ID] = true
	}
	slices.Sort(signals)
	if want := []string{"agent/lines-lost", "gpu/gsp", "gpu/init", "nic/mlx5", "pcie/aer"}; !slices.Equal(signals, want) || len(ids) != len(want) {
		t.Errorf("findings %q with %d ids, want %q", signals, len(ids), want)
	}
}

func TestARecordThatOnlyAddsDetailsIsNotAnOccurrence(t *testing.T) {
	r := start(t, config(t))
	details := map[string]any{"pitcrew.xid.code": 12028, "pitcrew.kmsg.seq": 8, "pitcrew.boot_id": "boot-1", "hw.pci": "0000:07:00", "pitcrew.count": 0}
	r.line(t, kernelLine("pitcrew.kernel.sxid", details))
	r.want(t)
}

// 10005 ends 10004.
func TestWhatTheFabricManagerRepeatsIsNoFindingOfItsOwn(t *testing.T) {
	r := start(t, config(t))
	kernel := func(code, seq int) {
		r.line(t, kernelLine("pitcrew.kernel.sxid", map[string]any{"pitcrew.xid.code": code, "pitcrew.kmsg.seq": seq, "pitcrew.boot_id": "boot-1", "hw.pci": "0000:07:00", "pitcrew.fatal": false}))
	}
	fabric := func(code int, pci string) {
		r.line(t, kernelLine("pitcrew.kernel.sxid", map[string]any{"pitcrew.xid.code": code, "pitcrew.boot_id": "boot-1", "hw.pci": pci, "pitcrew.fatal": false,
			"log.file.path": "/var/log/fabricmanager.log"}))
	}
	kernel(10004, 7)
	fabric(10004, "0000:07:00")
	kernel(10005, 8)
	fabric(10004, "0000:07:00") // late
	fabric(10005, "0000:07:00")
	fabric(12028, "0000:08:00") // the kernel log has nothing of that switch
	r.want(t, "sxid/10004", "-sxid/10004", "sxid/12028")
}

func TestARefusedFindingIsSentWithTheNext(t *testing.T) {
	r := start(t, config(t))
	r.sink.refuse = errors.New("full")
	r.line(t, xid79())
	r.want(t)
	r.sink.refuse = nil
	r.line(t, xid79("hw.pci", "0000:3b:00"))
	es := r.want(t, "xid/79", "xid/79")
	if es[0].Data.Target.PCI != "0000:1a:00" || es[1].Data.Target.PCI != "0000:3b:00" {
		t.Errorf("order %+v, %+v", es[0].Data.Target, es[1].Data.Target)
	}
}

func TestALastingFaultIsOneFindingAcrossANewAgent(t *testing.T) {
	cfg := config(t)
	cfg.StateFile = filepath.Join(t.TempDir(), "state", "open.json")
	t.Run("old agent", func(t *testing.T) {
		r := start(t, cfg)
		r.sample(t, samples(t0, status(0)))
		r.want(t, "gpu/lost")
	})
	open, err := os.ReadFile(cfg.StateFile)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("new agent", func(t *testing.T) {
		again := *cfg
		r := start(t, &again)
		r.sample(t, samples(t0.Add(time.Minute), status(0)))
		r.want(t, "~gpu/lost")
		r.sample(t, samples(t0.Add(2*time.Minute), status(1)))
		r.want(t, "~gpu/lost", "-gpu/lost")
	})
	t.Run("crash between the two renames of a write", func(t *testing.T) {
		if err := errors.Join(os.Remove(cfg.StateFile), os.WriteFile(cfg.StateFile+".old", open, 0o600)); err != nil {
			t.Fatal(err)
		}
		again := *cfg
		r := start(t, &again)
		r.sample(t, samples(t0.Add(150*time.Second), status(0)))
		r.want(t, "~gpu/lost")
	})
	t.Run("damaged file", func(t *testing.T) { // the older one would bring back what has ended
		if err := errors.Join(os.WriteFile(cfg.StateFile, []byte("{"), 0o600), os.WriteFile(cfg.StateFile+".old", open, 0o600)); err != nil {
			t.Fatal(err)
		}
		again := *cfg
		r := start(t, &again)
		r.sample(t, samples(t0.Add(3*time.Minute), status(0)))
		r.want(t, "gpu/lost")
	})
}

func TestAWrongConfigurationNamesEveryFault(t *testing.T) {
	err := (&Config{}).Validate()
	for _, w := range []string{"stall_floor", "setup_limit", "heartbeat_limit", "max_series", "stall_factor", "cluster", "boot_id_file"} {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%v does not name %s", err, w)
		}
	}
	for what, c := range map[string]Config{"scope": {Scope: "fleet"}, "jobs": {Scope: ScopeJobs}} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v does not name %s", err, what)
		}
	}
	err = (&Anomalies{Enabled: true}).Validate()
	for _, w := range []string{"asked_rate", "max_series", "max_contexts"} {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%v does not name %s", err, w)
		}
	}
	cfg := config(t)
	cfg.BootIDFile = "/nonexistent"
	if _, err := NewFactory().CreateLogsToLogs(t.Context(), connectortest.NewNopSettings(Type), cfg, consumertest.NewNop()); err == nil {
		t.Error("a boot id that cannot be read is accepted")
	}
}

func TestWhatWasNeverStartedShutsDown(t *testing.T) {
	f := NewFactory()
	cfg := config(t)
	for range 2 {
		c, err := f.CreateLogsToLogs(t.Context(), connectortest.NewNopSettings(Type), cfg, consumertest.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestTheEnginesCountsAreTheConnectorsMetrics(t *testing.T) {
	tel := componenttest.NewTelemetry()
	set := connectortest.NewNopSettings(Type)
	set.TelemetrySettings = tel.NewTelemetrySettings()
	c, err := NewFactory().CreateLogsToLogs(t.Context(), set, config(t), consumertest.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	if err := c.ConsumeLogs(t.Context(), xid79()); err != nil {
		t.Fatal(err)
	}
	m, err := tel.GetMetric("pitcrew.detector.findings")
	if err != nil {
		t.Fatal(err)
	}
	if m.Unit != "{finding}" {
		t.Errorf("metric %+v", m)
	}
	if err := errors.Join(c.Shutdown(t.Context()), tel.Shutdown(t.Context())); err != nil {
		t.Error(err)
	}
}
