package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopGrace is how long a process that the caller started may take to leave.
const stopGrace = 10 * time.Second

// hostProcesses are those that the caller starts: an agent on a node, a bus or a remediator beside the cluster.
type hostProcesses struct {
	mu   sync.Mutex
	byID map[string]*hostProcess
}

type hostProcess struct {
	node, name string
	spec       processSpec
	proc       *process
}

func (h *hostProcess) running() bool {
	select {
	case <-h.proc.exited:
		return false
	default:
		return true
	}
}

// Process is what Status says of a process that StartProcess started.
type Process struct {
	Node    string `json:"node,omitempty"`
	Name    string `json:"name"`
	PID     int    `json:"pid"`
	Running bool   `json:"running"`
	Exit    int32  `json:"exit,omitempty"`
	Log     string `json:"log"`
}

// Died says how a process that runs no longer ended, with the last of what it wrote; nil for one that runs.
func (p Process) Died() error {
	if p.Running {
		return nil
	}
	return fmt.Errorf("%s ended with code %d: %s", strings.TrimPrefix(p.Node+"/"+p.Name, "/"), p.Exit, tail(p.Log, 2000))
}

// StartProcess runs a command as part of a node: a power cut ends it, and Repair starts it again. With node empty it belongs to no
// node. env is added to the caller's environment; output goes to <Logs>/<node>-<name>.log. A name may be used again once its
// process has ended. The sandbox does not restart it by itself.
func (s *Sandbox) StartProcess(node, name string, argv, env []string) error {
	unit, log := "host/"+name+"/", name+".log"
	if node != "" {
		n, err := s.Node(node)
		if err != nil {
			return err
		}
		if !n.Up() {
			return fmt.Errorf("sandbox: start %s: node %s is lost", name, node)
		}
		unit, log = n.unit()+"proc/"+name+"/", node+"-"+name+".log"
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	spec := processSpec{unit: unit, argv: argv, env: slices.Concat(os.Environ(), []string{s.tmpdir()}, env), dir: dir, log: filepath.Join(s.Logs(), log)}
	s.hosted.mu.Lock()
	defer s.hosted.mu.Unlock()
	if old := s.hosted.byID[unit]; old != nil && old.running() {
		return fmt.Errorf("sandbox: %s is running already", strings.TrimSuffix(unit, "/"))
	}
	return s.launch(&hostProcess{node: node, name: name, spec: spec})
}

func (s *Sandbox) launch(h *hostProcess) error {
	proc, err := s.procs.start(h.spec)
	if err != nil {
		return fmt.Errorf("sandbox: start %s: %w", h.name, err)
	}
	h.proc = proc
	s.hosted.byID[h.spec.unit] = h
	return nil
}

func (s *Sandbox) hostedProcess(node, name string) (*hostProcess, error) {
	s.hosted.mu.Lock()
	defer s.hosted.mu.Unlock()
	for _, h := range s.hosted.byID {
		if h.node == node && h.name == name {
			return h, nil
		}
	}
	return nil, fmt.Errorf("sandbox: no process %q was started on node %q", name, node)
}

// SignalProcess sends a signal to the process, and to none of its children.
func (s *Sandbox) SignalProcess(node, name string, sig syscall.Signal) error {
	h, err := s.hostedProcess(node, name)
	if err != nil {
		return err
	}
	return h.proc.cmd.Process.Signal(sig)
}

// WaitProcess returns the exit code of a process once it has ended, 128+n after signal n.
func (s *Sandbox) WaitProcess(node, name string) (int32, error) {
	h, err := s.hostedProcess(node, name)
	if err != nil {
		return 0, err
	}
	<-h.proc.exited
	code, _ := h.proc.status()
	return code, nil
}

// StopProcess ends a process: SIGTERM, and after 10 s SIGKILL. Its children go with it.
func (s *Sandbox) StopProcess(node, name string) error {
	h, err := s.hostedProcess(node, name)
	if err != nil {
		return err
	}
	_ = h.proc.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-h.proc.exited:
	case <-time.After(stopGrace):
	}
	s.procs.kill(h.spec.unit)
	<-h.proc.exited
	return nil
}

// RestartProcess stops a process and starts it again, with another command line if argv is not nil: an upgrade.
func (s *Sandbox) RestartProcess(node, name string, argv []string) error {
	if err := s.StopProcess(node, name); err != nil {
		return err
	}
	h, err := s.hostedProcess(node, name)
	if err != nil {
		return err
	}
	s.hosted.mu.Lock()
	defer s.hosted.mu.Unlock()
	if argv != nil {
		h.spec.argv = argv
	}
	return s.launch(h)
}

// startAgain brings back what a power cut took.
func (s *Sandbox) startAgain(node string) error {
	s.hosted.mu.Lock()
	defer s.hosted.mu.Unlock()
	for _, h := range s.hosted.byID {
		if h.node == node && !h.running() {
			if err := s.launch(h); err != nil {
				return err
			}
		}
	}
	return nil
}

// Processes lists what StartProcess started, by node and name.
func (s *Sandbox) Processes() []Process {
	s.hosted.mu.Lock()
	defer s.hosted.mu.Unlock()
	list := []Process{}
	for _, h := range s.hosted.byID {
		p := Process{Node: h.node, Name: h.name, PID: h.proc.cmd.Process.Pid, Running: h.running(), Log: h.spec.log}
		if !p.Running {
			p.Exit, _ = h.proc.status()
		}
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b Process) int { return strings.Compare(a.Node+"/"+a.Name, b.Node+"/"+b.Name) })
	return list
}
