package sandbox

import (
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Every process of a sandbox carries two marks in its environment: the sandbox's id, and the unit it belongs to
// ("node/<node>/pod/<uid>/<container>/<n>/", "node/<node>/proc/<name>/", "cluster/<name>/"). Children inherit them, also those that
// leave their process group (torchrun's workers do), so a unit can always be found and ended whole, as a PID namespace would be.
const (
	markSandbox = "PITCREW_SANDBOX"
	markUnit    = "PITCREW_SANDBOX_UNIT"
)

//go:embed deadman.sh
var deadmanScript string

// processes starts and ends the sandbox's processes.
type processes struct {
	id      string
	reqs    chan func()
	stopped chan struct{}
	deadman io.WriteCloser
	dead    chan struct{} // closed when the dead man's switch has exited
	reaped  sync.WaitGroup
}

// newProcesses starts the dead man's switch as well: a shell that, should this process vanish without a word, ends everything that
// carries the sandbox's mark and removes dir if it is temporary.
func newProcesses(dir string, temporary bool) (*processes, error) {
	raw := make([]byte, 8)
	if _, err := rand.Read(raw); err != nil {
		return nil, err
	}
	p := &processes{id: hex.EncodeToString(raw), reqs: make(chan func()), stopped: make(chan struct{}), dead: make(chan struct{})}
	// The kernel sends the parent-death signal when the starting thread ends, so one thread does all the starting and lives long.
	go func() {
		runtime.LockOSThread()
		for {
			select {
			case f := <-p.reqs:
				f()
			case <-p.stopped:
				return
			}
		}
	}()
	remove := ""
	if temporary {
		remove = dir
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/bin/sh", "-c", deadmanScript, "pitcrew-sandbox-deadman", p.id, remove)
	cmd.Stdin = r
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	r.Close()
	if err != nil {
		w.Close()
		return nil, fmt.Errorf("sandbox: dead man's switch: %w", err)
	}
	p.deadman = w
	go func() { _ = cmd.Wait(); close(p.dead) }()
	return p, nil
}

// close ends what is left and disarms the dead man's switch.
func (p *processes) close() {
	p.kill("")
	p.reaped.Wait() // leave no zombies to whoever inherits them
	fmt.Fprintln(p.deadman, "done")
	p.deadman.Close()
	<-p.dead
	close(p.stopped)
}

// process is one started process and, through its unit, all that descends from it.
type process struct {
	unit    string
	cmd     *exec.Cmd
	started time.Time
	exited  chan struct{} // closed once the main process has been waited for
	ended   time.Time     // valid after exited
}

type processSpec struct {
	unit string
	argv []string
	env  []string // the whole environment, without the marks
	dir  string
	log  string // stdout and stderr are appended here
}

func (p *processes) start(spec processSpec) (*process, error) {
	log, err := os.OpenFile(spec.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	env := append(append([]string{}, spec.env...), markSandbox+"="+p.id, markUnit+"="+spec.unit)
	path, err := lookPath(spec.argv[0], env, spec.dir)
	if err != nil {
		return nil, err
	}
	cmd := &exec.Cmd{Path: path, Args: spec.argv, Env: env, Dir: spec.dir, Stdout: log, Stderr: log}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	proc := &process{unit: spec.unit, cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 1)
	select {
	case p.reqs <- func() { started <- cmd.Start() }:
	case <-p.stopped:
		return nil, errors.New("sandbox has stopped")
	}
	if err := <-started; err != nil {
		return nil, err
	}
	proc.started = time.Now()
	p.reaped.Go(func() {
		_ = cmd.Wait()
		proc.ended = time.Now()
		close(proc.exited)
	})
	return proc, nil
}

// lookPath resolves a command as execvp in that environment and directory would.
func lookPath(name string, env []string, dir string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, nil
	}
	path := ""
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	for _, d := range filepath.SplitList(path) {
		f := filepath.Join(d, name)
		if st, err := os.Stat(f); err == nil && !st.IsDir() && st.Mode()&0o111 != 0 {
			return f, nil
		}
	}
	return "", fmt.Errorf("%s: executable file not found in the container's PATH", name)
}

// signal goes to the main process alone, as a container runtime sends it to PID 1.
func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// status gives the exit code as a container runtime reports it: 128+n for signal n. Valid after exited.
func (p *process) status() (code int32, signal int32) {
	ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		return -1, 0
	case ws.Signaled():
		return int32(128 + ws.Signal()), int32(ws.Signal())
	}
	return int32(ws.ExitStatus()), 0
}

// kill sends SIGKILL to every process whose unit begins with prefix and returns when none is left.
func (p *processes) kill(prefix string) {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		pids := p.find(prefix)
		if len(pids) == 0 || time.Now().After(deadline) {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// find lists the living processes whose unit begins with prefix. Zombies have no environment, so they do not count.
func (p *processes) find(prefix string) []int { return findMarked(p.id, prefix) }

func findMarked(id, prefix string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err != nil || len(env) == 0 {
			continue
		}
		mine, unit := false, ""
		for _, kv := range strings.Split(string(env), "\x00") {
			if v, ok := strings.CutPrefix(kv, markSandbox+"="); ok {
				mine = v == id
			} else if v, ok := strings.CutPrefix(kv, markUnit+"="); ok {
				unit = v
			}
		}
		if mine && strings.HasPrefix(unit, prefix) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// backoff is the kubelet's: the first restart at once, then 10 s doubling to 5 minutes, forgotten after 10 good minutes.
type backoff struct{ delay time.Duration }

const (
	backoffFirst  = 10 * time.Second
	backoffLimit  = 5 * time.Minute
	backoffForget = 10 * time.Minute
)

func (b *backoff) next(ran time.Duration) time.Duration {
	if ran >= backoffForget {
		b.delay = 0
	}
	wait := b.delay
	b.delay = min(max(2*b.delay, backoffFirst), backoffLimit)
	return wait
}
