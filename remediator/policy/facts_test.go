package policy

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// fieldsOf lists the leaves of a type by their paths in CEL.
func fieldsOf(prefix string, t reflect.Type) (out []string) {
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		f := t.Field(i).Type
		if f.Kind() == reflect.Struct && f.PkgPath() == reflect.TypeFor[Node]().PkgPath() {
			out = append(out, fieldsOf(prefix+"."+name, f)...)
			continue
		}
		out = append(out, prefix+"."+name)
	}
	return out
}

func TestTheTableOfFactsHasEveryFieldOnceAndOnlyThose(t *testing.T) {
	var want []string
	for root, of := range roots {
		want = append(want, fieldsOf(root, of)...)
	}
	var got []string
	for _, f := range Facts() {
		got = append(got, f.Path)
		if f.Type == "" || f.About == "" {
			t.Errorf("%s: type %q, about %q", f.Path, f.Type, f.About)
		}
		if slices.Contains([]Source{FromNode, FromJob, FromPods, FromIncident}, f.Decide) == strings.HasPrefix(f.Path, "event.") {
			t.Errorf("%s is filled from %q", f.Path, f.Decide)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("fields %v\ntable  %v", want, got)
	}
}

func TestAnExpressionOverAFactThatNothingFillsIsRefused(t *testing.T) {
	unfilled := func(f Fact) bool { return f.Path != "job.priorityClass" && f.Path != "job.labels" }
	for expr, want := range map[string]string{
		"job.priorityClass == 'high'":               "nothing fills job.priorityClass",
		"has(job.labels.team)":                      "nothing fills job.labels; nearest: node.labels, job.namespaceLabels",
		"'a' in job.labels || job.labels.a == 'b'":  "nothing fills job.labels",
		"job.priority == 'high'":                    "unknown fact job.priority",
		"job.lables.a == 'b'":                       "unknown fact job.lables",
		"node.labels.exists(k, job.labels[k] == k)": "nothing fills job.labels",
	} {
		if _, faults := compileWith(expr, unfilled); len(faults) == 0 || !strings.HasPrefix(faults[0].msg, want) {
			t.Errorf("%s: %v, want %s", expr, faults, want)
		}
	}
}

func TestAnExpressionIsHeldToTheFacts(t *testing.T) {
	for expr, want := range map[string]string{
		"job.lables.team == 'a'":                    "unknown fact job.lables; nearest: job.labels, node.labels",
		"job.priority == 'high'":                    "unknown fact job.priority; nearest: job.priorityClass",
		"event.target.gpu == 'x'":                   "unknown fact event.target.gpu; nearest: event.target.gpu_uuid",
		"dyn(job).lables == 'x'":                    "job is used as a whole; read its fields, such as job.apiVersion",
		"event.target == event.target":              "event.target is used as a whole; read its fields, such as event.target.cluster",
		"[node].exists(n, n.readi)":                 "node is used as a whole",
		"has(job.name)":                             "",
		"has(job.labels.team)":                      "",
		"has(job.lables.team)":                      "unknown fact job.lables",
		"['a'].exists(job, job == node.name)":       "", // the macro's variable hides the root
		"incident.signals.exists(s, s == job.kind)": "",
		"incident.signals.exists(s, s == job.kin)":  "unknown fact job.kin; nearest: job.kind",
		"node.labels['rack'] == 'r1' && node.rack == 'x=r1' && job.priorityClass.startsWith('prod')": "",
		"event.zzzzzzzzzz == 1": "unknown fact event.zzzzzzzzzz; docs/policy.md lists all facts",
	} {
		_, faults := compile(expr)
		switch {
		case want == "" && len(faults) > 0:
			t.Errorf("%s: %v", expr, faults)
		case want != "" && (len(faults) == 0 || faults[0].msg != want && !strings.HasPrefix(faults[0].msg, want)):
			t.Errorf("%s: %v, want %s", expr, faults, want)
		}
	}
}

func TestEveryFactCanBeReadByAnExpression(t *testing.T) {
	for _, f := range Facts() {
		expr := map[string]string{"string": "%s != ''", "int": "%s > 0", "bool": "%s", "double": "%s > 0.5", "timestamp": "%s > timestamp('2026-01-01T00:00:00Z')",
			"list(string)": "'x' in %s", "map(string, string)": "'x' in %s"}[f.Type]
		if expr == "" {
			t.Errorf("%s has type %q", f.Path, f.Type)
			continue
		}
		p, faults := compile(strings.ReplaceAll(expr, "%s", f.Path))
		if len(faults) > 0 || !slices.Equal(p.reads, []string{f.Path}) {
			t.Errorf("%s: %v", f.Path, faults)
		}
	}
}

func TestTheReadingsOfARuleAreItsFacts(t *testing.T) {
	p := Policy{Metadata: Metadata{Name: "p"}, Spec: Spec{Rules: []Rule{{Name: "r", When: When{Expr: "job.launcher && node.ready && job.launcher"}}, {Name: "s"}}}}
	var got []string
	for _, r := range Readings([]Policy{p}) {
		got = append(got, r.Policy+" "+r.Rule+" "+r.Fact.Path+" "+string(r.Fact.Simulate))
	}
	if want := []string{"p r node.ready the events", "p r job.launcher "}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFactsThatAreEmptyAreNamed(t *testing.T) {
	n := Node{Name: "a", Pool: "p", Rack: "r", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"a": "b"}, Ready: true, Unschedulable: true, Quarantined: true}
	if got := Empty(n, Job{}, Incident{}, FromNode); len(got) > 0 {
		t.Errorf("%v", got)
	}
	if got := Empty(Node{}, Job{Launcher: true}, Incident{}, FromPods); !slices.Equal(got, []string{"job.worldSize", "job.attempt", "job.restartCost"}) {
		t.Errorf("%v", got)
	}
}
