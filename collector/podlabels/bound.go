package podlabels

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"
)

// room says whether a series that is new may pass. What an exporter to Prometheus is told it keeps for a while, so labels without end would
// be memory without end.
func (l *labeller) room(other bool, now time.Time) bool {
	if other && l.others >= maxOthers && now.Sub(l.made) >= otherFor {
		l.made = now
		for k, s := range l.series {
			if s.other && now.Sub(s.passed) > otherFor {
				l.forget(k, s)
			}
		}
	}
	if len(l.series) < maxSeries && (!other || l.others < maxOthers) {
		if l.full && l.others < maxOthers/2 {
			l.full = false
		}
		return true
	}
	if !l.full {
		l.full = true
		l.log.Warn("more series than the endpoint takes: new ones are left off until others end (who tells the agent of so many?)",
			zap.Int("series", len(l.series)), zap.Int("not_of_gpus", l.others))
	}
	return false
}

func (l *labeller) remember(k uint64, s series) {
	if was, known := l.series[k]; known && was.other {
		l.others--
	}
	if s.other {
		l.others++
	}
	l.series[k] = s
}

func (l *labeller) forget(k uint64, s series) {
	if s.other {
		l.others--
	}
	delete(l.series, k)
}

// distribution copies a metric that has more than a number a point. There are none of GPUs.
func (l *labeller) distribution(m pmetric.Metric, to pmetric.ScopeMetrics, source uint64, now time.Time) {
	crowd := func(a pcommon.Map) bool {
		k := key(source, m.Name()) + hash(a)
		if _, again := l.series[k]; !again && !l.room(true, now) {
			return true
		}
		l.remember(k, series{nil, now, true})
		return false
	}
	out := to.Metrics().AppendEmpty()
	m.CopyTo(out)
	switch out.Type() {
	case pmetric.MetricTypeHistogram:
		out.Histogram().DataPoints().RemoveIf(func(p pmetric.HistogramDataPoint) bool { return crowd(p.Attributes()) })
	case pmetric.MetricTypeExponentialHistogram:
		out.ExponentialHistogram().DataPoints().RemoveIf(func(p pmetric.ExponentialHistogramDataPoint) bool { return crowd(p.Attributes()) })
	case pmetric.MetricTypeSummary:
		out.Summary().DataPoints().RemoveIf(func(p pmetric.SummaryDataPoint) bool { return crowd(p.Attributes()) })
	}
}
