package hooktest

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/hook"
)

// Pod makes a pod's directory below a kubelet root and returns its path.
func Pod(t testing.TB, root, uid string) string {
	t.Helper()
	dir := hook.PodDir(root, uid)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Process is a running rank or launcher.
type Process struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	wait sync.Once

	lines chan string // what it printed beyond its acknowledgements
	acks  chan struct{}
}

// Start runs a rank or a launcher and returns when it listens. It is killed at the test's end.
func Start(t testing.TB, c Config) *Process {
	t.Helper()
	raw, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{t: t, cmd: exec.Command(os.Args[0]), lines: make(chan string, 1024), acks: make(chan struct{}, 1024)}
	p.cmd.Env = append(os.Environ(), env+"="+string(raw))
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	go p.read(out)
	p.ack("start")
	return p
}

func (p *Process) read(out io.Reader) {
	in := bufio.NewScanner(out)
	for in.Scan() {
		if s := in.Text(); s == "ok" || s == "ready" {
			p.acks <- struct{}{}
		} else {
			p.lines <- s
		}
	}
	close(p.lines)
	close(p.acks)
}

func (p *Process) ack(what string) {
	p.t.Helper()
	select {
	case _, ok := <-p.acks:
		if !ok {
			p.t.Fatalf("hooktest: the process ended at %q", what)
		}
	case <-time.After(10 * time.Second):
		p.t.Fatalf("hooktest: no answer to %q", what)
	}
}

// Tell gives the process a line and waits until it was followed. Lines that end the process go by End.
func (p *Process) Tell(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
	p.ack(line)
}

// End gives the process its last line: "bye", or "raise <first line of the error>".
func (p *Process) End(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
	p.reap()
}

// Kill ends the process as the kernel does, and reaps it.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	p.reap()
}

// Signal sends a signal.
func (p *Process) Signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// PID is the process's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

func (p *Process) reap() { p.wait.Do(func() { _ = p.cmd.Wait() }) }

// Told is the next line that the process printed with this word in front, within a deadline.
func (p *Process) Told(word string, within time.Duration) string {
	p.t.Helper()
	t := time.NewTimer(within)
	defer t.Stop()
	for {
		select {
		case s, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("hooktest: the process ended, want %q", word)
			}
			if w, rest, _ := strings.Cut(s, " "); w == word {
				return rest
			}
		case <-t.C:
			p.t.Fatalf("hooktest: nothing told about %q within %v", word, within)
		}
	}
}
