package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pitcrew/pitcrew/docs/runbooks"
)

const header = "# Generated from rules/catalog: edit the record there, then run `make golden`.\n"

// Page is the path of the record's runbook page below docs/runbooks.
func (r *Record) Page() string { return r.Alert + ".md" }

// labels that the alert has besides those of its series.
func (r *Record) labels() map[string]string {
	out := map[string]string{"severity": r.Severity, "area": r.Area}
	if node := r.nodeTemplate(); node != "" {
		out["node"] = node
	}
	return out
}

// annotations in the order in which they are written.
func (r *Record) annotations() [][2]string {
	return [][2]string{{"summary", r.Summary}, {"description", r.Impact}, {"runbook_url", runbooks.URL(runbooks.DefaultBase, r.Alert)}}
}

// quote writes text as a YAML scalar on one line.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// rule writes the record as a rule of a group.
func (r *Record) rule(b *strings.Builder) {
	fmt.Fprintf(b, "  - alert: %s\n    expr: %s\n", r.Alert, quote(r.Expr))
	if r.For > 0 {
		fmt.Fprintf(b, "    for: %s\n", r.For)
	}
	if r.KeepFiringFor > 0 {
		fmt.Fprintf(b, "    keep_firing_for: %s\n", r.KeepFiringFor)
	}
	node := ""
	if from := r.nodeTemplate(); from != "" {
		node = ", node: " + quote(from)
	}
	fmt.Fprintf(b, "    labels: {severity: %s, area: %s%s}\n    annotations:\n", r.Severity, r.Area, node)
	for _, a := range r.annotations() {
		fmt.Fprintf(b, "      %s: %s\n", a[0], quote(a[1]))
	}
}

// RuleFiles renders the Prometheus rule files by their path below rules/. alerts.yaml holds the alerts that a gateway can evaluate,
// prometheus/AREA.yaml the other stable ones, and experimental/AREA.yaml what is not stable yet.
func RuleFiles(all []Record) map[string]string {
	out := map[string]string{}
	group := func(file, name, interval string, in func(*Record) bool) {
		var b strings.Builder
		for i := range all {
			if in(&all[i]) {
				all[i].rule(&b)
			}
		}
		if b.Len() == 0 {
			return
		}
		if out[file] == "" {
			out[file] = header + "groups:\n"
		}
		out[file] += "- name: " + name + "\n" + interval + "  rules:\n" + b.String()
	}
	var gateways []string
	for i := range all {
		if g := all[i].Gateway; g != "" && !slices.Contains(gateways, g) {
			gateways = append(gateways, g)
		}
	}
	slices.Sort(gateways)
	for _, g := range gateways {
		group("alerts.yaml", g, "  interval: 5s\n", func(r *Record) bool { return r.Gateway == g })
	}
	for _, a := range Areas {
		group("prometheus/"+a.Name+".yaml", "pitcrew-"+a.Name, "", func(r *Record) bool {
			return r.Area == a.Name && r.Gateway == "" && r.Stability == "stable"
		})
		group("experimental/"+a.Name+".yaml", "pitcrew-experimental-"+a.Name, "", func(r *Record) bool {
			return r.Area == a.Name && r.Stability == "experimental"
		})
	}
	return out
}

// ruleFile is the path of the file with the record's rule, below rules/.
func (r *Record) ruleFile() string {
	switch {
	case r.Gateway != "":
		return "alerts.yaml"
	case r.Stability == "stable":
		return "prometheus/" + r.Area + ".yaml"
	}
	return "experimental/" + r.Area + ".yaml"
}

// Moment is what a unit test expects of an alert at one time.
type Moment struct {
	At     Duration
	Firing []Firing // empty: it does not fire
}

// Firing is one alert with everything that Prometheus made of it.
type Firing struct {
	Labels, Annotations map[string]string
}

// Timeline is one of a record's test: its fault that comes and goes, what stays just below, and the first event of a new series.
type Timeline struct {
	Name      string
	Series    map[string]string
	At, Until Duration // between which the alert fires; both 0: it never fires
}

// Names of timelines.
const (
	comesAndGoes = "fires and clears"
	justBelow    = "just below"
	firstEvent   = "the first event of a new series"
)

// Timelines gives those of the record, of which the third is only there for sparse counters.
func (t *Test) Timelines() []Timeline {
	below := map[string]string{}
	maps.Copy(below, t.Fires)
	maps.Copy(below, t.Below)
	all := []Timeline{{comesAndGoes, t.Fires, t.At, t.Until}, {justBelow, below, 0, 0}}
	if t.First != nil {
		all = append(all, Timeline{firstEvent, t.First.Series, t.First.At, t.First.Until})
	}
	return all
}

// UnitTests renders `promtool test rules` files by their path below rules/. expect gives what is expected of a record's alert in the
// timeline of its fault.
func UnitTests(all []Record, expect func(*Record, Timeline) []Moment) map[string]string {
	out := map[string]string{}
	for i := range all {
		r := &all[i]
		if r.Test == nil {
			continue
		}
		file := fmt.Sprintf("tests/%s-%s.yaml", strings.TrimSuffix(strings.ReplaceAll(r.ruleFile(), "/", "-"), ".yaml"), r.Test.Step)
		if out[file] == "" { // promtool evaluates all tests of a file at one interval
			out[file] = header + fmt.Sprintf("# promtool test rules rules/tests/*.yaml, with promtool of Prometheus 3\nrule_files: [../%s]\nevaluation_interval: %s\ntests:\n", r.ruleFile(), r.Test.Step)
		}
		var b strings.Builder
		for _, line := range r.Test.Timelines() {
			at := []Moment{{At: r.Test.At}, {At: r.Test.Until - r.Test.Step}}
			if line.Until > 0 {
				at = expect(r, line)
			}
			r.unitTest(&b, line.Name, line.Series, at)
		}
		out[file] += b.String()
	}
	return out
}

func (r *Record) unitTest(b *strings.Builder, name string, series map[string]string, moments []Moment) {
	fmt.Fprintf(b, "- name: %s\n  interval: %s\n  input_series:\n", quote(r.Alert+": "+name), r.Test.Step)
	for _, s := range slices.Sorted(maps.Keys(series)) {
		fmt.Fprintf(b, "  - {series: %s, values: %s}\n", quote(s), quote(series[s]))
	}
	fmt.Fprintf(b, "  alert_rule_test:\n")
	for _, m := range moments {
		fmt.Fprintf(b, "  - {eval_time: %s, alertname: %s, exp_alerts: [", m.At, r.Alert)
		for i, f := range m.Firing {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(b, "{exp_labels: %s, exp_annotations: %s}", flow(f.Labels), flow(f.Annotations))
		}
		b.WriteString("]}\n")
	}
}

// flow writes a map of text as YAML on one line.
func flow(m map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k+": "+quote(m[k]))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
