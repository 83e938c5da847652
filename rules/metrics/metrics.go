// Package metrics reads the definitions of the metrics that alerts, recordings and dashboards may ask for: rules/metrics.tsv, and the
// metadata.yaml of our own components.
//
// It promises Prometheus' names and every label that a component can set. It does not know what an exporter of others emits beyond
// its row in metrics.tsv. Tests use it; no program does.
package metrics

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/otlptranslator"

	"github.com/pitcrew/pitcrew/semconv"
)

// Known is a row of metrics.tsv.
type Known struct {
	Exporter string
	Source   string // where the exporter documents the metric
	Sparse   bool   // a series appears with its first event, at 1 or more: increase() does not see that event
}

// sparse is the fourth column of such a row.
const sparse = "sparse"

// Table reads rules/metrics.tsv below the root of the project. A metric has a row for each exporter that emits it.
func Table(root string) (map[string][]Known, error) {
	raw, err := os.ReadFile(filepath.Join(root, "rules/metrics.tsv"))
	if err != nil {
		return nil, err
	}
	out := map[string][]Known{}
	for i, line := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
		if i == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) < 3 || len(f) > 4 || f[0] == "" || f[1] == "" || f[2] == "" || len(f) == 4 && f[3] != sparse {
			return nil, fmt.Errorf("metrics.tsv:%d: want name, exporter, source and, for counters that appear with their first event, %s: %q", i+1, sparse, line)
		}
		out[f[0]] = append(out[f[0]], Known{f[1], f[2], len(f) == 4})
	}
	return out, nil
}

// Emitted is a metric of a component of ours, as Prometheus sees it.
type Emitted struct {
	Exporter string   // agent, dcgm or collector
	Labels   []string // that its series can have, without those of the scrape
	Sparse   bool     // as Known.Sparse
}

// labelsOfDCGM are those of dcgm-exporter's names.
var labelsOfDCGM = []string{"gpu", "UUID", "device", "modelName", "Hostname", "pci_bus_id", "namespace", "pod", "container", "GPU_I_ID", "GPU_I_PROFILE", "err_code", "err_msg"}

// component is a metadata.yaml.
type component struct {
	Resource  map[string]any `yaml:"resource_attributes"`
	Metrics   map[string]metric
	Telemetry struct{ Metrics map[string]metric }
}

type metric struct {
	Unit       string
	Sum        *struct{ Monotonic, Async bool }
	Attributes []string
	DCGM       []struct{ Prometheus string }
}

// Components reads each metadata.yaml below the root of the project and gives the metrics by Prometheus' name.
func Components(root string) (map[string]Emitted, error) {
	lists, err := filepath.Glob(filepath.Join(root, "[rc]*/*/metadata.yaml")) // of receivers and of the collector's own components
	if err != nil {
		return nil, err
	}
	if len(lists) < 8 {
		return nil, fmt.Errorf("only %d components have a metadata.yaml below %s", len(lists), root)
	}
	out := map[string]Emitted{}
	for _, list := range lists {
		raw, err := os.ReadFile(list)
		if err != nil {
			return nil, err
		}
		var file component
		if err := yaml.UnmarshalWithOptions(raw, &file, yaml.AllowDuplicateMapKey()); err != nil {
			return nil, fmt.Errorf("%s: %w", list, err)
		}
		resource := spelled(slices.Collect(maps.Keys(file.Resource))...)
		for name, m := range file.Metrics {
			made, err := m.name(name)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", list, name, err)
			}
			labels := slices.Concat(spelled(m.Attributes...), resource, spelled(semconv.K8sNodeName)) // a container's series are of the agent's resource
			if slices.Contains(m.Attributes, semconv.HWID) && !slices.Contains(m.Attributes, semconv.K8sPodUID) {
				labels = append(labels, spelled(semconv.K8sNamespaceName, semconv.K8sPodName, semconv.K8sContainerName, semconv.JobName, semconv.Rank)...) // by collector/podlabels
			}
			out[made] = Emitted{Exporter: "agent", Labels: labels}
			for _, f := range m.DCGM {
				out[f.Prometheus] = Emitted{Exporter: "dcgm", Labels: labelsOfDCGM}
			}
		}
		for name, m := range file.Telemetry.Metrics { // the collector exports its own metrics without suffixes
			out[spelled(name)[0]] = Emitted{"collector", spelled(m.Attributes...), m.Sum != nil && m.Sum.Monotonic && !m.Sum.Async}
		}
	}
	return out, nil
}

func spelled(names ...string) (out []string) {
	for _, n := range names {
		out = append(out, strings.ReplaceAll(n, ".", "_"))
	}
	return out
}

// name is that of Prometheus.
func (m metric) name(name string) (string, error) {
	kind := otlptranslator.MetricType(otlptranslator.MetricTypeGauge)
	if m.Sum != nil {
		kind = otlptranslator.MetricTypeNonMonotonicCounter
		if m.Sum.Monotonic {
			kind = otlptranslator.MetricTypeMonotonicCounter
		}
	}
	namer := otlptranslator.MetricNamer{WithMetricSuffixes: true}
	return namer.Build(otlptranslator.Metric{Name: name, Unit: m.Unit, Type: kind})
}
