package hook

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// selfMask is asked of the kernel for every directory: its own end.
const selfMask = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// errOverflow says that the kernel dropped events, because too many waited.
var errOverflow = errors.New("inotify events were lost")

// inotify is the kernel's watch of directories. It is used by one goroutine; only interrupt may be called from others. Unlike a general
// library, it asks only for the events that are wanted of a directory, never for writes, and makes no garbage for an event that nobody wants: pods decide how many there are.
type inotify struct {
	file *os.File
	fd   int
	dirs map[int32]string
	ids  map[string]int32
	buf  [16 << 10]byte
}

func newInotify() (*inotify, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	return &inotify{file: os.NewFile(uintptr(fd), "inotify"), fd: fd, dirs: map[int32]string{}, ids: map[string]int32{}}, nil
}

func (n *inotify) close() { _ = n.file.Close() }

// interrupt ends a read, and every later one.
func (n *inotify) interrupt() { _ = n.file.Close() }

// add watches a directory for the given events of names, and for its end. If the same directory was watched under another path, that path is forgotten.
func (n *inotify) add(dir string, names uint32) error {
	id, err := unix.InotifyAddWatch(n.fd, dir, names|selfMask)
	if err != nil {
		return &os.PathError{Op: "watch", Path: dir, Err: err}
	}
	if old, ok := n.ids[dir]; ok && old != int32(id) { // the path is another directory's now
		n.forget(old)
	}
	if old, ok := n.dirs[int32(id)]; ok && old != dir {
		delete(n.ids, old)
	}
	n.dirs[int32(id)], n.ids[dir] = dir, int32(id)
	return nil
}

// remove ends the watch of a directory, if there is one. Events of it that wait are not handed over any more.
func (n *inotify) remove(dir string) {
	if id, ok := n.ids[dir]; ok {
		n.forget(id)
	}
}

func (n *inotify) forget(id int32) {
	_, _ = unix.InotifyRmWatch(n.fd, uint32(id)) // it may have ended already, with its directory
	delete(n.ids, n.dirs[id])
	delete(n.dirs, id)
}

// read waits until something happens or the deadline passes (the zero time: without end) and hands over what happened. name is empty
// if dir itself went.
func (n *inotify) read(deadline time.Time, emit func(dir, name string, mask uint32)) error {
	if err := n.file.SetReadDeadline(deadline); err != nil {
		return err
	}
	got, err := n.file.Read(n.buf[:])
	if err != nil {
		return err
	}
	lost := false
	for b := n.buf[:got]; len(b) >= unix.SizeofInotifyEvent; {
		id, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
		size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[unsafe.Offsetof(unix.InotifyEvent{}.Len):]))
		raw := b[unix.SizeofInotifyEvent:min(size, len(b))]
		b = b[min(size, len(b)):]
		dir, known := n.dirs[id]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			lost = true
		case !known:
		case mask&unix.IN_IGNORED != 0: // the kernel has ended the watch
			delete(n.ids, dir)
			delete(n.dirs, id)
		default:
			raw, _, _ = bytes.Cut(raw, []byte{0})
			emit(dir, string(raw), mask)
		}
	}
	if lost {
		return errOverflow
	}
	return nil
}
