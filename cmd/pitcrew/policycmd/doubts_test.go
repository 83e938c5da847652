package policycmd

import (
	"encoding/json"
	"strings"
	"testing"
)

const oneRule = "apiVersion: pitcrew.dev/v1alpha1\nkind: RemediationPolicy\nmetadata: {name: p}\nspec:\n  order: 1\n%APPLIES%  rules:\n  - {name: r, when: {%WHEN%}, steps: [{do: cordon}]}\n"

func policyFile(t *testing.T, when, applies string) string {
	t.Helper()
	return file(t, "p.yaml", strings.NewReplacer("%WHEN%", when, "%APPLIES%", applies).Replace(oneRule))
}

func TestCheckWarnsOfCodesThatNoTableListsAndFailsIfStrict(t *testing.T) {
	for when, want := range map[string]string{
		"signal: xid/790":              `signal "xid/790": this version reports no such xid; nearest: xid/79`,
		"signal: [xid/79, sxid/99999]": `signal "sxid/99999": this version reports no such sxid`,
		"signal: [xid/79, xid/*]":      "",
		"signal: [sxid/12028, gpu/*]":  "",
	} {
		f := policyFile(t, when, "")
		out, errs, err := run(t, "", "check", f)
		if err != nil || !strings.Contains(out, "ok") || !strings.Contains(errs, want) || (want == "") != (errs == "") {
			t.Errorf("%s: %v\n%s%s", when, err, out, errs)
		}
		if _, _, err := run(t, "", "check", "--strict", f); (err == nil) != (want == "") {
			t.Errorf("%s with --strict: %v", when, err)
		}
		out, _, err = run(t, "", "check", "-o", "json", f)
		var said struct{ Warnings []string }
		if err != nil || json.Unmarshal([]byte(out), &said) != nil || said.Warnings == nil || (len(said.Warnings) == 0) != (want == "") {
			t.Errorf("%s in JSON: %v\n%s", when, err, out)
		}
	}
	if out, errs, err := run(t, "", "check", "--strict", shipped); err != nil {
		t.Errorf("the shipped policies: %v\n%s%s", err, out, errs)
	}
}

func TestASimulationThatIsEmptySaysWhatItWasNotGiven(t *testing.T) {
	week := lines(t, said(1, monday, "a1", "79"))
	nodes := file(t, "nodes.json", `{"items":[{"metadata":{"name":"a1","labels":{"pitcrew.dev/pool":"train"}}}]}`)
	for name, c := range map[string]struct {
		when, applies, stdin, want string
		args                       []string
	}{
		"pools without nodes":    {"signal: xid/79", "  appliesTo: {pools: [train]}\n", week, "warning: policy p applies to nodes by pool or label, and without --nodes no node has any", nil},
		"pools with nodes":       {"signal: xid/79", "  appliesTo: {pools: [train]}\n", week, "", []string{"--nodes", nodes}},
		"no events":              {"signal: xid/79", "", "\n", "warning: - holds no event", nil},
		"a label without nodes":  {"signal: xid/79, expr: \"'rack' in node.labels\"", "", week, "rule r reads node.labels, which is empty without --nodes", nil},
		"a fact that has no way": {"signal: xid/79, expr: \"'team' in job.labels\"", "", week, "rule r reads job.labels, which is empty in a simulation", nil},
		"nothing that is absent": {"signal: xid/79, expr: event.count > 0", "", week, "", nil},
	} {
		f := policyFile(t, c.when, c.applies)
		out, _, err := run(t, c.stdin, append([]string{"simulate", "--policy", f, "--events", "-"}, c.args...)...)
		if err != nil || !strings.Contains(out, c.want) || (c.want == "") == strings.Contains(out, "warning:") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
