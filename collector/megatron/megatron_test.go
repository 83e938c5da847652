package megatron

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor/processortest"
)

// told is what Megatron-Core sends of one rank.
func told(resource map[string]any, add func(pmetric.MetricSlice)) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	_ = rm.Resource().Attributes().FromRaw(resource)
	add(rm.ScopeMetrics().AppendEmpty().Metrics())
	return md
}

func gauge(name string, v float64) func(pmetric.MetricSlice) {
	return func(ms pmetric.MetricSlice) {
		m := ms.AppendEmpty()
		m.SetName(name)
		p := m.SetEmptyGauge().DataPoints().AppendEmpty()
		p.SetDoubleValue(v)
		p.SetTimestamp(7)
	}
}

func histogram(temporality pmetric.AggregationTemporality, start, count uint64, sum float64) func(pmetric.MetricSlice) {
	return func(ms pmetric.MetricSlice) {
		m := ms.AppendEmpty()
		m.SetName("megatron.training.step_duration_ms")
		h := m.SetEmptyHistogram()
		h.SetAggregationTemporality(temporality)
		p := h.DataPoints().AppendEmpty()
		p.SetCount(count)
		p.SetSum(sum)
		p.SetStartTimestamp(1)
		if start > 0 {
			p.SetStartTimestamp(2)
		}
	}
}

// ours are the values under Pitcrew's names after a batch.
func ours(t *testing.T, tr *translator, md pmetric.Metrics) map[string]string {
	t.Helper()
	tr.translate(md)
	got := map[string]string{}
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if sm.Scope().Name() != ScopeName {
					continue
				}
				ps := m.Sum().DataPoints
				if m.Type() == pmetric.MetricTypeGauge {
					ps = m.Gauge().DataPoints
				}
				for _, p := range ps().All() {
					v := p.DoubleValue()
					if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
						v = float64(p.IntValue())
					}
					raw, keys := p.Attributes().AsRaw(), []string(nil)
					for _, k := range slices.Sorted(maps.Keys(raw)) {
						keys = append(keys, fmt.Sprint(k[strings.LastIndex(k, ".")+1:], "=", raw[k]))
					}
					got[m.Name()] = fmt.Sprintf("%g %s {%s}", v, m.Unit(), strings.Join(keys, " "))
				}
			}
		}
	}
	return got
}

var lens = map[string]any{"nv.dl.rank": int64(3), "nv.dl.world_size": int64(8), "dl.local_rank": int64(1), "k8s.pod.uid": "u"}

const who = "uid=u local_rank=1 rank=3"

func TestEachOfMegatronsMetricsIsToldUnderOurName(t *testing.T) {
	for in, want := range map[string][2]string{
		"megatron.training.loss":                {"pitcrew.train.loss", "2 1"},
		"megatron.training.grad_norm":           {"pitcrew.train.grad_norm", "2 1"},
		"megatron.training.memory_allocated_gb": {"pitcrew.train.memory.peak", "2e+09 By"},
		"megatron.training.skipped_iters":       {"pitcrew.train.nonfinite", "2 {value}"},
		"megatron.training.tokens_per_sec":      {"pitcrew.train.throughput", "0.25 1/s"},
		"megatron.training.throughput_tflops":   {"pitcrew.train.mfu", "0.5 1"},
		"megatron.training.learning_rate":       {},
		"megatron.train.loss":                   {},
	} {
		got := ours(t, newTranslator(4, time.Now), told(lens, gauge(in, 2)))
		attrs := "{" + who + " world_size=8}"
		if strings.HasSuffix(in, "tokens_per_sec") {
			attrs = "{" + who + " unit=tokens world_size=8}"
		}
		wantMap := map[string]string{}
		if want[0] != "" {
			wantMap[want[0]] = want[1] + " " + attrs
		}
		if !maps.Equal(got, wantMap) {
			t.Errorf("%s became %v, want %v", in, got, wantMap)
		}
	}
}

func TestAStepsDurationIsTheMeanSinceThePointBefore(t *testing.T) {
	const cumulative, delta = pmetric.AggregationTemporalityCumulative, pmetric.AggregationTemporalityDelta
	tr := newTranslator(0, time.Now)
	for i, c := range []struct {
		of   func(pmetric.MetricSlice)
		want string
	}{
		{histogram(cumulative, 0, 10, 2000), "0.2"},
		{histogram(cumulative, 0, 20, 5000), "0.3"},
		{histogram(cumulative, 0, 20, 5000), ""},      // nothing new
		{histogram(cumulative, 0, 5, 500), "0.1"},     // fell: a reset
		{histogram(cumulative, 1, 10, 4000), "0.4"},   // another process
		{histogram(delta, 0, 2, 100), "0.05"},         // stands by itself
		{histogram(cumulative, 0, 1, math.NaN()), ""}, // no number
		{histogram(cumulative, 0, 0, 0), ""},          // nobody has stepped
		{histogram(cumulative, 1, 10, 6000), "0.6"},   // a start that is not the last one's is a new process's
	} {
		got, _, _ := strings.Cut(ours(t, tr, told(lens, c.of))["pitcrew.train.step.duration"], " ")
		if got != c.want {
			t.Errorf("point %d: %q, want %q", i, got, c.want)
		}
	}
}

// What was skipped since the point before is no count since the start.
func TestASumOfDifferencesIsNotTakenForACount(t *testing.T) {
	for temporality, want := range map[pmetric.AggregationTemporality]string{
		pmetric.AggregationTemporalityCumulative: "7 {value} {" + who + " world_size=8}", pmetric.AggregationTemporalityDelta: "",
	} {
		got := ours(t, newTranslator(0, time.Now), told(lens, func(ms pmetric.MetricSlice) {
			m := ms.AppendEmpty()
			m.SetName("megatron.training.skipped_iters")
			sum := m.SetEmptySum()
			sum.SetAggregationTemporality(temporality)
			sum.DataPoints().AppendEmpty().SetIntValue(7)
		}))["pitcrew.train.nonfinite"]
		if got != want {
			t.Errorf("%v: %q, want %q", temporality, got, want)
		}
	}
}

func TestWhoIsNotKnownIsNotGuessed(t *testing.T) {
	for name, c := range map[string]struct {
		res  map[string]any
		rank string
	}{
		"by the old names":            {map[string]any{"dl.rank": int64(2)}, "rank=2"},
		"by words":                    {map[string]any{"dl.rank": "2"}, "rank=2"},
		"by the instance":             {map[string]any{"service.instance.id": "run-7-rank12"}, "rank=12"},
		"nobody":                      {map[string]any{}, ""},
		"an instance of another kind": {map[string]any{"service.instance.id": "run-rankle"}, ""},
		"a negative rank":             {map[string]any{"dl.rank": int64(-1)}, ""},
		"beyond its world":            {map[string]any{"dl.rank": int64(8), "dl.world_size": int64(8)}, ""},
		"of a giant":                  {map[string]any{"dl.rank": int64(1) << 40}, ""},
	} {
		got := ours(t, newTranslator(0, time.Now), told(c.res, gauge("megatron.training.loss", 1)))["pitcrew.train.loss"]
		if (c.rank == "") != (got == "") || !strings.Contains(got, c.rank) {
			t.Errorf("%s: %q, want %q", name, got, c.rank)
		}
	}
	if got := ours(t, newTranslator(0, time.Now), told(map[string]any{"dl.rank": int64(1)}, gauge("megatron.training.tokens_per_sec", 9))); len(got) != 0 {
		t.Errorf("a throughput of the whole job is told for one rank: %v", got)
	}
	if got := ours(t, newTranslator(0, time.Now), told(lens, gauge("megatron.training.throughput_tflops", 9))); len(got) != 0 {
		t.Errorf("an MFU without a peak: %v", got)
	}
}

func TestWhatIsKeptIsBoundedWhateverIsSent(t *testing.T) {
	tr := newTranslator(0, time.Now)
	for i := range 3 * maxSeries {
		ours(t, tr, told(map[string]any{"dl.rank": int64(1), "run": int64(i)}, histogram(pmetric.AggregationTemporalityCumulative, 0, 1, 1)))
		if len(tr.last) > maxSeries {
			t.Fatalf("%d series are kept", len(tr.last))
		}
	}
}

func TestATrainingProcessSpeaksForNoOtherNodeBootAttemptOrGPU(t *testing.T) {
	res := maps.Clone(lens)
	for _, k := range []string{"k8s.cluster.name", "k8s.node.name", "host.boot.id", "hw.id", "hw.pci"} {
		res[k] = "another"
	}
	res["pitcrew.attempt"] = int64(1) << 40 // beside which all that the rank itself says would be of an older one
	res["k8s.pod.name"] = strings.Repeat("x", maxClaim+1)
	md := told(res, gauge("megatron.training.loss", 1))
	keep(md)
	got := ours(t, newTranslator(0, time.Now), md)
	if want := map[string]string{"pitcrew.train.loss": "1 1 {" + who + " world_size=8}"}; !maps.Equal(got, want) {
		t.Errorf("ours are %v, want %v", got, want)
	}
	if left := md.ResourceMetrics().At(0).Resource().Attributes().AsRaw(); !maps.Equal(left, lens) {
		t.Errorf("left of the resource is %v, want %v", left, lens)
	}
}

func TestAPointFromTheFutureIsOfNow(t *testing.T) {
	now := time.Unix(1000, 0)
	for said, want := range map[time.Time]time.Time{now.AddDate(100, 0, 0): now, now.Add(-time.Second): now.Add(-time.Second)} {
		md := told(lens, gauge("megatron.training.loss", 1))
		md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0).SetTimestamp(pcommon.NewTimestampFromTime(said))
		newTranslator(0, func() time.Time { return now }).translate(md)
		if got := md.ResourceMetrics().At(0).ScopeMetrics().At(1).Metrics().At(0).Gauge().DataPoints().At(0).Timestamp().AsTime(); !got.Equal(want) {
			t.Errorf("a point of %s was told as of %s, want %s", said, got, want)
		}
	}
}

func TestMegatronsMetricsPassWithOursBesideThemAndNoOthersDo(t *testing.T) {
	sink := &consumertest.MetricsSink{}
	f := NewFactory()
	p, err := f.CreateMetrics(context.Background(), processortest.NewNopSettings(Type), &Config{PeakTFLOPS: 4}, sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(context.Background(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	for _, names := range [][]string{{"megatron.training.loss", "pitcrew.gpu.xid"}, {"pitcrew.train.loss"}, {}} {
		md := told(lens, func(ms pmetric.MetricSlice) {
			for _, n := range names {
				gauge(n, 1)(ms)
			}
		})
		if err := p.ConsumeMetrics(context.Background(), md); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := sink.DataPointCount(); n != 2 || len(sink.AllMetrics()) != 1 {
		t.Errorf("%d points in %d batches, want Megatron's and ours in one", n, len(sink.AllMetrics()))
	}
	for _, bad := range []float64{-1, math.NaN(), math.Inf(1)} {
		if (&Config{PeakTFLOPS: bad}).Validate() == nil {
			t.Errorf("a peak of %v is accepted", bad)
		}
	}
}

func TestTheDocsTableSaysTheSame(t *testing.T) {
	raw, err := os.ReadFile("../../docs/training.md")
	if err != nil {
		t.Fatal(err)
	}
	for in, n := range names {
		if row := fmt.Sprintf("| `%s` | `%s", in, n.to); !strings.Contains(string(raw), row) {
			t.Errorf("docs/training.md has no row %q", row)
		}
	}
}
