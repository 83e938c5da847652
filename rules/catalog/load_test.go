package catalog

import (
	"strings"
	"testing"
	"testing/fstest"
)

const sound = `area: gpu
records:
- id: GPU-01
  alert: GPUMissing
  expr: 'x > 1'
  for: 1m
  severity: critical
  stability: stable
  summary: 's'
  meaning: m
  impact: i
  action: a
  thresholds:
  - {value: '1', source: 'us'}
  metrics:
    x: agent
  test:
    fires:
      'x': '0x5 2x5 0x5'
    at: 7m
    until: 12m
    below:
      'x': '0x5 1x5 0x5'
`

func TestASoundRecordLoads(t *testing.T) {
	all, err := Load(fstest.MapFS{"gpu.yaml": {Data: []byte(sound)}})
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	if r := all[0]; r.Line != 3 || r.Area != "gpu" || r.For.String() != "1m" || r.Test.Step.String() != "1m" || r.Test.Absent != silent {
		t.Errorf("%+v, test %+v", r, r.Test)
	}
}

func TestWrongRecordsAreRefusedWithFileLineAndReason(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"an unknown field", "  impact: i\n", "  impact: i\n  impcat: i\n", `gpu.yaml:12: unknown field "impcat"`},
		{"an unknown field of a test", "    at: 7m\n", "    at: 7m\n    til: 7m\n", `gpu.yaml:21: unknown field "til"`},
		{"an unknown field of the file", "area: gpu\n", "area: gpu\nareas: x\n", `gpu.yaml:2: unknown field "areas"`},
		{"an unknown area", "area: gpu", "area: gups", `gpu.yaml:1: unknown area "gups"`},
		{"no area", "area: gpu\n", "", "gpu.yaml:1: area is missing"},
		{"no expression", "  expr: 'x > 1'\n", "", "gpu.yaml:3: GPUMissing: expr is missing"},
		{"no impact", "  impact: i\n", "", "gpu.yaml:3: GPUMissing: impact is missing"},
		{"a severity of another tool", "severity: critical", "severity: page", `gpu.yaml:3: GPUMissing: severity must be one of critical, warning, info, got "page"`},
		{"an unknown stability", "stability: stable", "stability: beta", "gpu.yaml:3: GPUMissing: stability must be one of"},
		{"a duration without a unit", "for: 1m", "for: 60", `"60" is not a duration`},
		{"a malformed id", "id: GPU-01", "id: gpu1", `gpu.yaml:3: GPUMissing: id must look like THP-01, got "gpu1"`},
		{"an alert with a space", "alert: GPUMissing", "alert: GPU missing", "alert must be a name"},
		{"a stable record without a test", sound[strings.Index(sound, "  test:"):], "", "gpu.yaml:3: GPUMissing: a stable record needs a test"},
		{"a threshold without a source", ", source: 'us'", "", "a threshold needs value and source"},
		{"no metrics", "  metrics:\n    x: agent\n", "", "metrics are missing"},
		{"a test that ends before it begins", "until: 12m", "until: 7m", "test: until (7m) must be after at (7m)"},
		{"a test that fires too soon", "at: 7m", "at: 30s", "test: at (30s) is before for (1m) is over"},
		{"an experimental record in the gateway", "stability: stable", "stability: experimental\n  gateway: gpu", "an experimental record cannot run in the gateway"},
		{"no records", sound[strings.Index(sound, "records:"):], "records: {}\n", "gpu.yaml:2: records must be a list"},
		{"a list at the top", sound, "- a\n", "gpu.yaml:1: area and records are required"},
		{"no YAML", sound, "a: [\n", "gpu.yaml: "},
		{"an empty file", sound, "", "gpu.yaml:1: one document"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(sound, c.old, c.new, 1)
			if text == sound {
				t.Fatal("the case changes nothing")
			}
			all, err := Load(fstest.MapFS{"gpu.yaml": {Data: []byte(text)}})
			if err == nil || !strings.Contains(err.Error(), c.want) || all != nil {
				t.Errorf("want a refusal that says %q, got %v", c.want, err)
			}
		})
	}
}

func TestAllFaultsAreReportedAtOnceAndTakenNamesToo(t *testing.T) {
	second := strings.Replace(sound[strings.Index(sound, "- id"):], "severity: critical", "severity: bad", 1)
	_, err := Load(fstest.MapFS{"gpu.yaml": {Data: []byte(strings.Replace(sound, "stability: stable", "stability: bad", 1) + second)}})
	if err == nil {
		t.Fatal("no refusal")
	}
	for _, want := range []string{"gpu.yaml:3: GPUMissing: stability", "gpu.yaml:24: GPUMissing: severity", "gpu.yaml:24: id GPU-01 is taken by gpu.yaml:3", "gpu.yaml:24: alert GPUMissing is taken by gpu.yaml:3"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

func TestDurationsAreThoseOfPrometheus(t *testing.T) {
	for text, want := range map[string]string{"90s": "1m30s", "1h30m": "1h30m", "7d": "7d", "0s": "0s", "": "error", "m": "error", "5": "error", "1m1h": "error", "-5m": "error", "99999999999d": "error"} {
		d, err := parseDuration(text)
		got := d.String()
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
}
