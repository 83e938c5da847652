package hook

import (
	"errors"
	"os/exec"
	"runtime"
	"testing"
	"time"
)

func TestOneGoroutineWaitsForTheEndsOfAllProcesses(t *testing.T) {
	var r reaper
	defer r.close()
	const many = 40
	before := runtime.NumGoroutine()
	cmds, procs := make([]*exec.Cmd, many), make([]*process, many)
	for i := range cmds {
		cmds[i] = exec.Command("/bin/sleep", "60")
		if err := cmds[i].Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmds[i].Process.Kill(); _ = cmds[i].Wait() }()
		var err error
		if procs[i], err = r.watch(cmds[i].Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	if n := runtime.NumGoroutine() - before; n > 1 {
		t.Errorf("%d goroutines wait for %d processes", n, many)
	}
	gone := func(i int) bool {
		select {
		case <-procs[i].ended():
			return true
		case <-time.After(10 * time.Second):
			return false
		}
	}
	procs[0].close() // and its descriptor is the next one's
	again, err := r.watch(cmds[0].Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if again.fd != procs[0].fd || again.id == procs[0].id {
		t.Errorf("descriptor %d, number %d; the closed one had %d and %d", again.fd, again.id, procs[0].fd, procs[0].id)
	}
	procs[0].close() // a second time: not the other's
	for i := 1; i < many; i += 2 {
		_ = cmds[i].Process.Kill()
	}
	for i := 1; i < many; i += 2 {
		if !gone(i) {
			t.Errorf("the end of process %d was not seen", i)
		}
	}
	procs[0] = again
	for i := 0; i < many; i += 2 {
		select {
		case <-procs[i].ended():
			t.Errorf("process %d lives and is reported as ended", i)
		default:
		}
	}
	_ = cmds[0].Process.Kill()
	if !gone(0) {
		t.Error("the end of the process that was watched anew was not seen")
	}
	_ = cmds[1].Wait()
	if _, err := r.watch(cmds[1].Process.Pid); !errors.Is(err, errNoProcess) {
		t.Errorf("a process that is reaped: %v", err)
	}
}
