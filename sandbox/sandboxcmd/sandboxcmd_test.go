package sandboxcmd

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/sandbox"
)

func say(t *testing.T, args ...string) (string, error) {
	t.Helper()
	c := Command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SilenceUsage, c.SilenceErrors = true, true
	c.SetArgs(args)
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

func TestWhereNoSandboxRunsEachCommandSaysSoAndHowToStartOne(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	for _, args := range [][]string{{"status"}, {"fault", "xid79"}, {"repair", "a1"}, {"status", "-o", "json"}} {
		out, err := say(t, append(args, "--dir", dir)...)
		if err == nil || out != "" || !strings.Contains(err.Error(), "no sandbox runs in "+dir+"; `pitcrew sandbox up` starts one") || strings.Contains(err.Error(), "dial") {
			t.Errorf("%v: %q, %v", args, out, err)
		}
	}
	if out, err := say(t, "down", "--dir", dir); err != nil || out != "there is no sandbox in "+dir+"\n" {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := say(t, "status", "-o", "yaml"); err == nil || err.Error() != `unknown output "yaml"; text or json` {
		t.Error(err)
	}
}

func TestLogsAreAListInJSONAndAWordThatNoNameContainsIsAnError(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "logs"), 0o755); err != nil {
		t.Fatal(err)
	}
	var got map[string][]string
	out, err := say(t, "logs", "--dir", dir, "-o", "json")
	if err != nil || json.Unmarshal([]byte(out), &got) != nil || got["files"] == nil {
		t.Errorf("%q, %v", out, err)
	}
	if out, err := say(t, "logs", "agent", "--dir", dir); err == nil || out != "" || !strings.Contains(err.Error(), `"agent"`) {
		t.Errorf("%q, %v", out, err)
	}
}

func TestTheStatusIsTwoTables(t *testing.T) {
	var out bytes.Buffer
	describe(&out, sandbox.Status{Nodes: []sandbox.NodeStatus{{Name: "a1", Up: true}}, Processes: []sandbox.Process{
		{Name: "bus", PID: 7, Running: true, Log: "bus.log"}, {Name: "agent", Node: "a1", PID: 8, Exit: 3, Log: "a.log"}}})
	for _, want := range []string{"PROCESS  NODE  PID  STATE         LOG\n", "bus      -     7    running       bus.log\n", "agent    a1    8    ended with 3  a.log\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}
