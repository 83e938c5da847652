package ruletest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What promtool accepts of the generated files, this package accepts, and a change of any expectation fails.
func TestEachGeneratedUnitTestPasses(t *testing.T) {
	files, err := filepath.Glob("../tests/*.yaml")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	tests := 0
	for _, file := range files {
		all, err := Run(file)
		if err != nil {
			t.Errorf("%v", err)
		}
		for _, r := range all {
			tests++
			for _, f := range r.Failures {
				t.Errorf("%s: %s: %s", r.File, r.Name, f)
			}
		}
	}
	if tests < 250 {
		t.Errorf("only %d tests", tests)
	}
}

const (
	ruleFile = `groups:
- name: g
  rules:
  - record: job:x:sum
    expr: sum by (job) (x)
  - alert: High
    expr: job:x:sum > 5
    for: 2m
    labels: {severity: critical}
    annotations: {summary: 'job {{ $labels.job }} has {{ $value }}'}
`
	testFile = `rule_files: [rules.yaml]
evaluation_interval: 1m
tests:
- name: high
  interval: 1m
  input_series:
  - {series: 'x{job="a",i="1"}', values: '1x3 4x10 _x5'}
  - {series: 'x{job="a",i="2"}', values: '2x19'}
  alert_rule_test:
  - {eval_time: 5m, alertname: High, exp_alerts: []}
  - {eval_time: 6m, alertname: High, exp_alerts: [{exp_labels: {job: a, severity: critical}, exp_annotations: {summary: job a has 6}}]}
  promql_expr_test:
  - {expr: 'job:x:sum', eval_time: 4m, exp_samples: [{labels: 'job:x:sum{job="a"}', value: 6}]}
  - {expr: 'ALERTS{alertstate="firing"}', eval_time: 19m, exp_samples: []}
`
)

func written(t *testing.T, rules, tests string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"rules.yaml": rules, "tests.yaml": tests} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "tests.yaml")
}

func TestATestPassesAndEachWrongExpectationFails(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"as it is":                  {"", "", ""},
		"it fires and should not":   {"eval_time: 5m, alertname: High", "eval_time: 7m, alertname: High", "7m: alert High: got {job="},
		"it should fire and is not": {"eval_time: 6m, alertname: High", "eval_time: 2m, alertname: High", "2m: alert High: got nothing"},
		"another label":             {"job: a, severity", "job: b, severity", "6m: alert High"},
		"another annotation":        {"job a has 6", "job a has 7", "6m: alert High"},
		"another value":             {"value: 6", "value: 7", `4m: job:x:sum: got {__name__="job:x:sum", job="a"} 6, want {__name__="job:x:sum", job="a"} 7`},
		"a sample too many":         {"exp_samples: []", "exp_samples: [{labels: 'ALERTS', value: 1}]", "19m: ALERTS"},
		"a series that is none":     {"'1x3 4x10 _x5'", "'1xx'", "series x{job="},
		"a query that is none":      {"expr: 'job:x:sum'", "expr: 'job:x:sum('", "4m: job:x:sum("},
		"a year of evaluations":     {"eval_time: 19m", "eval_time: 1y", "evaluations"},
	} {
		all, err := Run(written(t, ruleFile, strings.Replace(testFile, c.old, c.new, 1)))
		if err != nil || len(all) != 1 {
			t.Errorf("%s: %v, %v", name, all, err)
			continue
		}
		got := strings.Join(all[0].Failures, "\n")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestAFileThatCannotBeReadIsAnError(t *testing.T) {
	for name, c := range map[string]struct{ rules, tests, want string }{
		"an unknown field":  {ruleFile, strings.Replace(testFile, "interval: 1m\n  input", "intervall: 1m\n  input", 1), "intervall"},
		"no rule file":      {ruleFile, strings.Replace(testFile, "rules.yaml", "rule.yaml", 1), "no file matches"},
		"a wrong rule file": {strings.Replace(ruleFile, "sum by (job) (x)", "sum by (job (x)", 1), testFile, "parse"},
		"no tests":          {ruleFile, "rule_files: [rules.yaml]\n", "no tests"},
	} {
		if all, err := Run(written(t, c.rules, c.tests)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v", name, all, err)
		}
	}
	if _, err := Run(filepath.Join(t.TempDir(), "none.yaml")); err == nil {
		t.Error("a file that is not there passes")
	}
}
