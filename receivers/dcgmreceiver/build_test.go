package dcgmreceiver

import (
	"flag"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/golden"
	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/pdatatest/pmetrictest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/semconv"
)

var update = flag.Bool("update", false, "write the golden files anew")

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// h100 is a replayed GPU with a plausible value in each core field.
func h100(id uint, uuid string) (Device, map[uint16]int64) {
	d := Device{ID: id, UUID: uuid, PCI: "00000000:1A:00.0", Model: "NVIDIA H100 80GB HBM3", Serial: "1650123", Driver: "570.124.06", Answer: true}
	values := map[uint16]int64{}
	for i, f := range Fields {
		if !f.Optional && f.Level == GPULevel {
			values[f.ID] = int64(i)
		}
	}
	values[112] = 0x4 | 0x40
	values[252] = 68214
	values[203] = 97
	return d, values
}

func replayOf(t *testing.T, now func() time.Time) *Replay {
	t.Helper()
	d, values := h100(0, "GPU-a")
	r := NewReplay(d)
	r.now = now
	for id, v := range values {
		r.Set(0, id, v)
	}
	r.Set(0, 4, 1)
	r.SetFloat(0, 155, 612.5)
	r.SetLink(0, 0, 1508, 1)
	r.SetLink(0, 5, 1508, 0)
	return r
}

// metricsOf runs one round over a source and returns what would be sent.
func metricsOf(t *testing.T, src Source, dcgmNames bool) pmetric.Metrics {
	t.Helper()
	now := func() time.Time { return t0 }
	w := newWorker(now)
	defer w.stop()
	cfg := NewDefaultConfig()
	rd := newSession(src, w, cfg.fields(), cfg.Interval, cfg.MaxInterval, now).run(false)
	if rd.err != nil {
		t.Fatal(rd.err)
	}
	cfg.DCGMNames = dcgmNames
	b := builderOf(cfg)
	md, batch := b.begin(rd.at)
	all, n := (&fleet{}).update(rd.inv.Devices)
	b.fleet(batch, all, n, 1)
	b.switchStatus(batch, rd.inv.Switches)
	b.info(batch, all, rd.inv, rd.paths)
	b.values(batch, rd.inv, rd.values)
	b.health(batch, rd.inv, rd.incidents)
	b.links(batch, rd.inv, rd.links)
	b.stale(batch, 0)
	return md
}

// builderOf makes a builder for node-a.
func builderOf(cfg *Config) *builder {
	return newBuilder(cfg, "node-a", func(r pcommon.Resource) { r.Attributes().PutStr("k8s.node.name", "node-a") })
}

// cards is an inventory of GPUs alone.
func cards(d ...Device) Inventory { return Inventory{Devices: d} }

func TestOneRoundIsTheGoldenMetrics(t *testing.T) {
	src := replayOf(t, func() time.Time { return t0 })
	src.SetIncidents(Incident{ID: 0, System: "mem", Fail: true})
	got := metricsOf(t, src, true)
	file := filepath.Join("testdata", "golden", "h100.yaml")
	if *update {
		for _, rm := range got.ResourceMetrics().All() { // the builder's order is that of a map
			for _, sm := range rm.ScopeMetrics().All() {
				sm.Metrics().Sort(func(a, b pmetric.Metric) bool { return a.Name() < b.Name() })
			}
		}
		if err := golden.WriteMetricsToFile(file, got); err != nil {
			t.Fatal(err)
		}
	}
	want, err := golden.ReadMetrics(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := pmetrictest.CompareMetrics(want, got, pmetrictest.IgnoreTimestamp(), pmetrictest.IgnoreStartTimestamp(),
		pmetrictest.IgnoreMetricsOrder(), pmetrictest.IgnoreMetricDataPointsOrder()); err != nil {
		t.Error(err)
	}
}

func numbers(m pmetric.Metric) pmetric.NumberDataPointSlice {
	if m.Type() == pmetric.MetricTypeSum {
		return m.Sum().DataPoints()
	}
	return m.Gauge().DataPoints()
}

// points returns the points of a metric by the value of one attribute, empty where a point lacks it.
func points(md pmetric.Metrics, name, by string) map[string]pmetric.NumberDataPoint {
	out := map[string]pmetric.NumberDataPoint{}
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if m.Name() != name {
					continue
				}
				for _, p := range numbers(m).All() {
					k := ""
					if v, ok := p.Attributes().Get(by); ok {
						k = v.AsString()
					}
					out[k] = p
				}
			}
		}
	}
	return out
}

func TestABlankGivesNoPoint(t *testing.T) {
	src := replayOf(t, func() time.Time { return t0 })
	src.SetBlank(0, 150)
	src.SetBlank(0, 112)
	md := metricsOf(t, src, true)
	if p, ok := points(md, "hw.temperature", semconv.HWSensorLocation)["gpu"]; ok {
		t.Errorf("a blank temperature became %v", p.IntValue())
	}
	for _, name := range []string{"pitcrew.gpu.throttle", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"} {
		if n := len(points(md, name, semconv.HWID)); n != 0 {
			t.Errorf("a blank gave %d points of %s", n, name)
		}
	}
	if _, ok := points(md, "hw.temperature", semconv.HWSensorLocation)["memory"]; !ok {
		t.Error("the neighbour's value is missing")
	}
}

func TestAValueThatIsNoNumberGivesNoPoint(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		src := replayOf(t, func() time.Time { return t0 })
		src.SetFloat(0, 155, v)
		md := metricsOf(t, src, true)
		for _, name := range []string{"hw.power", "DCGM_FI_DEV_POWER_USAGE"} {
			if n := len(points(md, name, semconv.HWID)); n != 0 {
				t.Errorf("%v gave %d points of %s", v, n, name)
			}
		}
	}
}

// What DCGM samples bears the time of the sample; the code of the last Xid is kept by the engine and still the last one now.
func TestASampleBearsItsOwnTimeAndAnEventTheRounds(t *testing.T) {
	sampled := t0.Add(-8 * time.Second)
	md := metricsOf(t, replayOf(t, func() time.Time { return sampled }), false)
	for name, want := range map[string]time.Time{"hw.energy": sampled, "pitcrew.gpu.xid": t0, semconv.GPUStatus: t0} {
		if p, ok := points(md, name, semconv.HWID)["GPU-a"]; !ok || !p.Timestamp().AsTime().Equal(want) {
			t.Errorf("%s is of %v, want %v", name, p.Timestamp().AsTime(), want)
		}
	}
}

func TestFramebufferIsInMebibytes(t *testing.T) {
	p := points(metricsOf(t, replayOf(t, time.Now), false), "hw.gpu.memory.usage", semconv.HWID)["GPU-a"]
	if p.IntValue() != 68214<<20 {
		t.Errorf("68214 MiB became %d bytes", p.IntValue())
	}
}

func TestThrottleReasonsAreOneSeriesEach(t *testing.T) {
	got := points(metricsOf(t, replayOf(t, time.Now), false), "pitcrew.gpu.throttle", semconv.ThrottleReason)
	for _, r := range clockReasons {
		want := int64(0)
		if r.name == "sw_power_cap" || r.name == "hw_thermal" {
			want = 1
		}
		if p, ok := got[r.name]; !ok || p.IntValue() != want {
			t.Errorf("%s: %v", r.name, ok)
		}
	}
}

func TestDcgmNamesCarryTheExportersLabels(t *testing.T) {
	md := metricsOf(t, replayOf(t, time.Now), true)
	p, ok := points(md, "DCGM_FI_DEV_GPU_UTIL", "gpu")["0"]
	if !ok {
		t.Fatal("no DCGM_FI_DEV_GPU_UTIL")
	}
	want := map[string]any{"gpu": "0", "UUID": "GPU-a", "device": "nvidia0", "modelName": "NVIDIA H100 80GB HBM3", "Hostname": "node-a", "pci_bus_id": "00000000:1A:00.0"}
	got := p.Attributes().AsRaw()
	for k, v := range want {
		if got[k] != v {
			t.Errorf("label %s is %v, want %v", k, got[k], v)
		}
	}
	if p.IntValue() != 97 {
		t.Errorf("value is %d, in DCGM's unit it is 97", p.IntValue())
	}
	if n := len(points(metricsOf(t, replayOf(t, time.Now), false), "DCGM_FI_DEV_GPU_UTIL", "gpu")); n != 0 {
		t.Error("DCGM names came though they are off")
	}
}

func TestADCGMNameComesOnceAnIntervalForAllCardsAlikeAndTheOtherSpellingEachRound(t *testing.T) {
	cfg := NewDefaultConfig()
	cfg.DCGMNamesInterval = 5 * time.Second
	b := builderOf(cfg)
	both := cards(Device{ID: 0, UUID: "GPU-a"}, Device{ID: 1, UUID: "GPU-b"})
	counts := map[string]int{}
	for i := range 11 { // ten seconds
		md, batch := b.begin(t0.Add(time.Duration(i) * time.Second))
		b.values(batch, both, []Value{{ID: 0, Link: -1, Field: 150, I: 60}, {ID: 1, Link: -1, Field: 150, I: 61}})
		for _, sm := range md.ResourceMetrics().At(0).ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				counts[m.Name()] += m.Gauge().DataPoints().Len()
			}
		}
	}
	if counts["DCGM_FI_DEV_GPU_TEMP"] != 2*3 || counts["hw.temperature"] != 2*11 {
		t.Errorf("in ten seconds: %v", counts)
	}
}

func TestACounterThatFallsStartsAnew(t *testing.T) {
	d, _ := h100(0, "GPU-a")
	cfg := NewDefaultConfig()
	cfg.DCGMNames = false
	b := builderOf(cfg)
	at := func(sec int, v int64) pmetric.NumberDataPoint {
		when := t0.Add(time.Duration(sec) * time.Second)
		md, batch := b.begin(when)
		b.values(batch, cards(d), []Value{{ID: 0, Link: -1, Field: 310, Time: when, I: v}})
		return points(md, "hw.errors", semconv.ErrorType)["corrected"]
	}
	first, second, reset, after := at(0, 7), at(1, 9), at(2, 1), at(3, 4)
	if first.StartTimestamp() != second.StartTimestamp() {
		t.Error("the start moved though the counter rose")
	}
	if reset.StartTimestamp() != reset.Timestamp() || reset.StartTimestamp() == first.StartTimestamp() {
		t.Errorf("after a fall the start is %v", reset.StartTimestamp().AsTime())
	}
	if after.StartTimestamp() != reset.StartTimestamp() {
		t.Error("the start moved after the reset")
	}
}

func TestAnIncidentThatEndedIsSaidOnce(t *testing.T) {
	d, _ := h100(0, "GPU-a")
	cfg := NewDefaultConfig()
	cfg.DCGMNames = false
	b := builderOf(cfg)
	check := func(incidents ...Incident) map[string]pmetric.NumberDataPoint {
		md, batch := b.begin(t0)
		b.health(batch, cards(d), incidents)
		return points(md, semconv.GPUHealth, semconv.GPUHealthSystem)
	}
	ill := check(Incident{System: "mem", Fail: true}, Incident{System: "pcie"})
	if ill["all"].IntValue() != 2 || ill["mem"].IntValue() != 2 || ill["pcie"].IntValue() != 1 {
		t.Errorf("health while ill: %d systems", len(ill))
	}
	well := check()
	if len(well) != 3 || well["all"].IntValue() != 0 || well["mem"].IntValue() != 0 {
		t.Errorf("health after: %d systems", len(well))
	}
	if n := len(check()); n != 1 {
		t.Errorf("later: %d systems", n)
	}
}
