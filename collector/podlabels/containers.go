package podlabels

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/collector/podresources"
	"github.com/pitcrew/pitcrew/semconv"
)

// ScopeName is of the metrics that the processor makes itself; metadata.yaml describes them.
const ScopeName = "github.com/pitcrew/pitcrew/collector/podlabels"

const (
	containerUtilization = semconv.ContainerGPUUtilization
	containerMemory      = semconv.ContainerGPUMemoryUsage
	containerCount       = semconv.ContainerGPUCount

	useFor  = time.Minute // a GPU's value that was not renewed for so long is none
	maxGPUs = 256
)

// gpuUse is the last value of one GPU, or of one MIG instance.
type gpuUse struct {
	utilization, memory     float64 // share of 1, bytes
	utilizationAt, memoryAt time.Time
}

// containerUse is what is known of the GPUs' use, and when that of containers was said.
type containerUse struct {
	gpus map[string]gpuUse // by hw.id: the UUID, of an instance with a slash and its GPU instance
	said time.Time
}

// learn takes in the values.
func (u *containerUse) learn(rm pmetric.ResourceMetrics, now time.Time) {
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			name := m.Name()
			if name != semconv.HWGPUUtilization && name != semconv.HWGPUMemoryUsage {
				continue
			}
			for _, p := range numbers(m).All() {
				id, ok := p.Attributes().Get(semconv.HWID)
				if !ok || !ofGPU(p, otel) || p.Flags().NoRecordedValue() {
					continue
				}
				if task, ok := p.Attributes().Get(semconv.HWGPUTask); ok && task.Str() != "general" {
					continue
				}
				g, known := u.gpus[id.Str()]
				if !known && len(u.gpus) >= maxGPUs {
					continue
				}
				if name == semconv.HWGPUUtilization {
					g.utilization, g.utilizationAt = number(p), now
				} else {
					g.memory, g.memoryAt = number(p), now
				}
				u.gpus[id.Str()] = g
			}
		}
	}
}

func number(p pmetric.NumberDataPoint) float64 {
	if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
		return float64(p.IntValue())
	}
	return p.DoubleValue()
}

// share is what one container has for itself.
type share struct {
	podresources.Holder
	gpus                int
	utilization, memory float64
	utilized, measured  int // GPUs that the sums are of
}

// containers adds what each container used of the GPUs that it has for itself, once an interval, to a batch that was about GPUs.
func (l *labeller) containers(md, out pmetric.Metrics, now time.Time) {
	if len(l.use.gpus) == 0 || now.Sub(l.use.said) < l.interval*9/10 || !aboutGPUs(md) {
		return
	}
	all := l.shares(now)
	if len(all) == 0 {
		return
	}
	l.use.said = now
	rm := out.ResourceMetrics().AppendEmpty()
	md.ResourceMetrics().At(0).Resource().CopyTo(rm.Resource())
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName(ScopeName)
	at := pcommon.NewTimestampFromTime(now)
	for _, metric := range []struct {
		name, unit, about string
		value             func(share) (float64, bool)
	}{
		{containerUtilization, "1", "Share of time in which any kernel ran, mean over the GPUs that the container has for itself",
			func(s share) (float64, bool) { return s.utilization / float64(s.utilized), s.utilized == s.gpus }},
		{containerMemory, "By", "Memory in use on the GPUs that the container has for itself",
			func(s share) (float64, bool) { return s.memory, s.measured == s.gpus }},
		{containerCount, "{gpu}", "GPUs and MIG instances that the container has for itself", func(s share) (float64, bool) { return float64(s.gpus), true }},
	} {
		m := sm.Metrics().AppendEmpty()
		m.SetName(metric.name)
		m.SetUnit(metric.unit)
		m.SetDescription(metric.about)
		points := m.SetEmptyGauge().DataPoints()
		for _, s := range all {
			v, ok := metric.value(s)
			if !ok {
				continue
			}
			p := points.AppendEmpty()
			p.SetTimestamp(at)
			p.SetDoubleValue(v)
			labels{Holder: s.Holder, job: l.jobOf(s.Holder), rank: -1}.put(p.Attributes(), otel)
		}
	}
}

func (l *labeller) shares(now time.Time) []share {
	by := map[podresources.Holder]*share{}
	for id, g := range l.use.gpus {
		utilized, measured := now.Sub(g.utilizationAt) < useFor, now.Sub(g.memoryAt) < useFor
		if !utilized && !measured {
			delete(l.use.gpus, id)
			continue
		}
		uuid, instance, _ := strings.Cut(id, "/")
		holders := l.pods.HoldersNow(uuid, instance)
		if len(holders) != 1 {
			continue
		}
		s := by[holders[0]]
		if s == nil {
			s = &share{Holder: holders[0]}
			by[holders[0]] = s
		}
		s.gpus++
		if utilized {
			s.utilization += g.utilization
			s.utilized++
		}
		if measured {
			s.memory += g.memory
			s.measured++
		}
	}
	out := make([]share, 0, len(by))
	for _, s := range by {
		out = append(out, *s)
	}
	slices.SortFunc(out, func(a, b share) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container))
	})
	return out
}
