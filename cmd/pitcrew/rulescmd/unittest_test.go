package rulescmd

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
	"github.com/pitcrew/pitcrew/rules/ruletest"
)

func TestRuleTestsPassFailOrAreRefusedWithACodeEach(t *testing.T) {
	const good = "../../../rules/tests/alerts-5s.yaml"
	raw, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	rules, err := filepath.Abs("../../../rules/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	moved := strings.Replace(string(raw), "../alerts.yaml", rules, 1)
	wrong := write("wrong.yaml", strings.Replace(moved, "severity: '", "severity: 'not-", 1))
	if string(raw) == moved {
		t.Fatal("the case changes nothing")
	}
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"all pass":        {[]string{good}, exit.Done, "tests passed"},
		"one fails":       {[]string{good, wrong}, exit.Unhealthy, "wrong.yaml: "},
		"it is not there": {[]string{filepath.Join(dir, "none.yaml")}, exit.NotFound, ""},
		"it is no test":   {[]string{write("no.yaml", "groups: []\n")}, exit.Usage, ""},
		"no file":         {nil, exit.Failed, ""},
	} {
		out, err := run(t, append([]string{"rules", "test"}, c.args...)...)
		if exit.Code(err) != c.code || !strings.Contains(out, c.want) {
			t.Errorf("%s: code %d, want %d: %v\n%s", name, exit.Code(err), c.code, err, out)
		}
	}
	out, err := run(t, "rules", "test", "-o", "json", wrong)
	var all []ruletest.Result
	if exit.Code(err) != exit.Unhealthy || json.Unmarshal([]byte(out), &all) != nil || len(all) == 0 || len(all[0].Failures) == 0 {
		t.Errorf("%v: %+v\n%s", err, all, out)
	}
}
