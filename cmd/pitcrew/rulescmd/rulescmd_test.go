package rulescmd

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
	"github.com/pitcrew/pitcrew/docs/runbooks"
)

func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := &cobra.Command{Use: "pitcrew", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(Commands()...)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestEachAlertIsListedWithARunbookThatIsPrinted(t *testing.T) {
	out, err := run(t, "rules", "list", "-o", "json")
	var all []Alert
	if err != nil || json.Unmarshal([]byte(out), &all) != nil || len(all) < 120 {
		t.Fatalf("%d alerts, %v", len(all), err)
	}
	for _, a := range all {
		text, err := run(t, "runbook", strings.ToLower(a.Name))
		if a.Stability == "stable" && (err != nil || !strings.Contains(text, a.Name)) {
			t.Errorf("%s: %v", a.Name, err)
		}
		if a.Expr == "" || a.Meaning == "" || a.Runbook != runbooks.URL("", a.Name) {
			t.Errorf("%+v", a)
		}
	}
	out, err = run(t, "rules", "list", "--area", "thermal", "--severity", "critical", "-o", "wide")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err != nil || len(lines) < 2 || !strings.HasSuffix(strings.TrimSpace(lines[0]), "EXPRESSION") {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, l := range lines[1:] {
		if !strings.Contains(l, "  thermal  ") || !strings.Contains(l, "  critical  ") {
			t.Errorf("%s", l)
		}
	}
	if _, err := run(t, "rules", "list", "-o", "xml"); exit.Code(err) != exit.Usage {
		t.Errorf("%v", err)
	}
}

func TestRuleFilesAreTheShippedOnesWithTheAddressOfYourRunbooks(t *testing.T) {
	dir := t.TempDir()
	if out, err := run(t, "rules", "render", "--out", dir); err != nil || !strings.Contains(out, filepath.Join(dir, "alerts.yaml")) {
		t.Fatalf("%v\n%s", err, out)
	}
	written, err := filepath.Glob(filepath.Join(dir, "prometheus", "*.yaml"))
	if err != nil || len(written) < 10 {
		t.Fatalf("%d files, %v", len(written), err)
	}
	for _, path := range append(written, filepath.Join(dir, "alerts.yaml")) {
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		rel, _ := filepath.Rel(dir, path)
		want, err := os.ReadFile(filepath.Join("../../../rules", rel))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s differs from the shipped file (%v)", rel, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "tests")); err == nil {
		t.Error("unit tests were written")
	}
	if _, err := run(t, "rules", "render", "--out", dir, "--runbooks-base-url", "https://p.example/runbooks"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "alerts.yaml"))
	if err != nil || strings.Contains(string(got), runbooks.DefaultBase) || !strings.Contains(string(got), "https://p.example/runbooks/") {
		t.Errorf("%v\n%.600s", err, got)
	}
}

func TestAnUnknownRunbookNamesThoseThatAreMeant(t *testing.T) {
	if _, err := run(t, "runbook", "needsperson"); exit.Code(err) != exit.NotFound || !strings.Contains(err.Error(), "did you mean PitcrewNeedsPerson") {
		t.Errorf("%v", err)
	}
	if _, err := run(t, "runbook", "../README"); exit.Code(err) != exit.NotFound {
		t.Errorf("%v", err)
	}
	if out, err := run(t, "runbook"); err != nil || !strings.Contains(out, "\nPitcrewNeedsPerson\n") {
		t.Errorf("%v", err)
	}
}
