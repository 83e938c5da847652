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

func TestDownDeletesOnlyTheLogThatADetachedStartWrote(t *testing.T) {
	for name, c := range map[string]struct {
		make func(t *testing.T, path string)
		kept bool
	}{
		"a user's file":                {func(t *testing.T, path string) { write(t, path, "my notes\n") }, true},
		"an empty file":                {func(t *testing.T, path string) { write(t, path, "") }, true},
		"the log of another directory": {func(t *testing.T, path string) { write(t, path, "pitcrew sandbox up --detach --dir /elsewhere\n") }, true},
		"a long line without an end":   {func(t *testing.T, path string) { write(t, path, strings.Repeat("x", 9000)) }, true},
		"a directory":                  {func(t *testing.T, path string) { mkdir(t, path) }, true},
		"the log of a detached start":  {func(t *testing.T, path string) { started(t, path) }, false},
		"a link to such a log":         {func(t *testing.T, path string) { started(t, path); rename(t, path) }, true},
		"nothing":                      {func(*testing.T, string) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "X")
			c.make(t, dir+".log")
			if _, err := say(t, "down", "--dir", dir); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(dir + ".log"); (err == nil) != c.kept {
				t.Errorf("kept: %v, want %v", err == nil, c.kept)
			}
		})
	}
}

func TestADetachedStartRefusesToOverwriteAFileThatIsNotItsLog(t *testing.T) {
	log := detachedLog{filepath.Join(t.TempDir(), "X")}
	started(t, log.path())
	started(t, log.path()) // over the log of an earlier start
	write(t, log.path(), "my notes\n")
	if f, err := log.create(); err == nil || !strings.Contains(err.Error(), log.path()) {
		t.Errorf("%v, %v", f, err)
	}
	if b, _ := os.ReadFile(log.path()); string(b) != "my notes\n" {
		t.Errorf("%q", b)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
}

func started(t *testing.T, path string) {
	t.Helper()
	f, err := detachedLog{strings.TrimSuffix(path, ".log")}.create()
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

func rename(t *testing.T, path string) {
	t.Helper()
	if err := os.Rename(path, path+".kept"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path+".kept", path); err != nil {
		t.Fatal(err)
	}
}
