package hook

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// reaper waits for the ends of processes with one goroutine, however many there are: an epoll of their pidfds. It polls nothing, and a
// number that is used again does not mislead it. A goroutine for each process would take 2 to 4 KiB of each rank of a hostile pod.
// It is safe for concurrent use.
type reaper struct {
	mu      sync.Mutex
	epoll   *os.File // nil until a process is watched, and after close
	fd      int      // of epoll
	closed  bool
	next    int32
	waiting map[int32]*process // by the number that epoll hands back; descriptors are used again, these are not
	ended   sync.WaitGroup
}

// process is one whose end is waited for.
type process struct {
	pid    int
	fd     int
	id     int32
	reaper *reaper
	gone   chan struct{} // closed when the process has ended (a zombie has)
}

var errNoProcess = errors.New("no such process")

// watch starts waiting for a process. Its error wraps errNoProcess if there is no such process (any more).
func (r *reaper) watch(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("pid %d: %w", pid, errNoProcess)
	}
	if err != nil {
		return nil, fmt.Errorf("pidfd of %d: %w", pid, err)
	}
	p := &process{pid: pid, fd: fd, reaper: r, gone: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err = r.start(); err == nil {
		p.id = r.number()
		err = unix.EpollCtl(r.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: p.id})
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("pidfd of %d: %w", pid, err)
	}
	r.waiting[p.id] = p
	return p, nil
}

// number is one that no process has. The lock is held.
func (r *reaper) number() int32 {
	for {
		r.next++
		if _, taken := r.waiting[r.next]; !taken {
			return r.next
		}
	}
}

// start opens the epoll at the first process. The lock is held.
func (r *reaper) start() error {
	switch {
	case r.closed:
		return os.ErrClosed
	case r.epoll != nil:
		return nil
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that the runtime waits for it as for a socket
		_ = unix.Close(fd)
		return fmt.Errorf("epoll: %w", err)
	}
	file := os.NewFile(uintptr(fd), "epoll")
	raw, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return fmt.Errorf("epoll: %w", err)
	}
	r.fd, r.epoll, r.waiting = fd, file, map[int32]*process{}
	r.ended.Go(func() {
		events := make([]unix.EpollEvent, 64)
		_ = raw.Read(func(fd uintptr) bool { // until the file is closed
			for {
				n, err := unix.EpollWait(int(fd), events, 0)
				if errors.Is(err, unix.EINTR) {
					continue
				}
				if err != nil || n == 0 {
					return false
				}
				for _, e := range events[:n] {
					r.end(e.Fd)
				}
			}
		})
	})
	return nil
}

// end reports the end of a process that is still waited for.
func (r *reaper) end(id int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.waiting[id]; p != nil {
		r.release(p)
		close(p.gone)
	}
}

// release stops waiting. The lock is held.
func (r *reaper) release(p *process) {
	delete(r.waiting, p.id)
	// Not by Close alone: while a child is being started, it has a copy of the descriptor.
	_ = unix.EpollCtl(r.fd, unix.EPOLL_CTL_DEL, p.fd, nil)
	_ = unix.Close(p.fd)
}

// close ends all waiting. Processes whose end was not seen are not reported.
func (r *reaper) close() {
	r.mu.Lock()
	r.closed = true
	for _, p := range r.waiting {
		r.release(p)
	}
	file := r.epoll
	r.epoll = nil
	r.mu.Unlock()
	if file != nil {
		_ = file.Close()
		r.ended.Wait()
	}
}

// close ends the waiting; it is nil-safe and may be called again.
func (p *process) close() {
	if p == nil {
		return
	}
	p.reaper.mu.Lock()
	defer p.reaper.mu.Unlock()
	if p.reaper.waiting[p.id] == p {
		p.reaper.release(p)
	}
}

// ended is a channel closed at the process's end; nil, which never comes, for a process that cannot be seen.
func (p *process) ended() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.gone
}
