package torchreceiver

import (
	"os"
	"slices"
	"testing"

	"github.com/goccy/go-yaml"
)

type described struct {
	Description string   `yaml:"description"`
	Unit        string   `yaml:"unit"`
	Attributes  []string `yaml:"attributes"`
	Gauge       *struct {
		ValueType string `yaml:"value_type"`
	} `yaml:"gauge"`
	Sum *struct {
		ValueType   string `yaml:"value_type"`
		Monotonic   bool   `yaml:"monotonic"`
		Temporality string `yaml:"aggregation_temporality"`
	} `yaml:"sum"`
}

func TestTheTablesAndMetadataSayTheSame(t *testing.T) {
	raw, err := os.ReadFile("metadata.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var md struct {
		Type       string `yaml:"type"`
		Attributes map[string]struct {
			Enum []string `yaml:"enum"`
		} `yaml:"attributes"`
		Metrics map[string]described `yaml:"metrics"`
		Events  map[string]described `yaml:"events"`
	}
	if err := yaml.Unmarshal(raw, &md); err != nil {
		t.Fatal(err)
	}
	if md.Type != Type.String() {
		t.Errorf("type %q", md.Type)
	}
	seen, phases := map[string]bool{}, []string{}
	check := func(m about, phase string, unit bool) {
		d, ok := md.Metrics[m.name]
		valueType := map[bool]string{true: "int", false: "double"}[m.kind.integer]
		same := d.Gauge != nil && d.Gauge.ValueType == valueType
		if m.kind.sum {
			same = d.Sum != nil && d.Sum.ValueType == valueType && d.Sum.Monotonic && d.Sum.Temporality == "cumulative"
		}
		if !ok || !same || d.Unit != m.unit || d.Description != m.text ||
			slices.Contains(d.Attributes, "pitcrew.phase") != (phase != "") || slices.Contains(d.Attributes, "pitcrew.unit") != unit {
			t.Errorf("%s (%s, %s): metadata.yaml says %+v", m.name, m.unit, valueType, d)
		}
		if phase != "" {
			phases = append(phases, phase)
		}
		seen[m.name] = true
	}
	check(info, "", false)
	for _, m := range slices.Concat(lifeMetrics, stateMetrics) {
		check(m.about, "", false)
	}
	for _, m := range []about{enqueued, completed, overBudget} {
		check(m, "", false)
	}
	for _, m := range slices.Concat(paceMetrics, detailMetrics) {
		check(m.about, m.phase, m.unit)
	}
	for name := range md.Metrics {
		if !seen[name] {
			t.Errorf("metadata.yaml names %s, which is never emitted", name)
		}
	}
	if got := md.Attributes["pitcrew.phase"].Enum; !slices.Equal(got, phases) {
		t.Errorf("phases %v, metadata.yaml says %v", phases, got)
	}
	for _, list := range []map[string]described{md.Metrics, md.Events} {
		for name, d := range list {
			for _, a := range d.Attributes {
				if _, ok := md.Attributes[a]; !ok {
					t.Errorf("%s has the attribute %s, which is not described", name, a)
				}
			}
		}
	}
}
