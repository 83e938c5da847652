package catalog

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/rules"

	"github.com/pitcrew/pitcrew/rules/ruletest"
)

var update = flag.Bool("update", false, "rewrite the files that are generated from the catalog")

const (
	ruleFolder = ".."
	pageFolder = "../../docs/runbooks"
)

func (r *Record) notes() labels.Labels {
	m := map[string]string{}
	for _, a := range r.annotations() {
		m[a[0]] = a[1]
	}
	return labels.FromMap(m)
}

// moments are what Prometheus makes of the record's alert: before it fires, when it begins, at the last evaluation and after it.
func moments(t *testing.T, r *Record, l Timeline) []Moment {
	step := r.Test.Step
	fault, err := store(time.Duration(step), l.Series)
	if err != nil {
		t.Fatalf("%s:%d: %v", r.File, r.Line, err)
	}
	at := []Duration{l.At - step, l.At, l.Until - step, l.Until}
	seen := map[Duration][]Firing{}
	firing(t, alertingRule(t, r, r.condition(), r.notes()), rules.EngineQueryFunc(ruletest.Engine, fault), time.Duration(step), fault.end, func(d time.Duration, rule *rules.AlertingRule) {
		for _, a := range rule.ActiveAlerts() {
			if a.State == rules.StateFiring {
				m := a.Labels.Map()
				delete(m, "alertname")
				seen[Duration(d)] = append(seen[Duration(d)], Firing{m, a.Annotations.Map()})
			}
		}
	})
	var out []Moment
	for _, d := range slices.Compact(at) {
		if d >= 0 {
			slices.SortFunc(seen[d], func(a, b Firing) int { return strings.Compare(flow(a.Labels), flow(b.Labels)) })
			out = append(out, Moment{d, seen[d]})
		}
	}
	return out
}

// generated gives every file that is made of the catalog, by its path.
func generated(t *testing.T, all []Record) map[string]string {
	out := map[string]string{}
	for name, text := range RuleFiles(all) {
		out[filepath.Join(ruleFolder, name)] = text
	}
	for name, text := range UnitTests(all, func(r *Record, l Timeline) []Moment { return moments(t, r, l) }) {
		out[filepath.Join(ruleFolder, name)] = text
	}
	for name, text := range RecordingFiles(recordings(t)) {
		out[filepath.Join(ruleFolder, name)] = text
	}
	out[filepath.Join(ruleFolder, InhibitFile)] = InhibitRules(all)
	out["../../docs/alerts.md"] = Table(all)
	for i := range all {
		if all[i].Stability == "stable" {
			path := filepath.Join(pageFolder, all[i].Page())
			old, _ := os.ReadFile(path)
			out[path] = all[i].PageOf(string(old))
		}
	}
	index := filepath.Join(pageFolder, "README.md")
	old, err := os.ReadFile(index)
	if err != nil {
		t.Fatal(err)
	}
	if out[index], err = WithIndex(string(old), Index(all)); err != nil {
		t.Fatalf("%s: %v", index, err)
	}
	return out
}

func TestWhatIsGeneratedFromTheCatalogIsUpToDate(t *testing.T) {
	want := generated(t, shippedRecords(t))
	for path, text := range want {
		got, err := os.ReadFile(path)
		if string(got) == text {
			continue
		}
		if !*update {
			t.Errorf("%s differs from the catalog (%v): run make golden", path, err)
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, folder := range []string{"prometheus", "experimental", "tests"} { // of records that are gone
		there, err := filepath.Glob(filepath.Join(ruleFolder, folder, "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range there {
			if _, ok := want[path]; ok {
				continue
			}
			if !*update {
				t.Errorf("%s: no record is made of it: run make golden", path)
			} else if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
}
