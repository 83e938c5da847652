package ruletest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/rules"
)

// Result is what became of one test of a file.
type Result struct {
	File     string   `json:"file"`
	Name     string   `json:"name"`
	Failures []string `json:"failures"` // empty: it passed
}

// file is a test file of promtool.
type file struct {
	RuleFiles  []string       `yaml:"rule_files"`
	Interval   model.Duration `yaml:"evaluation_interval"`
	GroupOrder []string       `yaml:"group_eval_order"`
	Fuzzy      bool           `yaml:"fuzzy_compare"`
	Tests      []test         `yaml:"tests"`
}

type test struct {
	Name     string         `yaml:"name"`
	Interval model.Duration `yaml:"interval"`
	Series   []struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	} `yaml:"input_series"`
	Alerts []struct {
		At    model.Duration `yaml:"eval_time"`
		Alert string         `yaml:"alertname"`
		Want  []struct {
			Labels      map[string]string `yaml:"exp_labels"`
			Annotations map[string]string `yaml:"exp_annotations"`
		} `yaml:"exp_alerts"`
	} `yaml:"alert_rule_test"`
	Exprs []struct {
		Expr string         `yaml:"expr"`
		At   model.Duration `yaml:"eval_time"`
		Want []struct {
			Labels string  `yaml:"labels"`
			Value  float64 `yaml:"value"`
		} `yaml:"exp_samples"`
	} `yaml:"promql_expr_test"`
	ExternalLabels map[string]string `yaml:"external_labels"`
	ExternalURL    string            `yaml:"external_url"`
}

// maxSteps bounds the evaluations of one test, so that a slip such as eval_time 1y ends.
const maxSteps = 100_000

// Run runs the tests of a file in promtool's format. The error means that the file, or a rule file that it names, cannot be read.
func Run(name string) ([]Result, error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var f file
	if err := yaml.UnmarshalWithOptions(raw, &f, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(f.Tests) == 0 {
		return nil, fmt.Errorf("%s: no tests", name)
	}
	f.Interval = cmp.Or(f.Interval, model.Duration(time.Minute))
	var paths []string
	for _, pattern := range f.RuleFiles {
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(name), pattern)
		}
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			return nil, fmt.Errorf("%s: rule_files: no file matches %s", name, pattern)
		}
		paths = append(paths, found...)
	}
	out := []Result{}
	for i, t := range f.Tests {
		failures, err := f.run(t, paths)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, Result{name, cmp.Or(t.Name, fmt.Sprintf("test %d", i+1)), append([]string{}, failures...)})
	}
	return out, nil
}

// loaded reads the rules of some files in the order in which they are evaluated.
func (f *file) loaded(t test, paths []string) (out []rules.Rule, err error) {
	byGroup, order := map[string][]rules.Rule{}, []string{}
	for _, path := range paths {
		groups, errs := rulefmt.ParseFile(path, false, model.UTF8Validation, PromQL, slog.New(slog.DiscardHandler))
		if len(errs) > 0 {
			return nil, errors.Join(errs...)
		}
		for _, g := range groups.Groups {
			if byGroup[g.Name] == nil {
				order = append(order, g.Name)
			}
			for _, r := range g.Rules {
				expr, err := PromQL.ParseExpr(r.Expr)
				if err != nil {
					return nil, err
				}
				lset := maps.Clone(g.Labels)
				if lset == nil {
					lset = map[string]string{}
				}
				maps.Copy(lset, r.Labels)
				if r.Record != "" {
					byGroup[g.Name] = append(byGroup[g.Name], rules.NewRecordingRule(r.Record, expr, labels.FromMap(lset)))
					continue
				}
				byGroup[g.Name] = append(byGroup[g.Name], rules.NewAlertingRule(r.Alert, expr, time.Duration(r.For), time.Duration(r.KeepFiringFor), labels.FromMap(lset), labels.FromMap(r.Annotations),
					labels.FromMap(t.ExternalLabels), t.ExternalURL, true, slog.New(slog.DiscardHandler)))
			}
		}
	}
	rank := func(name string) int { // groups that group_eval_order does not name come first, as in promtool
		return slices.Index(f.GroupOrder, name)
	}
	slices.SortStableFunc(order, func(a, b string) int { return rank(a) - rank(b) })
	for _, name := range order {
		out = append(out, byGroup[name]...)
	}
	return out, nil
}

// run gives what is wrong in a test.
func (f *file) run(t test, paths []string) (failures []string, err error) {
	bad := func(format string, args ...any) { failures = append(failures, fmt.Sprintf(format, args...)) }
	all, err := f.loaded(t, paths)
	if err != nil {
		return nil, err
	}
	all = t.needed(all)
	s, step := &Store{}, time.Duration(f.Interval)
	for _, x := range t.Series {
		if err := s.AddSeries(x.Series, x.Values, Epoch, time.Duration(cmp.Or(t.Interval, f.Interval))); err != nil {
			bad("%v", err)
			return failures, nil
		}
	}
	end := time.Duration(0)
	for _, a := range t.Alerts {
		end = max(end, time.Duration(a.At))
	}
	for _, e := range t.Exprs {
		end = max(end, time.Duration(e.At))
	}
	if end/step > maxSteps {
		bad("%s at steps of %s are more than %d evaluations", end, step, maxSteps)
		return failures, nil
	}
	if len(t.Alerts)+len(t.Exprs) == 0 {
		bad("it expects nothing: alert_rule_test or promql_expr_test is required")
	}
	external, _ := url.Parse(t.ExternalURL)
	last := make([]map[string]labels.Labels, len(all))
	for d := time.Duration(0); d <= end; d += step {
		at := Epoch.Add(d)
		for i, r := range all {
			v, err := r.Eval(context.Background(), 0, at, rules.EngineQueryFunc(Engine, s), external, 0)
			if err != nil {
				bad("%s: rule %s: %v", model.Duration(d), r.Name(), err)
				return failures, nil
			}
			r.SetEvaluationTimestamp(at)
			last[i] = s.record(v, at, last[i])
		}
		for _, a := range t.Alerts {
			if wanted := time.Duration(a.At); wanted < d || wanted >= d+step {
				continue
			}
			var want []string
			for _, w := range a.Want {
				want = append(want, line(labels.FromMap(w.Labels), labels.FromMap(w.Annotations)))
			}
			if got := firing(all, a.Alert); !equal(got, want) {
				bad("%s: alert %s: got %s, want %s", a.At, a.Alert, listed(got), listed(want))
			}
		}
	}
	for _, e := range t.Exprs {
		v, err := s.Instant(e.Expr, Epoch.Add(time.Duration(e.At)))
		if err != nil {
			bad("%s: %s: %v", e.At, e.Expr, err)
			continue
		}
		var got, want []string
		left := slices.Clone(v)
		for _, w := range e.Want {
			lset, err := PromQL.ParseMetric(w.Labels)
			if err != nil {
				bad("%s: labels %s: %v", e.At, w.Labels, err)
				continue
			}
			want = append(want, fmt.Sprintf("%s %v", lset, w.Value))
			if i := slices.IndexFunc(left, func(x promql.Sample) bool { return labels.Equal(x.Metric, lset) && f.same(x.F, w.Value) }); i >= 0 {
				left = slices.Delete(left, i, i+1)
			}
		}
		for _, x := range v {
			got = append(got, fmt.Sprintf("%s %v", x.Metric, x.F))
		}
		if len(left) > 0 || len(got) != len(want) {
			bad("%s: %s: got %s, want %s", e.At, e.Expr, listed(got), listed(want))
		}
	}
	return failures, nil
}

// needed leaves out alerting rules of which the test asks nothing, unless something reads the series of alerts.
func (t *test) needed(all []rules.Rule) []rules.Rule {
	reads := func(expr string) bool { return strings.Contains(expr, "ALERTS") || strings.Contains(expr, "__name__") }
	for _, e := range t.Exprs {
		if reads(e.Expr) {
			return all
		}
	}
	if slices.ContainsFunc(all, func(r rules.Rule) bool { return reads(r.Query().String()) }) {
		return all
	}
	return slices.DeleteFunc(all, func(r rules.Rule) bool {
		_, alerts := r.(*rules.AlertingRule)
		asked := false
		for _, a := range t.Alerts {
			asked = asked || a.Alert == r.Name()
		}
		return alerts && !asked
	})
}

// same compares values, with fuzzy_compare also their neighbors.
func (f *file) same(a, b float64) bool {
	return a == b || math.IsNaN(a) && math.IsNaN(b) || f.Fuzzy && (math.Nextafter(a, math.Inf(1)) == b || math.Nextafter(a, math.Inf(-1)) == b)
}

// record stores the results of a rule, and ends the series that it had before and has no more.
func (s *Store) record(v promql.Vector, at time.Time, before map[string]labels.Labels) map[string]labels.Labels {
	now := map[string]labels.Labels{}
	for _, x := range v {
		s.append(x.Metric, sample{t: at.UnixMilli(), v: x.F, h: x.H})
		now[x.Metric.String()] = x.Metric
	}
	for key, lset := range before {
		if _, still := now[key]; !still {
			s.Add(lset, at, math.Float64frombits(value.StaleNaN))
		}
	}
	return now
}

// firing lists the alerts of a name that fire.
func firing(all []rules.Rule, name string) (out []string) {
	for _, r := range all {
		if a, ok := r.(*rules.AlertingRule); ok && a.Name() == name {
			for _, x := range a.ActiveAlerts() {
				if x.State == rules.StateFiring {
					out = append(out, line(x.Labels, x.Annotations))
				}
			}
		}
	}
	return out
}

// line is an alert in words. The label alertname, which Prometheus adds, is left out.
func line(lset, notes labels.Labels) string {
	return labels.NewBuilder(lset).Del(labels.AlertName).Labels().String() + " " + notes.String()
}

func equal(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func listed(all []string) string {
	if len(all) == 0 {
		return "nothing"
	}
	return strings.Join(slices.Sorted(slices.Values(all)), "; ")
}
