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
	Gauge       struct {
		ValueType string `yaml:"value_type"`
	} `yaml:"gauge"`
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
	check := func(name, unit, about, phase string, integer bool) {
		d, ok := md.Metrics[name]
		kind := map[bool]string{true: "int", false: "double"}[integer]
		if !ok || d.Unit != unit || d.Description != about || d.Gauge.ValueType != kind || slices.Contains(d.Attributes, "pitcrew.phase") != (phase != "") {
			t.Errorf("%s (%s, %s): metadata.yaml says %+v", name, unit, kind, d)
		}
		if phase != "" {
			phases = append(phases, phase)
		}
		seen[name] = true
	}
	for _, m := range stateMetrics {
		check(m.name, m.unit, m.about, "", m.integer)
	}
	for _, m := range stepMetrics {
		check(m.name, m.unit, m.about, m.phase, m.integer)
	}
	for name := range md.Metrics {
		if !seen[name] {
			t.Errorf("metadata.yaml names %s, which is never emitted", name)
		}
	}
	if got := md.Attributes["pitcrew.phase"].Enum; !slices.Equal(got, phases) {
		t.Errorf("phases %v, metadata.yaml says %v", phases, got)
	}
	for _, name := range []string{EventRankAttached, EventRankExited} {
		if _, ok := md.Events[name]; !ok {
			t.Errorf("metadata.yaml does not name the event %s", name)
		}
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
