package accelerators

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/connector/connectortest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/pitcrew/pitcrew/collector/detectorconnector"
	"github.com/pitcrew/pitcrew/event"
)

// scraped is an exposition as the Prometheus receiver hands it on: names and labels as they are, gauges as gauges.
func scraped(t testing.TB, file string) pmetric.Metrics {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(f)
	if err != nil {
		t.Fatal(err)
	}
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr("service.name", "exporter")
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName("prometheusreceiver")
	for name, family := range families {
		m := sm.Metrics().AppendEmpty()
		m.SetName(name)
		points := m.SetEmptyGauge().DataPoints()
		for _, x := range family.Metric {
			p := points.AppendEmpty()
			p.SetDoubleValue(x.GetGauge().GetValue())
			p.SetTimestamp(pcommon.Timestamp(x.GetTimestampMs() * 1e6))
			for _, l := range x.Label {
				p.Attributes().PutStr(l.GetName(), l.GetValue())
			}
		}
	}
	return md
}

func start(t testing.TB, sink *consumertest.MetricsSink) processor.Metrics {
	t.Helper()
	p, err := NewFactory().CreateMetrics(t.Context(), processortest.NewNopSettings(Type), NewFactory().CreateDefaultConfig(), sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	return p
}

// lines lists points as "name{attributes} value".
func lines(md pmetric.Metrics) []string {
	var out []string
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				var points pmetric.NumberDataPointSlice
				if m.Type() == pmetric.MetricTypeSum {
					points = m.Sum().DataPoints()
				} else {
					points = m.Gauge().DataPoints()
				}
				for _, p := range points.All() {
					var attrs []string
					for k, v := range p.Attributes().All() {
						attrs = append(attrs, k+"="+v.AsString())
					}
					slices.Sort(attrs)
					out = append(out, fmt.Sprintf("%s{%s} %g", m.Name(), strings.Join(attrs, ","), p.DoubleValue()))
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

func TestAnExportersMetricsHaveOurNames(t *testing.T) {
	const (
		npu0  = "hw.id=NPU-185011D4-21104518-A0C4ED94-14CC040A-56102003,hw.pci=0000:61:00"
		npu1  = "hw.id=NPU-185011D4-21E04718-93B2ED94-14CC040A-BF102003,hw.pci=0000:db:00"
		whose = "k8s.container.name=main,k8s.namespace.name=train,k8s.pod.name=llm-0"
		amd1  = "hw.id=AMD-692351000002"
	)
	for file, want := range map[string][]string{
		"testdata/ascend.prom": {
			"hw.errors{error.type=uncorrected," + npu0[:len("hw.id=NPU-185011D4-21104518-A0C4ED94-14CC040A-56102003")] + ",hw.pci=0000:61:00,hw.type=gpu} 3",
			"hw.gpu.memory.limit{" + npu0 + ",hw.type=gpu} 3.3821818880e+10",
			"hw.gpu.memory.usage{" + npu0 + ",hw.type=gpu} 1.048576e+06",
			"hw.gpu.utilization{hw.gpu.task=general," + npu0 + ",hw.type=gpu} 0.25",
			"hw.power{" + npu0 + ",hw.type=gpu} 70.8",
			"hw.temperature{" + npu0 + ",hw.sensor_location=gpu,hw.type=gpu} 44",
			"npu_chip_info_voltage{container_name=,id=0,model_name=910A-Ascend-V1,namespace=,pcie_bus_info=0000:61:00.0,pod_name=,vdie_id=185011D4-21104518-A0C4ED94-14CC040A-56102003} 0.9",
			"pitcrew.gpu.clock{" + npu0 + ",pitcrew.gpu.clock.domain=sm} 1e+09",
			"pitcrew.gpu.clock{" + npu1 + "," + whose + ",pitcrew.gpu.clock.domain=sm} 1e+09",
			"pitcrew.gpu.count{hw.vendor=Huawei} 2",
			"pitcrew.gpu.expected{hw.vendor=Huawei} 2",
			"pitcrew.gpu.health{" + npu0 + ",pitcrew.gpu.health.system=device} 0",
			"pitcrew.gpu.health{" + npu1 + "," + whose + ",pitcrew.gpu.health.system=device} 2",
			"pitcrew.gpu.info{" + strings.Replace(npu0, ",hw.pci", ",hw.model=910A-Ascend-V1,hw.pci", 1) + ",hw.vendor=Huawei,pitcrew.gpu.index=0} 1",
			"pitcrew.gpu.info{" + strings.Replace(npu1, ",hw.pci", ",hw.model=910A-Ascend-V1,hw.pci", 1) + ",hw.vendor=Huawei," + whose + ",pitcrew.gpu.index=1} 1",
			"pitcrew.gpu.status{" + npu0 + ",hw.vendor=Huawei} 1",
			"pitcrew.gpu.status{" + npu1 + ",hw.vendor=Huawei," + whose + "} 1",
		},
		"testdata/amd.prom": {
			"hw.energy{" + amd1 + ",hw.type=gpu," + whose + "} 5",
			"hw.errors{error.type=uncorrected," + amd1 + ",hw.type=gpu," + whose + "} 0",
			"hw.gpu.memory.limit{" + amd1 + ",hw.type=gpu," + whose + "} 2.06141652992e+11",
			"hw.gpu.memory.usage{" + amd1 + ",hw.type=gpu," + whose + "} 1.073741824e+09",
			"hw.gpu.utilization{hw.gpu.task=general," + amd1 + ",hw.type=gpu," + whose + "} 0.87",
			"hw.temperature{" + amd1 + ",hw.sensor_location=gpu,hw.type=gpu," + whose + "} 71",
			"pcie_speed{card_model=0x74a1,gpu_id=1,hostname=mi300-1,serial_number=692351000002} 32",
			"pitcrew.gpu.clock{" + amd1 + "," + whose + ",pitcrew.gpu.clock.domain=sm} 2.1e+09",
			"pitcrew.gpu.count{hw.vendor=AMD} 2",
			"pitcrew.gpu.expected{hw.vendor=AMD} 2",
			"pitcrew.gpu.health{" + amd1 + "," + whose + ",pitcrew.gpu.health.system=device} 2",
			"pitcrew.gpu.health{hw.id=AMD-692351000001,pitcrew.gpu.health.system=device} 0",
			"pitcrew.gpu.info{" + amd1 + ",hw.model=0x74a1,hw.serial_number=692351000002,hw.vendor=AMD," + whose + ",pitcrew.gpu.index=1} 1",
			"pitcrew.gpu.info{hw.id=AMD-692351000001,hw.model=0x74a1,hw.serial_number=692351000001,hw.vendor=AMD,pitcrew.gpu.index=0} 1",
			"pitcrew.gpu.status{" + amd1 + ",hw.vendor=AMD," + whose + "} 1",
			"pitcrew.gpu.status{hw.id=AMD-692351000001,hw.vendor=AMD} 1",
		},
	} {
		t.Run(file, func(t *testing.T) {
			var sink consumertest.MetricsSink
			md := scraped(t, file)
			before := lines(md)
			if err := start(t, &sink).ConsumeMetrics(t.Context(), md); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(lines(md), before) {
				t.Error("what came in was changed")
			}
			got := lines(sink.AllMetrics()[0])
			for i := range want {
				want[i] = strings.Replace(want[i], "3.3821818880e+10", fmt.Sprintf("%g", 32255.0*mebi), 1)
				want[i] = strings.Replace(want[i], "2.06141652992e+11", fmt.Sprintf("%g", 196592.0*mebi), 1)
			}
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
			}
			if v, _ := sink.AllMetrics()[0].ResourceMetrics().At(0).Resource().Attributes().Get("service.name"); v.Str() != "exporter" {
				t.Error("the resource is lost")
			}
		})
	}
}

// found passes an exposition through the processor and the detector, and lists what was found.
func found(t *testing.T, files ...string) []string {
	t.Helper()
	cfg := detectorconnector.NewFactory().CreateDefaultConfig().(*detectorconnector.Config)
	cfg.Node, cfg.PodResourcesSocket, cfg.BootIDFile = "n1", "", filepath.Join(t.TempDir(), "boot_id")
	if err := os.WriteFile(cfg.BootIDFile, []byte("b"), 0o600); err != nil {
		t.Fatal(err)
	}
	var sink consumertest.LogsSink
	judge, err := detectorconnector.NewFactory().CreateMetricsToLogs(t.Context(), connectortest.NewNopSettings(detectorconnector.Type), cfg, &sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := judge.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := judge.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	p, err := NewFactory().CreateMetrics(t.Context(), processortest.NewNopSettings(Type), &Config{}, judge)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	for k, file := range files {
		md := scraped(t, file)
		for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
			for _, q := range m.Gauge().DataPoints().All() {
				looked := at.Add(time.Duration(k) * 5 * time.Second)
				if q.Timestamp() != 0 { // the exporter's own, which is of before the scrape
					looked = looked.Add(-3 * time.Second)
				}
				q.SetTimestamp(pcommon.NewTimestampFromTime(looked))
			}
		}
		if err := p.ConsumeMetrics(t.Context(), md); err != nil {
			t.Fatal(err)
		}
	}
	var out []string
	for _, ld := range sink.AllLogs() {
		for _, rec := range ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().All() {
			e, err := event.Decode(rec.Body().Bytes().AsRaw())
			if err != nil {
				t.Fatal(err)
			}
			d := e.Data.Target
			out = append(out, strings.TrimSuffix(fmt.Sprintf("%s %s %s/%s", e.Data.Cause.Signal(), d.GPU, d.Namespace, d.Pod), " /"))
		}
	}
	slices.Sort(out)
	return out
}

func TestAnUnhealthyAcceleratorOfAnotherMakerIsAFinding(t *testing.T) {
	for file, want := range map[string]string{
		"testdata/ascend.prom": "gpu/unhealthy NPU-185011D4-21E04718-93B2ED94-14CC040A-BF102003 train/llm-0", "testdata/amd.prom": "gpu/unhealthy AMD-692351000002 train/llm-0",
	} {
		if got := found(t, file, file); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: found %q, want %q", file, got, want)
		}
	}
}

// left is an exposition with one accelerator less, by its label and the count.
func left(t *testing.T, file, count, label string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	page := strings.Replace(string(raw), count+" 2", count+" 1", 1)
	if page == string(raw) {
		t.Fatalf("%s has no %s 2", file, count)
	}
	lines := slices.DeleteFunc(strings.Split(page, "\n"), func(l string) bool { return strings.Contains(l, label) })
	out := filepath.Join(t.TempDir(), "left.prom")
	if err := os.WriteFile(out, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAnAcceleratorOfAnotherMakerThatVanishesIsLostAndItAlone(t *testing.T) {
	const unwell = "gpu/unhealthy NPU-185011D4-21E04718-93B2ED94-14CC040A-BF102003 train/llm-0"
	amd := left(t, "testdata/amd.prom", `gpu_nodes_total{hostname="mi300-1"}`, `gpu_id="0"`)
	npu := left(t, "testdata/ascend.prom", "\nmachine_npu_nums", `id="0"`)
	for what, c := range map[string]struct{ files, want []string }{
		"AMD":    {[]string{"testdata/amd.prom", amd, amd}, []string{"gpu/lost AMD-692351000001", "gpu/unhealthy AMD-692351000002 train/llm-0"}},
		"Ascend": {[]string{"testdata/ascend.prom", npu, npu, npu}, []string{"gpu/lost NPU-185011D4-21104518-A0C4ED94-14CC040A-56102003", unwell}},
		"Ascend, beside an exporter that fell silent": {
			[]string{"testdata/amd.prom", "testdata/ascend.prom", npu, npu, npu},
			[]string{"gpu/lost NPU-185011D4-21104518-A0C4ED94-14CC040A-56102003", "gpu/unhealthy AMD-692351000002 train/llm-0", unwell},
		},
	} {
		if got := found(t, c.files...); !slices.Equal(got, c.want) {
			t.Errorf("%s: found %q, want %q", what, got, c.want)
		}
	}
}

func TestAnAcceleratorThatSeveralPodsShareIsToldOnceForEachAndNamesNone(t *testing.T) {
	raw, err := os.ReadFile("testdata/ascend.prom")
	if err != nil {
		t.Fatal(err)
	}
	const sick = `npu_chip_info_health_status{container_name="main",id="1"`
	var page []string
	for _, l := range strings.Split(string(raw), "\n") {
		page = append(page, l)
		if strings.HasPrefix(l, sick) {
			page = append(page, strings.Replace(l, `pod_name="llm-0"`, `pod_name="llm-1"`, 1))
		}
	}
	file := filepath.Join(t.TempDir(), "shared.prom")
	if err := os.WriteFile(file, []byte(strings.Join(page, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	var sink consumertest.MetricsSink
	if err := start(t, &sink).ConsumeMetrics(t.Context(), scraped(t, file)); err != nil {
		t.Fatal(err)
	}
	told := 0
	for _, l := range lines(sink.AllMetrics()[0]) {
		if strings.HasPrefix(l, "pitcrew.gpu.info{") && strings.Contains(l, "BF102003") {
			told++
		}
	}
	if told != 2 {
		t.Errorf("told %d times", told)
	}
	if got := found(t, file, file); !slices.Equal(got, []string{"gpu/unhealthy NPU-185011D4-21E04718-93B2ED94-14CC040A-BF102003"}) {
		t.Errorf("found %q", got)
	}
}

func TestTheAmdPrefixMayBeThere(t *testing.T) {
	if m, r := lookup("amd_gpu_gfx_activity"); m == nil || m.vendor != "AMD" || r.name != "hw.gpu.utilization" {
		t.Errorf("%v %+v", m, r)
	}
	if m, _ := lookup("hw.gpu.utilization"); m != nil {
		t.Error("our own names are taken for another's")
	}
}

func TestAnAcceleratorThatIsNoLongerCountedIsExpectedStill(t *testing.T) {
	var sink consumertest.MetricsSink
	p := start(t, &sink)
	for _, n := range []float64{8, 7} {
		md := pmetric.NewMetrics()
		m := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		m.SetName("machine_npu_nums")
		m.SetEmptyGauge().DataPoints().AppendEmpty().SetDoubleValue(n)
		if err := p.ConsumeMetrics(t.Context(), md); err != nil {
			t.Fatal(err)
		}
	}
	if got := lines(sink.AllMetrics()[1]); !slices.Equal(got, []string{"pitcrew.gpu.count{hw.vendor=Huawei} 7", "pitcrew.gpu.expected{hw.vendor=Huawei} 8"}) {
		t.Errorf("got %q", got)
	}
}

func TestABatchOfOthersPassesAsItIs(t *testing.T) {
	var sink consumertest.MetricsSink
	md := pmetric.NewMetrics()
	md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty().SetName("pitcrew.train.step")
	if err := start(t, &sink).ConsumeMetrics(t.Context(), md); err != nil {
		t.Fatal(err)
	}
	if sink.AllMetrics()[0] != md {
		t.Error("it was copied")
	}
}
