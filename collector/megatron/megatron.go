package megatron

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/semconv"
)

// ScopeName is the scope of the points that this processor adds.
const ScopeName = "github.com/pitcrew/pitcrew/collector/megatron"

// name is what one of Megatron-Core's metrics is called here.
type name struct {
	to, unit string
	attr     [2]string // an attribute of its own
	counter  bool
	// value turns a value into ours; ok is false where it cannot be told.
	value func(v float64, r rank, peak float64) (ours float64, ok bool)
}

func times(f float64) func(float64, rank, float64) (float64, bool) {
	return func(v float64, _ rank, _ float64) (float64, bool) { return v * f, true }
}

// names are Megatron-Core's metrics (megatron/core/telemetry/training_metrics.py and its observability guide, 2026). A step's
// duration is a histogram there: its mean over the interval is told. learning_rate has no counterpart.
var names = map[string]name{
	"megatron.training.step_duration_ms":    {to: semconv.TrainStepDuration, unit: "s", value: times(1e-3)},
	"megatron.training.loss":                {to: semconv.TrainLoss, unit: "1", value: times(1)},
	"megatron.training.grad_norm":           {to: semconv.TrainGradNorm, unit: "1", value: times(1)},
	"megatron.training.skipped_iters":       {to: semconv.TrainNonfinite, unit: "{value}", counter: true, value: times(1)},
	"megatron.training.memory_allocated_gb": {to: semconv.TrainMemoryPeak, unit: "By", value: times(1e9)},
	"megatron.training.tokens_per_sec": {to: semconv.TrainThroughput, unit: "1/s", attr: [2]string{semconv.Unit, "tokens"},
		value: func(v float64, r rank, _ float64) (float64, bool) { return v / float64(r.world), r.world > 0 }}, // of the whole job there
	"megatron.training.throughput_tflops": {to: semconv.TrainMFU, unit: "1",
		value: func(v float64, _ rank, peak float64) (float64, bool) { return v / peak, peak > 0 }},
}

// rank is who tells, by the resource; -1 and 0 are unknown.
type rank struct{ rank, local, world int64 }

const maxRank = 1 << 20

// rankOf reads what NeMo Lens sets: nv.dl.* (dl.* before 2026), else the end of service.instance.id, "<run>-rank<r>".
func rankOf(res pcommon.Map) (rank, bool) {
	number := func(missing, most int64, names ...string) int64 {
		for _, n := range names {
			v, ok := res.Get(n)
			if !ok {
				continue
			}
			i := v.Int()
			if v.Type() != pcommon.ValueTypeInt {
				var err error
				if i, err = strconv.ParseInt(v.AsString(), 10, 64); err != nil {
					continue
				}
			}
			if i >= 0 && i <= most {
				return i
			}
		}
		return missing
	}
	r := rank{
		rank: number(-1, maxRank, semconv.Rank, "nv.dl.rank", "dl.rank"), local: number(-1, maxRank, semconv.LocalRank, "nv.dl.local_rank", "dl.local_rank"),
		world: number(0, maxRank, semconv.WorldSize, "nv.dl.world_size", "dl.world_size"),
	}
	if id, ok := res.Get("service.instance.id"); ok && r.rank < 0 {
		if _, n, found := strings.Cut(id.AsString(), "-rank"); found {
			if i, err := strconv.ParseInt(n, 10, 64); err == nil && i >= 0 && i <= maxRank {
				r.rank = i
			}
		}
	}
	return r, r.rank >= 0 && (r.world == 0 || r.rank < r.world)
}

// maxSeries bounds the histograms whose last sums are kept.
const maxSeries = 4096

type sums struct {
	sum   float64
	count uint64
	start pcommon.Timestamp
}

type translator struct {
	peak float64 // FLOP/s in tera
	now  func() time.Time

	mu   sync.Mutex
	last map[[sha256.Size]byte]sums
}

func newTranslator(peak float64, now func() time.Time) *translator {
	return &translator{peak: peak, now: now, last: map[[sha256.Size]byte]sums{}}
}

// notTheirs are attributes of a resource by which a training process would speak for another node, boot, attempt or GPU. It has no say in
// them: what comes by its door is of this node, and the attempt that a launcher's rank is in is known from its ring.
var notTheirs = []string{semconv.K8sClusterName, semconv.K8sNodeName, semconv.HostBootID, semconv.Attempt, semconv.HWID, semconv.HWPCI}

// maxClaim bounds, in bytes, what is taken of a resource's attribute: it may be kept with the rank. Kubernetes' names are shorter.
const maxClaim = 256

// keep leaves Megatron-Core's metrics: a training process may speak of its training, and of no GPU.
func keep(md pmetric.Metrics) {
	md.ResourceMetrics().RemoveIf(func(rm pmetric.ResourceMetrics) bool {
		rm.Resource().Attributes().RemoveIf(func(k string, v pcommon.Value) bool {
			return slices.Contains(notTheirs, k) || len(v.AsString()) > maxClaim
		})
		rm.ScopeMetrics().RemoveIf(func(sm pmetric.ScopeMetrics) bool {
			sm.Metrics().RemoveIf(func(m pmetric.Metric) bool { return !strings.HasPrefix(m.Name(), "megatron.") })
			return sm.Metrics().Len() == 0
		})
		return rm.ScopeMetrics().Len() == 0
	})
}

// translate adds to each resource what it tells under Pitcrew's names.
func (t *translator) translate(md pmetric.Metrics) {
	for _, rm := range md.ResourceMetrics().All() {
		r, ok := rankOf(rm.Resource().Attributes())
		if !ok {
			continue
		}
		added := pmetric.NewScopeMetrics()
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if n, ok := names[m.Name()]; ok {
					t.metric(added, rm.Resource().Attributes(), r, n, m)
				}
			}
		}
		if added.Metrics().Len() > 0 {
			added.Scope().SetName(ScopeName)
			added.MoveTo(rm.ScopeMetrics().AppendEmpty())
		}
	}
}

func (t *translator) metric(to pmetric.ScopeMetrics, res pcommon.Map, r rank, n name, m pmetric.Metric) {
	out, now := pmetric.NewNumberDataPointSlice(), pcommon.NewTimestampFromTime(t.now())
	add := func(v float64, start, at pcommon.Timestamp) {
		ours, ok := n.value(v, r, t.peak)
		if !ok {
			return
		}
		p := out.AppendEmpty()
		p.SetTimestamp(min(at, now)) // what others say of this node is judged by the latest time that was seen
		if n.counter {
			p.SetStartTimestamp(start)
			p.SetIntValue(int64(min(max(ours, 0), math.MaxInt64/2)))
		} else {
			p.SetDoubleValue(ours)
		}
		p.Attributes().PutInt(semconv.Rank, r.rank)
		if r.local >= 0 {
			p.Attributes().PutInt(semconv.LocalRank, r.local)
		}
		if r.world > 0 {
			p.Attributes().PutInt(semconv.WorldSize, r.world)
		}
		if pod, ok := res.Get(semconv.K8sPodUID); ok {
			p.Attributes().PutStr(semconv.K8sPodUID, pod.AsString())
		}
		if n.attr[0] != "" {
			p.Attributes().PutStr(n.attr[0], n.attr[1])
		}
	}
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		each(m.Gauge().DataPoints(), add)
	case pmetric.MetricTypeSum:
		if m.Sum().AggregationTemporality() != pmetric.AggregationTemporalityCumulative {
			return // a rate of what is not known: ours is a count since the start
		}
		each(m.Sum().DataPoints(), add)
	case pmetric.MetricTypeHistogram:
		cumulative := m.Histogram().AggregationTemporality() == pmetric.AggregationTemporalityCumulative
		for _, p := range m.Histogram().DataPoints().All() {
			if mean, ok := t.mean(res, p, cumulative); ok {
				add(mean, p.StartTimestamp(), p.Timestamp())
			}
		}
	default: // Megatron-Core tells none in another form
	}
	if out.Len() == 0 {
		return
	}
	o := to.Metrics().AppendEmpty()
	o.SetName(n.to)
	o.SetUnit(n.unit)
	if n.counter {
		s := o.SetEmptySum()
		s.SetIsMonotonic(true)
		s.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		out.MoveAndAppendTo(s.DataPoints())
	} else {
		out.MoveAndAppendTo(o.SetEmptyGauge().DataPoints())
	}
}

func each(ps pmetric.NumberDataPointSlice, add func(float64, pcommon.Timestamp, pcommon.Timestamp)) {
	for _, p := range ps.All() {
		if p.Flags().NoRecordedValue() {
			continue
		}
		v := p.DoubleValue()
		if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
			v = float64(p.IntValue())
		}
		add(v, p.StartTimestamp(), p.Timestamp())
	}
}

// mean is the mean of what was recorded since the point before. A process that began anew has another start.
func (t *translator) mean(res pcommon.Map, p pmetric.HistogramDataPoint, cumulative bool) (float64, bool) {
	now := sums{p.Sum(), p.Count(), p.StartTimestamp()}
	if !p.HasSum() || math.IsNaN(now.sum) || math.IsInf(now.sum, 0) {
		return 0, false
	}
	var before sums
	if cumulative {
		key := seriesKey(res, p.Attributes())
		t.mu.Lock()
		before = t.last[key]
		if _, known := t.last[key]; !known && len(t.last) >= maxSeries {
			clear(t.last) // the next points give means since their start once
		}
		t.last[key] = now
		t.mu.Unlock()
		if before.start != now.start || before.count > now.count {
			before = sums{}
		}
	}
	if now.count == before.count {
		return 0, false
	}
	return (now.sum - before.sum) / float64(now.count-before.count), true
}

// seriesKey is of one length, however long the attributes are.
func seriesKey(attributes ...pcommon.Map) (key [sha256.Size]byte) {
	h := sha256.New()
	for _, m := range attributes {
		raw := m.AsRaw()
		for _, k := range slices.Sorted(maps.Keys(raw)) { // their order means nothing
			fmt.Fprintf(h, "%q=%v\x00", k, raw[k])
		}
		h.Write([]byte{1})
	}
	h.Sum(key[:0])
	return key
}
