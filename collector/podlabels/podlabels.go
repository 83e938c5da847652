package podlabels

import (
	"context"
	"hash/maphash"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/collector/podresources"
	"github.com/pitcrew/pitcrew/collector/promexporter"
	"github.com/pitcrew/pitcrew/receivers/dcgmreceiver"
	"github.com/pitcrew/pitcrew/semconv"
)

const (
	maxSeries  = 1 << 15          // that pass; a node has some 1500
	maxOthers  = 10_000           // of them of anything but GPUs, which whoever reaches the agent's socket may tell
	otherFor   = time.Minute      // one that was not seen for so long makes room for another
	forgetFor  = 10 * time.Minute // a series that was not seen for so long
	rankFor    = time.Minute      // a rank that says nothing no longer uses its GPU
	infoMetric = semconv.GPUInfo
	migMetric  = semconv.GPUMIGInfo
	rankMetric = semconv.TrainStep

	jobAttribute      = semconv.JobName
	instanceAttribute = semconv.MIG // GPU instance, or GPU instance/compute instance
)

// spelling is how a scope names the GPU and its holders.
type spelling struct {
	gpu, instance, namespace, pod, container string
	ranks, job                               bool
}

var (
	otel = spelling{semconv.HWID, instanceAttribute, semconv.K8sNamespaceName, semconv.K8sPodName, semconv.K8sContainerName, true, true}
	dcgm = spelling{"UUID", "GPU_I_ID", "namespace", "pod", "container", false, false}
)

type rank struct {
	number int64
	seen   time.Time
}

// series is what was last said of one series that came in: when, and under which labels it went out.
type series struct {
	as     []labels
	passed time.Time
	other  bool // not a GPU's
}

// labeller is the processor. One batch passes at a time.
type labeller struct {
	next     consumer.Metrics
	pods     *podresources.Client
	now      func() time.Time
	interval time.Duration // the least between two values of a series
	families string        // that the endpoint serves

	mu     sync.Mutex
	ranks  map[string]rank // by the GPU's UUID
	series map[uint64]series
	swept  time.Time
	use    containerUse
	log    *zap.Logger
	others int       // of series
	made   time.Time // when room was last made for others
	full   bool      // and said
}

func newLabeller(next consumer.Metrics, interval time.Duration, pods *podresources.Client, now func() time.Time) *labeller {
	return &labeller{log: zap.NewNop(), next: next, now: now, interval: interval, pods: pods, ranks: map[string]rank{}, series: map[uint64]series{}, families: promexporter.AllFamilies, use: containerUse{gpus: map[string]gpuUse{}}}
}

var seed = maphash.MakeSeed()

// Capabilities says that what comes in is not changed: the detector reads it as well.
func (*labeller) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

// Start begins to ask the kubelet.
func (l *labeller) Start(context.Context, component.Host) error { l.pods.Start(); return nil }

// Shutdown ends what is under way.
func (l *labeller) Shutdown(context.Context) error { l.pods.Stop(); return nil }

// ConsumeMetrics passes a batch on, with labels.
func (l *labeller) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	l.pods.Touch()
	out := l.label(md)
	if out.DataPointCount() == 0 {
		return nil
	}
	return l.next.ConsumeMetrics(ctx, out)
}

// label makes the batch that goes out: the one that came in, where nothing is to be said of GPUs and nothing to be left off.
func (l *labeller) label(md pmetric.Metrics) pmetric.Metrics {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for _, rm := range md.ResourceMetrics().All() {
		l.learn(rm, now)
		l.use.learn(rm, now)
	}
	l.sweep(now)
	if l.interval == 0 && l.families == promexporter.AllFamilies && !aboutGPUs(md) {
		return md
	}
	out := pmetric.NewMetrics()
	for _, rm := range md.ResourceMetrics().All() {
		var to pmetric.ResourceMetrics
		source := hash(rm.Resource().Attributes())
		for _, sm := range rm.ScopeMetrics().All() {
			named := sm.Scope().Name() == dcgmreceiver.DCGMNamesScope
			if !l.served(named) {
				continue
			}
			if named { // dcgm-exporter's labels and no others: the resource's stay behind
				l.scope(sm, out.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty(), dcgm, source, now)
				continue
			}
			if to == (pmetric.ResourceMetrics{}) {
				to = out.ResourceMetrics().AppendEmpty()
				rm.Resource().CopyTo(to.Resource())
				to.SetSchemaUrl(rm.SchemaUrl())
			}
			l.scope(sm, to.ScopeMetrics().AppendEmpty(), otel, source, now)
		}
	}
	if l.served(false) {
		l.containers(md, out, now)
	}
	return out
}

// served reports whether the endpoint serves series of a scope: of dcgm-exporter's names, or of others.
func (l *labeller) served(dcgmNames bool) bool {
	return l.families == promexporter.DCGMFamilies && dcgmNames || l.families == promexporter.PitcrewFamilies && !dcgmNames || l.families == promexporter.AllFamilies
}

// aboutGPUs says whether any series of the batch is a GPU's; ranks' samples come ten times a second and have none.
func aboutGPUs(md pmetric.Metrics) bool {
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			if sm.Scope().Name() == dcgmreceiver.DCGMNamesScope {
				return true
			}
			for _, m := range sm.Metrics().All() {
				if ps := numbers(m); ps.Len() > 0 && ofGPU(ps.At(0), otel) {
					return true
				}
			}
		}
	}
	return false
}

// learn takes in which GPU has which number, and which rank uses it.
func (l *labeller) learn(rm pmetric.ResourceMetrics, now time.Time) {
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			if m.Type() != pmetric.MetricTypeGauge || m.Name() != infoMetric && m.Name() != migMetric && m.Name() != rankMetric {
				continue
			}
			for _, p := range m.Gauge().DataPoints().All() {
				id, ok := p.Attributes().Get(semconv.HWID)
				if !ok {
					continue
				}
				if m.Name() == migMetric {
					l.learnInstance(p.Attributes())
					continue
				}
				if n, ok := p.Attributes().Get(semconv.GPUIndex); ok && m.Name() == infoMetric {
					l.pods.Learn(id.AsString(), int(n.Int()))
				}
				if n, ok := p.Attributes().Get(semconv.Rank); ok && (len(l.ranks) < maxSeries || l.ranks[id.AsString()] != rank{}) {
					l.ranks[id.AsString()] = rank{n.Int(), now}
				}
			}
		}
	}
}

// learnInstance takes in which GPU an opaque MIG device is cut from.
func (l *labeller) learnInstance(a pcommon.Map) {
	gpu, ok1 := a.Get(semconv.HWParent)
	mig, ok2 := a.Get(semconv.MIGUUID)
	instance, ok3 := a.Get(instanceAttribute)
	if ok1 && ok2 && ok3 {
		l.pods.LearnInstance(mig.Str(), gpu.Str(), instance.Str())
	}
}

// scope copies one scope of a source, with labels.
func (l *labeller) scope(from, to pmetric.ScopeMetrics, in spelling, source uint64, now time.Time) {
	from.Scope().CopyTo(to.Scope())
	to.SetSchemaUrl(from.SchemaUrl())
	known := map[gpuPart][]labels{}
	for _, m := range from.Metrics().All() {
		points := numbers(m)
		if points.Len() == 0 {
			l.distribution(m, to, source, now)
			continue
		}
		var written pmetric.NumberDataPointSlice
		base := key(source, m.Name())
		for _, p := range points.All() {
			k := base + hash(p.Attributes())
			was, again := l.series[k]
			if again && now.Sub(was.passed) < l.interval*9/10 { // samples come when they come
				continue
			}
			if !again && !l.room(!ofGPU(p, in), now) {
				continue
			}
			if written == (pmetric.NumberDataPointSlice{}) {
				out := to.Metrics().AppendEmpty()
				copyKind(m, out)
				written = numbers(out)
				written.EnsureCapacity(points.Len())
			}
			if !ofGPU(p, in) {
				p.CopyTo(written.AppendEmpty())
				l.remember(k, series{nil, now, true})
				continue
			}
			id, _ := p.Attributes().Get(in.gpu)
			if parent, ok := p.Attributes().Get(semconv.HWParent); ok { // an instance's own id says nothing to the kubelet
				id = parent
			}
			of := gpuPart{id.Str(), ""}
			if v, ok := p.Attributes().Get(in.instance); ok {
				of.instance = v.AsString()
			}
			by, ok := known[of]
			if !ok {
				by = l.labelsOf(of, in, now)
				known[of] = by
			}
			if own, named := l.named(p.Attributes(), in); named {
				by = own
			}
			l.remember(k, series{by, now, false})
			if again {
				end(m, p, was.as, by, in, to)
			}
			if len(by) == 0 {
				p.CopyTo(written.AppendEmpty())
			}
			for _, h := range by {
				q := written.AppendEmpty()
				p.CopyTo(q)
				h.put(q.Attributes(), in)
			}
		}
	}
}

// ofGPU says whether the point is about a GPU and not about a rank, whose pod is another's business.
func ofGPU(p pmetric.NumberDataPoint, in spelling) bool {
	if _, ok := p.Attributes().Get(in.gpu); !ok {
		return false
	}
	_, rank := p.Attributes().Get(semconv.K8sPodUID)
	return !rank
}

// gpuPart is a GPU, or an instance of it.
type gpuPart struct{ uuid, instance string }

// end says that the point's series has no value under the labels it had before and has no longer.
func end(m pmetric.Metric, p pmetric.NumberDataPoint, gone, by []labels, in spelling, to pmetric.ScopeMetrics) {
	if slices.Equal(gone, by) {
		return
	}
	if len(gone) == 0 {
		gone = []labels{{rank: -1}}
	}
	for _, h := range gone {
		if slices.Contains(by, h) {
			continue
		}
		// A metric of its own: an exporter may leave off a metric at the first point without a value.
		mark := to.Metrics().AppendEmpty()
		copyKind(m, mark)
		q := numbers(mark).AppendEmpty()
		p.CopyTo(q)
		q.SetFlags(q.Flags().WithNoRecordedValue(true))
		h.put(q.Attributes(), in)
	}
}

func (l *labeller) sweep(now time.Time) {
	if now.Sub(l.swept) < forgetFor {
		return
	}
	l.swept = now
	for k, s := range l.series {
		if now.Sub(s.passed) > forgetFor {
			l.forget(k, s)
		}
	}
	for k, r := range l.ranks {
		if now.Sub(r.seen) > rankFor {
			delete(l.ranks, k)
		}
	}
}

// key tells one series that comes in from another: ranks that speak OTLP are told apart by their resources alone.
// The hash of its attributes is to be added.
func key(source uint64, name string) uint64 { return 31*source + maphash.String(seed, name) }

// hash is the same for the same attributes in another order.
func hash(a pcommon.Map) (sum uint64) {
	for k, v := range a.All() {
		s := ""
		switch v.Type() {
		case pcommon.ValueTypeStr:
			s = v.Str()
		case pcommon.ValueTypeInt:
			s = strconv.FormatInt(v.Int(), 10)
		default:
			s = v.AsString()
		}
		sum += maphash.String(seed, k) * (maphash.String(seed, s) | 1)
	}
	return sum
}

func numbers(m pmetric.Metric) pmetric.NumberDataPointSlice {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return m.Gauge().DataPoints()
	case pmetric.MetricTypeSum:
		return m.Sum().DataPoints()
	default:
		return pmetric.NewNumberDataPointSlice()
	}
}

// copyKind copies all of a metric but its points.
func copyKind(from, to pmetric.Metric) {
	to.SetName(from.Name())
	to.SetDescription(from.Description())
	to.SetUnit(from.Unit())
	from.Metadata().CopyTo(to.Metadata())
	if from.Type() == pmetric.MetricTypeGauge {
		to.SetEmptyGauge()
		return
	}
	s := to.SetEmptySum()
	s.SetAggregationTemporality(from.Sum().AggregationTemporality())
	s.SetIsMonotonic(from.Sum().IsMonotonic())
}
