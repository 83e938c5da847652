package promrulesconnector

import (
	"strconv"

	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// maxNames bounds the memory of names that were translated; it starts anew when it is full.
const maxNames = 8192

// namer gives the names that the Prometheus exporter gives: unit and _total as suffixes, dots and others as underscores.
type namer struct {
	metrics otlptranslator.MetricNamer
	labels  otlptranslator.LabelNamer
	known   map[otlptranslator.Metric]string
	label   map[string]string
}

func newNamer() *namer {
	return &namer{metrics: otlptranslator.MetricNamer{WithMetricSuffixes: true}, known: map[otlptranslator.Metric]string{}, label: map[string]string{}}
}

// metric is empty for what has no name in Prometheus.
func (n *namer) metric(m pmetric.Metric) string {
	key := otlptranslator.Metric{Name: m.Name(), Unit: m.Unit(), Type: kind(m)}
	name, ok := n.known[key]
	if !ok {
		name, _ = n.metrics.Build(key)
		if len(n.known) >= maxNames {
			clear(n.known)
		}
		n.known[key] = name
	}
	return name
}

func kind(m pmetric.Metric) otlptranslator.MetricType {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return otlptranslator.MetricTypeGauge
	case pmetric.MetricTypeSum:
		if m.Sum().IsMonotonic() {
			return otlptranslator.MetricTypeMonotonicCounter
		}
		return otlptranslator.MetricTypeNonMonotonicCounter
	case pmetric.MetricTypeHistogram:
		return otlptranslator.MetricTypeHistogram
	default:
		return otlptranslator.MetricTypeUnknown
	}
}

// add appends the labels of some attributes, names and values in turn.
func (n *namer) add(pairs []string, attrs pcommon.Map) []string {
	for k, v := range attrs.All() {
		name, ok := n.label[k]
		if !ok {
			name, _ = n.labels.Build(k)
			if len(n.label) >= maxNames {
				clear(n.label)
			}
			n.label[k] = name
		}
		if name != "" {
			pairs = append(pairs, name, v.AsString())
		}
	}
	return pairs
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
