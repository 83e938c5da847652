package promexporter

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// kind is the type of a family.
type kind int

const (
	gauge kind = iota
	counter
	histogram
	summary
)

// kindWords are the types' names on a page.
var kindWords = [...]string{gauge: "gauge", counter: "counter", histogram: "histogram", summary: "summary"}

// kindOf gives the family's kind and the translator's word for it; ok is false for what cannot be served.
func kindOf(m pmetric.Metric) (k kind, t otlptranslator.MetricType, ok bool) {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return gauge, otlptranslator.MetricTypeGauge, true
	case pmetric.MetricTypeSum:
		if m.Sum().IsMonotonic() {
			return counter, otlptranslator.MetricTypeMonotonicCounter, m.Sum().AggregationTemporality() != pmetric.AggregationTemporalityUnspecified
		}
		return gauge, otlptranslator.MetricTypeNonMonotonicCounter, m.Sum().AggregationTemporality() == pmetric.AggregationTemporalityCumulative
	case pmetric.MetricTypeHistogram:
		return histogram, otlptranslator.MetricTypeHistogram, m.Histogram().AggregationTemporality() != pmetric.AggregationTemporalityUnspecified
	case pmetric.MetricTypeExponentialHistogram:
		return histogram, otlptranslator.MetricTypeExponentialHistogram, m.ExponentialHistogram().AggregationTemporality() == pmetric.AggregationTemporalityCumulative
	case pmetric.MetricTypeSummary:
		return summary, otlptranslator.MetricTypeSummary, true
	}
	return 0, otlptranslator.MetricTypeUnknown, false
}

// label is one label of a series.
type label struct{ name, value string }

// labeler turns attributes into labels.
type labeler struct {
	cfg   *Config
	namer otlptranslator.LabelNamer
	names map[string]string // translated, by attribute
}

// maxNames bounds the cache of translated names: attribute names are few, unless somebody makes them up.
const maxNames = 4096

func newLabeler(cfg *Config) *labeler {
	return &labeler{cfg: cfg, namer: otlptranslator.LabelNamer{PreserveMultipleUnderscores: true}, names: map[string]string{}}
}

func (l *labeler) name(attribute string) (string, error) {
	if n, known := l.names[attribute]; known {
		return n, nil
	}
	n, err := l.namer.Build(attribute)
	if err != nil {
		return "", err
	}
	if len(l.names) >= maxNames {
		clear(l.names)
	}
	l.names[attribute] = n
	return n, nil
}

// labels gives the labels of a point, sorted by name. The resource's attributes replace the point's of the same name.
func (l *labeler) labels(res pcommon.Resource, scope pmetric.ScopeMetrics, attrs pcommon.Map) ([]label, error) {
	out := make([]label, 0, attrs.Len()+res.Attributes().Len()+2)
	var errs []error
	add := func(attribute, value string) {
		n, err := l.name(attribute)
		if err != nil {
			errs = append(errs, err)
			return
		}
		out = append(out, label{n, strings.ToValidUTF8(value, "�")})
	}
	convert := l.cfg.ResourceToTelemetry
	for k, v := range attrs.All() {
		if _, replaced := res.Attributes().Get(k); replaced && convert.Enabled && !(convert.ExcludeServiceAttributes && isService(k)) {
			continue
		}
		add(k, v.AsString())
	}
	if convert.Enabled {
		for k, v := range res.Attributes().All() {
			if !convert.ExcludeServiceAttributes || !isService(k) {
				add(k, v.AsString())
			}
		}
	}
	if !l.cfg.WithoutScopeInfo {
		s := scope.Scope()
		for k, v := range s.Attributes().All() {
			if k != "name" && k != "version" && k != "schema_url" {
				add("otel_scope_"+k, v.AsString())
			}
		}
		out = append(out, label{"otel_scope_name", s.Name()}, label{"otel_scope_version", s.Version()}, label{"otel_scope_schema_url", scope.SchemaUrl()})
	}
	if job, ok := jobOf(res.Attributes()); ok {
		out = append(out, label{"job", job})
	}
	if v, ok := res.Attributes().Get(serviceInstance); ok {
		out = append(out, label{"instance", v.AsString()})
	}
	return l.finish(out, errs)
}

func (l *labeler) finish(out []label, errs []error) ([]label, error) {
	for k, v := range l.cfg.ConstLabels {
		out = append(out, label{k, v})
	}
	slices.SortStableFunc(out, func(a, b label) int { return cmp.Compare(a.name, b.name) })
	for i := 1; i < len(out); i++ {
		if out[i].name == out[i-1].name {
			errs = append(errs, fmt.Errorf("two attributes are the label %q: rename one", out[i].name))
		}
	}
	return out, errors.Join(errs...)
}

// Attributes of resources that are the labels job and instance.
const (
	serviceName      = "service.name"
	serviceNamespace = "service.namespace"
	serviceInstance  = "service.instance.id"
)

func isService(k string) bool {
	return k == serviceName || k == serviceNamespace || k == serviceInstance
}

func jobOf(res pcommon.Map) (string, bool) {
	name, ok := res.Get(serviceName)
	if !ok {
		return "", false
	}
	if ns, ok := res.Get(serviceNamespace); ok {
		return ns.AsString() + "/" + name.AsString(), true
	}
	return name.AsString(), true
}

// target gives the labels of target_info, and ok where the resource has both a job and an instance.
func (l *labeler) target(res pcommon.Map) (out []label, ok bool) {
	job, named := jobOf(res)
	instance, there := res.Get(serviceInstance)
	if !named || !there || job == "" || instance.AsString() == "" {
		return nil, false
	}
	by := map[string]string{}
	for k, v := range res.All() {
		if isService(k) {
			continue
		}
		n, err := l.name(k)
		if err != nil {
			return nil, false
		}
		if have, twice := by[n]; twice {
			by[n] = have + ";" + v.AsString()
		} else {
			by[n] = v.AsString()
		}
	}
	by["job"], by["instance"] = job, instance.AsString()
	for n, v := range by {
		out = append(out, label{n, strings.ToValidUTF8(v, "�")})
	}
	slices.SortFunc(out, func(a, b label) int { return cmp.Compare(a.name, b.name) })
	return out, true
}
