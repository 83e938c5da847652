package promrulesconnector

import (
	"context"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

const shipped = "../../rules/alerts.yaml"

// faults say, for each alert that is shipped, a metric and its value as time goes by while all is well, and while it is not.
var faults = map[string]struct {
	metric, unit string
	attrs        []string
	counter      bool
	well, ill    func(seconds float64) float64
}{
	"GPUMissing":            {"pitcrew.gpu.count", "{gpu}", nil, false, always(8), always(7)},
	"GPUUncorrectableECC":   {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "", dcgm, false, always(2), growing(0.01)},
	"GPURowRemapFailed":     {"DCGM_FI_DEV_ROW_REMAP_FAILURE", "", dcgm, false, always(0), always(1)},
	"GPURowRemapPending":    {"DCGM_FI_DEV_ROW_REMAP_PENDING", "", dcgm, false, always(0), always(1)},
	"GPUHardwareThrottled":  {"pitcrew.gpu.throttle", "1", []string{"hw.id", "GPU-1", "pitcrew.throttle.reason", "hw_thermal"}, false, always(0), always(1)},
	"GPUNVLinkRecoveries":   {"DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "", dcgm, false, always(4), growing(0.01)},
	"GPUPCIeReplays":        {"DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "", dcgm, false, growing(0.05), growing(1)},
	"DCGMStale":             {"pitcrew.dcgm.stale", "s", nil, false, always(1), growing(1)},
	"TrainingNotFinite":     {"pitcrew.train.nonfinite", "{value}", rank, true, always(0), growing(0.1)},
	"TrainingCheckpointOld": {"pitcrew.train.checkpoint.age", "s", rank, false, growing(1), func(s float64) float64 { return 14000 + s }},
}

var (
	dcgm = []string{"Hostname", "n7", "UUID", "GPU-1", "gpu", "0"}
	rank = []string{"k8s.namespace.name", "ns", "k8s.pod.name", "p", "pitcrew.rank", "0"}
)

func always(v float64) func(float64) float64     { return func(float64) float64 { return v } }
func growing(rate float64) func(float64) float64 { return func(s float64) float64 { return s * rate } }

// alertNames of the shipped file, read without our own reader.
func alertNames(t *testing.T) (names []string) {
	t.Helper()
	raw, err := os.ReadFile(shipped)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct{ Alert string }
		}
	}
	if err := yaml.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			names = append(names, r.Alert)
		}
	}
	return names
}

func TestEachShippedAlertFiresOnItsFaultAndOnNothingElse(t *testing.T) {
	names := alertNames(t)
	if len(names) != len(faults) {
		t.Errorf("%d alerts are shipped, %d faults are known", len(names), len(faults))
	}
	fires := func(t *testing.T, ill string) (got []string) {
		c, out := start(t, func(c *Config) { c.Files = []string{shipped} })
		for s := 0; s <= 900; s += 5 {
			at := t0.Add(time.Duration(s) * time.Second)
			c.ConsumeMetrics(context.Background(), batch(func(ms pmetric.MetricSlice) {
				gauge(ms, "pitcrew.gpu.expected", "{gpu}", 8, at)
				for _, name := range []string{"pitcrew.gpu.expected", "pitcrew.gpu.count"} { // the node has another maker's as well
					gauge(ms, name, "{gpu}", 2, at).Attributes().PutStr("hw.vendor", "AMD")
				}
				for name, f := range faults {
					v := f.well(float64(s))
					if name == ill {
						v = f.ill(float64(s))
					}
					p := gauge(ms, f.metric, f.unit, v, at)
					for i := 0; i < len(f.attrs); i += 2 {
						p.Attributes().PutStr(f.attrs[i], f.attrs[i+1])
					}
					if f.counter {
						m := ms.At(ms.Len() - 1)
						q := pmetric.NewNumberDataPoint()
						p.CopyTo(q)
						sum := m.SetEmptySum()
						sum.SetIsMonotonic(true)
						sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
						q.CopyTo(sum.DataPoints().AppendEmpty())
					}
				}
			}))
			c.evaluateAt(at)
		}
		for _, e := range out.events(t) {
			if e.Data.Target.Node != "n7" || e.Data.Evidence.Raw == "" || regexp.MustCompile(`<(no value|template)|""`).MatchString(e.Data.Evidence.Raw) {
				t.Errorf("%s says %+v", e.Data.Cause.Name, e.Data)
			}
			got = append(got, e.Data.Cause.Name)
		}
		return slices.Compact(got)
	}
	t.Run("nothing", func(t *testing.T) {
		if got := fires(t, ""); len(got) != 0 {
			t.Errorf("while all is well: %v", got)
		}
	})
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			if got := fires(t, name); !slices.Equal(got, []string{name}) {
				t.Errorf("fired: %v", got)
			}
		})
	}
}

// The metrics that a shipped rule asks for are those of the receivers' lists.
func TestShippedAlertsAskForMetricsThatThereAre(t *testing.T) {
	known := map[string]bool{}
	n := newNamer()
	for _, list := range []string{"../../receivers/dcgmreceiver/metadata.yaml", "../../receivers/torchreceiver/metadata.yaml"} {
		raw, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		var file struct {
			Metrics map[string]struct {
				Unit  string
				Gauge any
				Sum   *struct{ Monotonic bool }
			}
		}
		if err := yaml.Unmarshal(raw, &file); err != nil {
			t.Fatal(err)
		}
		for name, m := range file.Metrics {
			p := pmetric.NewMetric()
			p.SetName(name)
			p.SetUnit(m.Unit)
			if m.Sum != nil {
				p.SetEmptySum().SetIsMonotonic(m.Sum.Monotonic)
			} else {
				p.SetEmptyGauge()
			}
			known[n.metric(p)] = true
		}
		for _, name := range regexp.MustCompile(`DCGM_FI_\w+`).FindAllString(string(raw), -1) {
			known[name] = true
		}
	}
	raw, err := os.ReadFile(shipped)
	if err != nil {
		t.Fatal(err)
	}
	asked := regexp.MustCompile(`(?m)^ +expr:.*$`).FindAllString(string(raw), -1)
	for _, expr := range asked {
		for _, name := range regexp.MustCompile(`\b(pitcrew_(gpu|dcgm|train)_\w+|hw_gpu_\w+|DCGM_FI_\w+)`).FindAllString(expr, -1) {
			if !known[name] {
				t.Errorf("%s is asked for and nobody gives it", name)
			}
		}
	}
}
