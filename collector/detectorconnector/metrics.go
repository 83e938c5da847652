package detectorconnector

import (
	"context"
	"math"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/collector/podresources"
	"github.com/pitcrew/pitcrew/detector"
	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

type metricsSkin struct{ skin }

// ConsumeMetrics judges one batch. A rank's values of one batch are one sample.
func (s *metricsSkin) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	s.pods.Touch()
	s.emit(ctx, s.next, func() []finding.Finding { return s.judgeMetrics(md) }) // certain faults first: they wait for no statistics
	if s.anomalies != nil {
		unusual := s.anomalies.judge(md)
		s.emit(ctx, s.next, func() []finding.Finding { return unusual })
	}
	return nil
}

func (c *core) judgeMetrics(md pmetric.Metrics) (found []finding.Finding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rm := range md.ResourceMetrics().All() {
		res := rm.Resource().Attributes()
		e := c.engine(res)
		if e == nil {
			continue
		}
		ranks := gang{res: res, at: map[rankKey]int{}}
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				name := m.Name()
				if name == semconv.GPUInfo || name == semconv.GPUMIGInfo {
					c.learn(m)
				}
				set, isRank := rankMetrics[name]
				isLink := detector.WantsLink(name)
				if !isRank && !isLink && !detector.WantsGPU(name) {
					continue
				}
				for _, p := range points(m).All() {
					if p.Flags().NoRecordedValue() {
						continue
					}
					switch {
					case isRank:
						ranks.put(p, set)
					case isLink:
						found = append(found, e.Link(linkValue(name, res, p))...)
					default:
						found = append(found, e.GPU(c.gpuValue(name, res, p))...)
					}
				}
			}
		}
		for _, r := range ranks.samples {
			c.uses(r.Target)
			found = append(found, e.Rank(r)...)
		}
		found = append(found, e.Settle()...)
	}
	return found
}

// learn takes in the GPUs' numbers, by which some devices of the kubelet's answer are named, which GPU a MIG device is cut from, and who has an
// accelerator by its exporter's word.
func (c *core) learn(info pmetric.Metric) {
	by := map[string][]podresources.Holder{}
	for _, p := range points(info).All() {
		a := both{own: p.Attributes(), res: p.Attributes()}
		if gpu := a.text(semconv.HWParent); gpu != "" {
			c.pods.LearnInstance(a.text(semconv.MIGUUID), gpu, a.text(semconv.MIG))
			continue
		}
		id := a.text(semconv.HWID)
		if n := a.number(semconv.GPUIndex, -1); id != "" && n >= 0 {
			c.pods.Learn(id, int(n))
		}
		if h := (podresources.Holder{Namespace: a.text(semconv.K8sNamespaceName), Pod: a.text(semconv.K8sPodName), Container: a.text(semconv.K8sContainerName)}); id != "" && h.Pod != "" {
			by[id] = append(by[id], h)
		}
	}
	for id, holders := range by {
		c.pods.LearnHolders(id, holders)
	}
}

func points(m pmetric.Metric) pmetric.NumberDataPointSlice {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return m.Gauge().DataPoints()
	case pmetric.MetricTypeSum:
		return m.Sum().DataPoints()
	default:
		return pmetric.NewNumberDataPointSlice()
	}
}

func value(p pmetric.NumberDataPoint) float64 {
	if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
		return float64(p.IntValue())
	}
	return p.DoubleValue()
}

// rankMetrics says where each metric goes in a rank's sample.
var rankMetrics = map[string]func(*detector.Rank, float64){
	semconv.TrainStep:         func(r *detector.Rank, v float64) { r.Step = int64(v) },
	semconv.TrainStepAge:      func(r *detector.Rank, v float64) { r.StepAge = v },
	semconv.TrainStepDuration: func(r *detector.Rank, v float64) { r.Durations = append(r.Durations, v) },
	semconv.TrainHeartbeatAge: func(r *detector.Rank, v float64) { r.HeartbeatAge = v },
	semconv.TrainSection:      func(r *detector.Rank, v float64) { r.Section = int(v) },
}

type rankKey struct {
	pod     string
	rank    int64
	attempt int64
}

// gang collects the values of a batch by rank, in order of appearance.
type gang struct {
	res     pcommon.Map
	at      map[rankKey]int
	samples []detector.Rank
}

func (g *gang) put(p pmetric.NumberDataPoint, set func(*detector.Rank, float64)) {
	attrs := both{p.Attributes(), g.res}
	k := rankKey{attrs.text(semconv.K8sPodUID), attrs.number(semconv.Rank, -1), attrs.number(semconv.Attempt, 0)}
	i, ok := g.at[k]
	if !ok {
		i = len(g.samples)
		g.at[k] = i
		g.samples = append(g.samples, detector.Rank{
			Target: rankTarget(attrs), Step: -1, StepAge: math.NaN(), HeartbeatAge: math.NaN(), Section: -1,
		})
	}
	s := &g.samples[i]
	if t := p.Timestamp().AsTime(); t.After(s.Time) {
		s.Time = t
	}
	set(s, value(p))
}

func rankTarget(a both) event.Target {
	t := event.Target{
		PodUID: a.text(semconv.K8sPodUID), Namespace: a.text(semconv.K8sNamespaceName), Pod: a.text(semconv.K8sPodName), GPU: a.text(semconv.HWID),
		WorldSize: int(a.number(semconv.WorldSize, 0)),
	}
	for name, to := range map[string]**int{semconv.Rank: &t.Rank, semconv.LocalRank: &t.LocalRank, semconv.Attempt: &t.Attempt} {
		if v := a.number(name, -1); v >= 0 {
			n := int(v)
			*to = &n
		}
	}
	return t
}

func (c *core) gpuValue(metric string, res pcommon.Map, p pmetric.NumberDataPoint) detector.Value {
	a := both{p.Attributes(), res}
	v := detector.Value{Metric: metric, Maker: text(p.Attributes(), "hw.vendor"), GPU: a.text(semconv.HWID), PCI: a.text(semconv.HWPCI), Kind: a.text(semconv.ErrorType), Time: p.Timestamp().AsTime(), V: value(p)}
	if v.PCI != "" && v.GPU != "" && len(c.uuids) < detector.DefaultMaxSeries {
		c.uuids[v.PCI] = v.GPU
	}
	if v.Kind == "" {
		v.Kind = a.text(semconv.GPUHealthSystem)
	}
	var b strings.Builder
	b.Grow(96) // what most take: an UUID and a word or two
	for k, x := range p.Attributes().All() {
		b.WriteString(k)
		b.WriteByte('=')
		b.WriteString(x.AsString())
		b.WriteByte(0)
	}
	v.Series = b.String()
	if p.Timestamp() == 0 {
		v.Time = time.Time{}
	}
	return v
}

// linkKinds are the attributes that tell values of one metric of links apart.
var linkKinds = map[string]string{
	semconv.NVLinkLinks: semconv.NVLinkState, semconv.GPUNVLinkErrors: semconv.NVLinkError, semconv.NVSwitchLinkErrors: semconv.NVLinkError,
	semconv.GPUNVLink5Recoveries: semconv.NVLinkRecovery, semconv.NVSwitchSXID: semconv.SXIDClass, semconv.FabricErrors: semconv.ErrorType,
}

func linkValue(metric string, res pcommon.Map, p pmetric.NumberDataPoint) detector.LinkValue {
	a := both{p.Attributes(), res}
	v := detector.LinkValue{Metric: metric, ID: a.text(semconv.HWID), PCI: a.text(semconv.HWPCI), Number: int(a.number(semconv.NVLinkLink, -1)), V: value(p)}
	if key := linkKinds[metric]; key != "" {
		v.Kind = a.text(key)
	}
	if p.Timestamp() != 0 {
		v.Time = p.Timestamp().AsTime()
	}
	return v
}

// both looks an attribute up in the point or record first, then in the resource.
type both struct{ own, res pcommon.Map }

func (b both) get(name string) (pcommon.Value, bool) {
	if v, ok := b.own.Get(name); ok {
		return v, true
	}
	return b.res.Get(name)
}

func (b both) text(name string) string {
	if v, ok := b.get(name); ok {
		return v.AsString()
	}
	return ""
}

func (b both) number(name string, missing int64) int64 {
	v, ok := b.get(name)
	if !ok {
		return missing
	}
	switch v.Type() {
	case pcommon.ValueTypeInt:
		return v.Int()
	case pcommon.ValueTypeDouble:
		return int64(v.Double())
	default:
		return missing
	}
}

func (b both) flag(name string) (v, ok bool) {
	x, ok := b.get(name)
	return ok && x.Type() == pcommon.ValueTypeBool && x.Bool(), ok
}

func text(m pcommon.Map, name string) string {
	if v, ok := m.Get(name); ok {
		return v.AsString()
	}
	return ""
}
