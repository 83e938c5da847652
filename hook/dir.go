package hook

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// LauncherSocket is the name of the launcher's socket in a pod's directory.
const LauncherSocket = "launcher.sock"

// VolumeName is the name that the emptyDir of a training pod must have.
const VolumeName = "pitcrew"

// podPath are the directories between <kubelet>/pods/<uid> and the volume.
var podPath = []string{"volumes", "kubernetes.io~empty-dir", VolumeName}

var (
	podUIDPattern = regexp.MustCompile(`^[0-9a-z][0-9a-z-]{0,62}$`)
	rankPattern   = regexp.MustCompile(`^local-(0|[1-9][0-9]{0,3})\.(ring|sock)$`)
)

// ValidPodUID says whether a directory name below <kubelet>/pods can be a pod's UID: a UUID, a static pod's hash,
// in any case something that is safe as a label and as a token of a subject.
func ValidPodUID(s string) bool { return podUIDPattern.MatchString(s) }

// RingName and SocketName are the files of one local rank.
func RingName(local int) string   { return "local-" + strconv.Itoa(local) + ".ring" }
func SocketName(local int) string { return "local-" + strconv.Itoa(local) + ".sock" }

// Dir is an open pod directory. Everything in it is reached through its file descriptor, so that a path cannot be
// swapped between the check and the use. It is safe for concurrent use.
type Dir struct {
	path string

	mu sync.RWMutex
	fd int // -1 once closed
}

// PodDir is the path of a pod's directory below a kubelet root.
func PodDir(kubeletRoot, podUID string) string {
	return filepath.Join(append([]string{kubeletRoot, "pods", podUID}, podPath...)...)
}

// OpenPodDir opens a pod's directory. The kubelet root may be a symlink (it is the administrator's); nothing below may.
func OpenPodDir(kubeletRoot, podUID string) (*Dir, error) {
	if !ValidPodUID(podUID) {
		return nil, fmt.Errorf("pod directory %q: not a pod UID", podUID)
	}
	path := PodDir(kubeletRoot, podUID)
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	fd, err := unix.Open(kubeletRoot, flags, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: kubeletRoot, Err: err}
	}
	for _, name := range append([]string{"pods", podUID}, podPath...) {
		next, err := unix.Openat(fd, name, flags|unix.O_NOFOLLOW, 0)
		_ = unix.Close(fd)
		if err != nil {
			return nil, fmt.Errorf("pod directory %s: at %s: %w", path, name, err)
		}
		fd = next
	}
	return &Dir{path: path, fd: fd}, nil
}

// Path is the directory's path, for messages only.
func (d *Dir) Path() string { return d.path }

// Close releases the directory. What was opened from it stays open.
func (d *Dir) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fd < 0 {
		return nil
	}
	err := unix.Close(d.fd)
	d.fd = -1
	return err
}

// open opens one entry without following a symlink and checks that it is of the kind expected.
func (d *Dir) open(name string, flags int, kind uint32, kindName string) (*os.File, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	path := filepath.Join(d.path, name)
	if d.fd < 0 {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrClosed}
	}
	fd, err := unix.Openat(d.fd, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != kind {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%s is not %s (mode %#o): %w", path, kindName, st.Mode, errKind)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// has says whether one of the names is there. It opens nothing.
func (d *Dir) has(names ...string) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, name := range names {
		var st unix.Stat_t
		if d.fd >= 0 && unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			return true
		}
	}
	return false
}

var errKind = errors.New("wrong kind of file")

// parseName says what a file of a pod directory is: a rank's ring or socket, the launcher's socket, or neither.
func parseName(name string) (kind fileKind, local int) {
	if name == LauncherSocket {
		return fileLauncherSocket, -1
	}
	m := rankPattern.FindStringSubmatch(name)
	if m == nil {
		return fileOther, -1
	}
	local, _ = strconv.Atoi(m[1])
	if m[2] == "ring" {
		return fileRing, local
	}
	return fileRankSocket, local
}

type fileKind int

const (
	fileOther fileKind = iota
	fileRing
	fileRankSocket
	fileLauncherSocket
)
