package sandbox_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pitcrew/pitcrew/sandbox"
)

// TestMain-like entry: with this variable set, the test binary is a supervisor that runs a sandbox until it is killed.
const supervisorEnv = "PITCREW_TEST_SUPERVISOR"

func TestSupervisor(t *testing.T) {
	if os.Getenv(supervisorEnv) == "" {
		return // not a test by itself: TestNothingOutlivesTheSandbox runs it in another process
	}
	dir := os.Getenv(supervisorEnv)
	if dir == "temporary" {
		dir = ""
	}
	s, err := sandbox.Up(t.Context(), sandbox.Options{Dir: dir, Nodes: sandbox.TwoRacks()[:1]})
	if err != nil {
		t.Fatal(err)
	}
	create(t, s, shellPod("stray", "", "setsid sleep 1000 & setsid sh -c 'trap \"\" TERM; sleep 1000' & wait", 0))
	until(t, s, "stray", "running", running)
	eventually(t, "the pod's strays run", func() bool { return len(sandbox.Marked(s, "")) >= 3 })
	os.Stdout.WriteString("UP " + sandbox.ID(s) + " " + s.Dir() + "\n")
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil { // end of file: the test wants a clean stop
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNothingOutlivesTheSandbox(t *testing.T) {
	for _, tc := range []struct {
		name  string
		named bool // the state directory is given, so only the processes go by themselves
		end   func(t *testing.T, cmd *exec.Cmd, stdin interface{ Close() error }, dir string)
	}{
		{"after Stop", false, func(_ *testing.T, _ *exec.Cmd, stdin interface{ Close() error }, _ string) { stdin.Close() }},
		{"after a SIGKILL of the supervisor", false, func(_ *testing.T, cmd *exec.Cmd, _ interface{ Close() error }, _ string) {
			_ = cmd.Process.Signal(syscall.SIGKILL)
		}},
		{"after a Clean from outside while the supervisor is stopped", true, func(t *testing.T, cmd *exec.Cmd, _ interface{ Close() error }, dir string) {
			_ = cmd.Process.Signal(syscall.SIGSTOP)
			if err := sandbox.Clean(dir); err != nil {
				t.Error(err)
			}
			_ = cmd.Process.Signal(syscall.SIGKILL)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestSupervisor$", "-test.v")
			cmd.Env = append(os.Environ(), supervisorEnv+"=temporary")
			if tc.named {
				dir, err := os.MkdirTemp("/tmp", "pcs-")
				if err != nil {
					t.Fatal(err)
				}
				defer os.RemoveAll(dir)
				cmd.Env = append(os.Environ(), supervisorEnv+"="+filepath.Join(dir, "s"))
			}
			cmd.Stderr = os.Stderr
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill()
			var id, dir string
			sc := bufio.NewScanner(stdout)
			for id == "" && sc.Scan() {
				if f := strings.Fields(sc.Text()); len(f) == 3 && f[0] == "UP" {
					id, dir = f[1], f[2]
				}
			}
			if len(sandbox.AllMarked(id)) < 7 { // the control plane, the pod and its strays
				t.Fatalf("the supervisor's sandbox is not up: %v", sandbox.AllMarked(id))
			}
			tc.end(t, cmd, stdin, dir)
			go func() {
				for sc.Scan() {
				}
				_ = cmd.Wait()
			}()
			eventually(t, "all processes are gone", func() bool { return len(sandbox.AllMarked(id)) == 0 })
			eventually(t, "the state directory is gone", func() bool {
				_, err := os.Stat(dir)
				return os.IsNotExist(err)
			})
		})
	}
}
