package dcgmreceiver

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pitcrew/pitcrew/semconv"
)

// attributesOf is what the points of a row's metric may carry.
func attributesOf(f Field) []string {
	switch f.Name {
	case semconv.GPUStatus:
		return []string{semconv.HWID, semconv.HWPCI}
	case semconv.GPUInfo:
		return []string{semconv.HWID, semconv.GPUIndex, semconv.HWPCI, semconv.HWModel, semconv.HWSerialNumber, semconv.HWDriverVersion}
	case semconv.GPUMIGInfo:
		return []string{semconv.HWID, semconv.HWParent, semconv.GPUIndex, semconv.MIG, semconv.MIGProfile, semconv.MIGUUID}
	case semconv.GPUTopology:
		return []string{semconv.HWID, semconv.GPUPeer, semconv.GPUPath}
	case semconv.GPUHealth:
		return []string{semconv.HWID, semconv.GPUHealthSystem}
	case semconv.NVSwitchStatus:
		return []string{semconv.HWID, semconv.NVSwitchIndex, semconv.HWPCI}
	case semconv.NVLinkLinks:
		return []string{semconv.HWID, semconv.NVLinkState}
	case semconv.NVLinkTransitions:
		return []string{semconv.HWID}
	}
	if f.Level == NodeLevel {
		return []string{}
	}
	out := []string{semconv.HWID}
	if slices.ContainsFunc(Fields, func(g Field) bool { return g.Name == f.Name && g.perInstance() }) {
		out = append(out, semconv.HWParent, semconv.MIG, semconv.MIGProfile)
	}
	if strings.HasPrefix(f.Name, "hw.") {
		out = append(out, semconv.HWType)
	}
	if f.Level == LinkLevel || f.Level == SwitchLinkLevel {
		out = append(out, semconv.NVLinkLink)
	}
	if f.Attr.Key != "" {
		out = append(out, f.Attr.Key)
	}
	return out
}

type metadata struct {
	Type       string `yaml:"type"`
	Attributes map[string]struct {
		Enum []string `yaml:"enum"`
	} `yaml:"attributes"`
	Metrics map[string]struct {
		Enabled     bool   `yaml:"enabled"`
		Description string `yaml:"description"`
		Unit        string `yaml:"unit"`
		Gauge       *struct {
			ValueType string `yaml:"value_type"`
		} `yaml:"gauge"`
		Sum *struct {
			ValueType   string `yaml:"value_type"`
			Monotonic   bool   `yaml:"monotonic"`
			Temporality string `yaml:"aggregation_temporality"`
		} `yaml:"sum"`
		Attributes []string `yaml:"attributes"`
		DCGM       []struct {
			ID         uint16 `yaml:"id"`
			Name       string `yaml:"name"`
			Prometheus string `yaml:"prometheus"`
			Value      string `yaml:"value"`
		} `yaml:"dcgm"`
	} `yaml:"metrics"`
	Events map[string]struct {
		Attributes []string `yaml:"attributes"`
	} `yaml:"events"`
}

func TestMetadataAndTheTableAreOne(t *testing.T) {
	raw, err := os.ReadFile("metadata.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var meta metadata
	if err := yaml.Unmarshal(raw, &meta); err != nil {
		t.Fatal(err)
	}
	if meta.Type != Type.String() {
		t.Errorf("type is %s", meta.Type)
	}
	inTable := map[string]bool{}
	enums := map[string][]string{}
	for _, f := range slices.Concat(own, Fields) {
		inTable[f.Name] = true
		m, ok := meta.Metrics[f.Name]
		if !ok {
			t.Errorf("%s is not in metadata.yaml", f.Name)
			continue
		}
		enabled := slices.ContainsFunc(slices.Concat(own, Fields), func(g Field) bool { return g.Name == f.Name && !g.Optional })
		if m.Unit != f.Unit || m.Description != f.Desc || m.Enabled != enabled {
			t.Errorf("%s: unit %q, %q, enabled %v; the table has %q, %q, %v", f.Name, m.Unit, m.Description, m.Enabled, f.Unit, f.Desc, enabled)
		}
		if sum := f.Kind == Counter || f.Kind == UpDown; sum != (m.Sum != nil) || sum == (m.Gauge != nil) || sum && m.Sum.Monotonic != (f.Kind == Counter) {
			t.Errorf("%s is a %v in the table", f.Name, f.Kind)
		}
		if want := attributesOf(f); !slices.Equal(m.Attributes, want) {
			t.Errorf("%s: attributes %v, want %v", f.Name, m.Attributes, want)
		}
		for _, a := range m.Attributes {
			if _, ok := meta.Attributes[a]; !ok {
				t.Errorf("%s: attribute %s is not declared", f.Name, a)
			}
		}
		if f.ID == 0 {
			continue
		}
		found := false
		for _, d := range m.DCGM {
			found = found || d.ID == f.ID && d.Name == f.DCGM && d.Prometheus == f.PrometheusName() && d.Value == f.Attr.Value
		}
		if !found {
			t.Errorf("%s lacks field %d", f.Name, f.ID)
		}
		if f.Kind == Flags {
			for _, r := range clockReasons {
				enums[f.Attr.Key] = append(enums[f.Attr.Key], r.name)
			}
		} else if f.Attr.Key != "" {
			enums[f.Attr.Key] = append(enums[f.Attr.Key], f.Attr.Value)
		}
	}
	for name, m := range meta.Metrics {
		if !inTable[name] {
			t.Errorf("%s is in metadata.yaml alone", name)
		}
		for _, d := range m.DCGM {
			if f, ok := FieldByID(d.ID); !ok || f.Name != name {
				t.Errorf("%s claims field %d", name, d.ID)
			}
		}
	}
	for key, values := range enums {
		for _, v := range values {
			if !slices.Contains(meta.Attributes[key].Enum, v) {
				t.Errorf("attribute %s lacks %q", key, v)
			}
		}
	}
	if got := slices.Sorted(maps.Keys(meta.Events)); !slices.Equal(got, []string{EventViolation, EventTransition}) {
		t.Errorf("events are %v", got)
	}
}

func TestTheTableHoldsEachCoreFieldOnce(t *testing.T) {
	core := []uint16{
		4, 67, 100, 101, 112, 140, 150, 153, 155, 156, 164, 170, 171, 174, 175, 190, 202, 203, 230, 237, 238, 240, 241, 243, 245, 247,
		250, 252, 300, 310, 311, 312, 313, 342, 343, 346, 385, 389, 393, 394, 395, 396, 409, 419, 429, 439, 449, 1420, 1422, 1423,
		1424, 1501, 1507, 1508, 1523,
	}
	var got []uint16
	series := map[string]uint16{}
	for _, f := range Fields {
		if !f.Optional && f.Level != SwitchLevel { // a node without switches has none
			got = append(got, f.ID)
		}
		k := f.Name + "\x00" + f.Attr.Key + "\x00" + f.Attr.Value
		if other, dup := series[k]; dup {
			t.Errorf("fields %d and %d are one series", other, f.ID)
		}
		series[k] = f.ID
		if f.Unit == "" || f.Desc == "" || f.Scale == 0 || f.DCGM == "" {
			t.Errorf("field %d is incomplete: %+v", f.ID, f)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, core) {
		t.Errorf("core fields are %v, want %v", got, core)
	}
}

func TestRowsOfOneMetricAgree(t *testing.T) {
	first := map[string]Field{}
	for _, f := range Fields {
		g, ok := first[f.Name]
		if !ok {
			first[f.Name] = f
			continue
		}
		if f.Unit != g.Unit || f.Kind != g.Kind || f.Desc != g.Desc || f.Level != g.Level || f.Attr.Key != g.Attr.Key || f.Attr.Value == "" {
			t.Errorf("fields %d and %d of %s differ", g.ID, f.ID, f.Name)
		}
	}
}

func TestDashboardsOfDcgmExporterFindTheirNames(t *testing.T) {
	for _, c := range []struct {
		metric string
		attr   []string
		want   string
	}{
		{"hw.gpu.utilization", []string{"general"}, "DCGM_FI_DEV_GPU_UTIL"},
		{"hw.temperature", []string{"gpu"}, "DCGM_FI_DEV_GPU_TEMP"},
		{"hw.gpu.memory.usage", nil, "DCGM_FI_DEV_FB_USED"},
		{"pitcrew.gpu.xid", nil, "DCGM_FI_DEV_XID_ERRORS"},
		{"pitcrew.gpu.nvlink.throughput", nil, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"},
		{"hw.power", nil, "DCGM_FI_DEV_POWER_USAGE"},
		{"pitcrew.gpu.throttle", nil, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"},
		{"hw.errors", []string{"uncorrected"}, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"},
		{"pitcrew.gpu.row_remap.failed", nil, "DCGM_FI_DEV_ROW_REMAP_FAILURE"},
	} {
		if got, ok := PrometheusName(c.metric, c.attr...); !ok || got != c.want {
			t.Errorf("PrometheusName(%q, %q) = %q, %v; want %q", c.metric, c.attr, got, ok, c.want)
		}
	}
	for _, metric := range []string{"hw.errors", "pitcrew.gpu.status", "nonsense"} {
		if got, ok := PrometheusName(metric); ok {
			t.Errorf("PrometheusName(%q) = %q", metric, got)
		}
	}
}

func ExamplePrometheusName() {
	fmt.Println(PrometheusName("hw.errors", "corrected"))
	// Output: DCGM_FI_DEV_ECC_SBE_VOL_TOTAL true
}
