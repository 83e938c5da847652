package hook

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// process waits for the end of one process by a pidfd: no polling, no reuse of the number.
type process struct {
	pid  int
	file *os.File
	gone chan struct{} // closed when the process has ended (a zombie has)
}

var errNoProcess = errors.New("no such process")

// watchProcess starts waiting. Its error wraps errNoProcess when there is no such process (any more).
func watchProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("pid %d: %w", pid, errNoProcess)
	}
	if err != nil {
		return nil, fmt.Errorf("pidfd of %d: %w", pid, err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("pidfd of %d: %w", pid, err)
	}
	p := &process{pid: pid, file: os.NewFile(uintptr(fd), "pidfd"), gone: make(chan struct{})}
	go p.wait()
	return p, nil
}

func (p *process) wait() {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return
	}
	ended := false
	_ = raw.Read(func(fd uintptr) bool {
		set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(set, 0)
		ended = err == nil && n == 1 && set[0].Revents&unix.POLLIN != 0
		return ended
	})
	if ended {
		close(p.gone)
	}
}

// close ends the waiting; it is nil-safe.
func (p *process) close() {
	if p != nil {
		_ = p.file.Close()
	}
}

// ended is a channel closed at the process's end; nil, which never comes, for a process that cannot be seen.
func (p *process) ended() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.gone
}

// ticksPerSecond is USER_HZ, the unit of times in /proc, which Linux has fixed at 100 for user space.
const ticksPerSecond = 100

// procStat reads the state letter and the start time (since boot) of a process from <proc>/<pid>/stat.
func procStat(proc string, pid int) (state string, start time.Duration, err error) {
	b, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", 0, err
	}
	// The second field is the name in brackets, which may hold anything.
	i := bytes.LastIndexByte(b, ')')
	fields := bytes.Fields(b[i+1:])
	if i < 0 || len(fields) < 20 {
		return "", 0, fmt.Errorf("%s/%d/stat: cannot be parsed", proc, pid)
	}
	ticks, err := strconv.ParseInt(string(fields[19]), 10, 64)
	if err != nil {
		return "", 0, fmt.Errorf("%s/%d/stat: start time: %w", proc, pid, err)
	}
	return string(fields[0]), time.Duration(ticks) * time.Second / ticksPerSecond, nil
}
