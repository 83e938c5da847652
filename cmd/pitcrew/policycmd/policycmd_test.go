package policycmd

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

const shipped = "../../../deploy/policies"

// run runs the command line and gives what it wrote.
func run(t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	c := Command()
	c.SilenceUsage, c.SilenceErrors = true, true
	var out, errs bytes.Buffer
	c.SetIn(strings.NewReader(stdin))
	c.SetOut(&out)
	c.SetErr(&errs)
	c.SetArgs(args)
	err = c.Execute()
	return out.String(), errs.String(), err
}

func xid79(t *testing.T) string {
	t.Helper()
	b, err := event.Encode(event.Event{ID: "e1", Source: event.Source("c", "a2", "xid"), Type: event.Fault, Time: time.Now().Add(-time.Hour),
		Data: event.Data{Target: event.Target{Node: "a2", GPU: "GPU-1"}, Cause: event.Cause{Kind: "xid", Code: "79"}, Severity: event.Fatal}})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAFileThatIsNoPolicyIsRefusedInAShortLine(t *testing.T) {
	long := filepath.Join(t.TempDir(), "go.mod")
	if err := os.WriteFile(long, []byte(strings.Repeat("word ", 9000)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs, err := run(t, "", "check", long)
	if err == nil || err.Error() != "1 fault; a remediator would load none of these policies" || len(errs) > 300 || !strings.Contains(errs, `must be a mapping, not "word word`) {
		t.Errorf("%v: %d bytes\n%.400s", err, len(errs), errs)
	}
}

func TestAFileWithoutAPolicyIsSaidToDoNothing(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none.yaml")
	if err := os.WriteFile(none, []byte("# to be written\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, _, err := run(t, "", "check", none); err != nil || !strings.Contains(out, "no policy in there") {
		t.Errorf("%q, %v", out, err)
	}
}

func TestOneOfAKindIsSaidInTheSingular(t *testing.T) {
	out, _, err := run(t, xid79(t), "simulate", "--policy", shipped, "--events", "-")
	if err != nil || !strings.Contains(out, "1 event judged, 1 incident would have been opened") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestWithoutAnEventTheSimulationIsAnEmptyListInJSON(t *testing.T) {
	out, _, err := run(t, "", "simulate", "--policy", shipped, "--events", "-", "-o", "json")
	if err != nil || !json.Valid([]byte(out)) || !strings.Contains(out, `"incidents": []`) {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestCheckAcceptsTheShippedPoliciesAndNamesEveryFaultOfABadOne(t *testing.T) {
	out, _, err := run(t, "", "check", shipped)
	if err != nil || !strings.Contains(out, "policy gpu-hardware: order 100, mode observe, 12 rules, ok") {
		t.Errorf("%v\n%s", err, out)
	}
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	text := "apiVersion: pitcrew.dev/v1alpha1\nkind: RemediationPolicy\nmetadata: {name: p}\nspec:\n  order: 1\n  rules:\n  - {name: r, when: {signal: xdi/79}, steps: [{do: cordn}]}\n"
	if err := os.WriteFile(bad, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs, err := run(t, "", "check", bad)
	if err == nil || err.Error() != "2 faults; a remediator would load none of these policies" {
		t.Errorf("got %v", err)
	}
	var said struct {
		Policies []map[string]any
		Faults   []string
	}
	out, none, err := run(t, "", "check", bad, "-o", "json")
	if err == nil || json.Unmarshal([]byte(out), &said) != nil || said.Policies == nil || len(said.Faults) != 2 || none != "" {
		t.Errorf("%v\n%s", err, out)
	}
	out, _, err = run(t, "", "check", shipped, "-o", "json")
	if err != nil || json.Unmarshal([]byte(out), &said) != nil || len(said.Policies) != 4 || said.Faults == nil || len(said.Faults) != 0 {
		t.Errorf("%v\n%s", err, out)
	}
	for _, want := range []string{"bad.yaml:7:30: policy p", `did you mean xid?`, `unknown action "cordn"; did you mean cordon?`} {
		if !strings.Contains(errs, want) {
			t.Errorf("%s is missing from\n%s", want, errs)
		}
	}
}

func TestExplainPrintsThePathAndTheGuardsThatTheFactsDecide(t *testing.T) {
	factsFile := filepath.Join(t.TempDir(), "facts.yaml")
	if err := os.WriteFile(factsFile, []byte("node:\n  name: a2\n  annotations: {pitcrew.dev/hold: debugging}\njob: {namespace: ml, name: llm}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _, err := run(t, xid79(t), "explain", "--event", "-", "--policies", shipped, "--facts", factsFile, "--mode", "enforce")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"outcome   act", "rule gpu-gone", "1. cordon", "✗ rank-fault: signal", "hold: refuses, node a2 is held: debugging",
		"max-event-age: refuses (1h old, at most 1m)", "namespace-opt-in: refuses"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing from\n%s", want, out)
		}
	}
}

func TestExplainInJSONIsOneObject(t *testing.T) {
	out, _, err := run(t, xid79(t), "explain", "--event", "-", "--policies", shipped, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Outcome, Policy, Rule string
		Steps                 []struct{ Do string }
		Verdicts              []struct{ Guard string }
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got.Outcome != "record" || got.Policy != "gpu-hardware" || got.Rule != "gpu-gone" || len(got.Steps) != 5 || len(got.Verdicts) != 4 {
		t.Errorf("%+v", got)
	}
}

func TestBadInputIsNamed(t *testing.T) {
	factsFile := filepath.Join(t.TempDir(), "facts.yaml")
	if err := os.WriteFile(factsFile, []byte("nod: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		stdin string
		args  []string
		want  string
	}{
		"no event":       {"", []string{"--event", "-", "--policies", shipped}, "event -: decode event"},
		"missing event":  {"", []string{"--event", "/nowhere", "--policies", shipped}, "event: open /nowhere"},
		"missing folder": {"", []string{"--event", "-", "--policies", "/nowhere"}, "policies: stat /nowhere"},
		"unknown fact":   {xid79(t), []string{"--event", "-", "--policies", shipped, "--facts", factsFile}, `unknown field "nod"`},
		"unknown mode":   {xid79(t), []string{"--event", "-", "--policies", shipped, "--mode", "enforced"}, "did you mean enforce?"},
		"unknown output": {xid79(t), []string{"--event", "-", "--policies", shipped, "-o", "xml"}, "text or json"},
		"no flags":       {"", nil, "required flag"},
	} {
		_, _, err := run(t, c.stdin, append([]string{"explain"}, c.args...)...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
}

func TestSchemaIsPrinted(t *testing.T) {
	out, _, err := run(t, "", "schema")
	if err != nil || !json.Valid([]byte(out)) || !strings.Contains(out, "RemediationPolicy pitcrew.dev/v1alpha1") {
		t.Errorf("%v\n%s", err, out)
	}
}
