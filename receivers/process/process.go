// Package process says which container a process of the node belongs to, and which GPUs it has open, from /proc alone.
//
// It promises to need no credentials and no container runtime, to bound what it reads of any one process, and never to take a guess for
// knowledge: what it cannot read it does not know. What stands in /proc/PID/comm is the process's own choice and bounded by the kernel.
package process

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// FS is a node's /proc.
type FS struct {
	root string
	fs   procfs.FS
}

// NewFS opens the /proc that is mounted at root, /proc but where the host's is mounted elsewhere.
func NewFS(root string) (FS, error) {
	fs, err := procfs.NewFS(root)
	return FS{root, fs}, err
}

// Container is where a process runs.
type Container struct {
	PodUID string // as Kubernetes writes it
	ID     string // the runtime's, 64 hexadecimal digits; empty between a container's start and its own group
}

// ContainerOf finds the container of a process by its control group. A process of the host has none.
func (f FS) ContainerOf(pid int) (Container, bool) {
	p, err := f.fs.Proc(pid)
	if err != nil {
		return Container{}, false
	}
	groups, err := p.Cgroups()
	if err != nil {
		return Container{}, false
	}
	for _, g := range groups {
		if c, ok := containerOf(g.Path); ok {
			return c, true
		}
	}
	return Container{}, false
}

// Comm is the process's name as the kernel keeps it, at most 15 bytes.
func (f FS) Comm(pid int) (string, bool) {
	raw, err := os.ReadFile(filepath.Join(f.root, strconv.Itoa(pid), "comm"))
	if err != nil {
		return "", false
	}
	return strings.TrimSuffix(string(raw), "\n"), true
}

// maxGroup bounds a control group's path that is looked at.
const maxGroup = 4096

// containerOf reads a control group's path as the kubelet's drivers build it.
//
//	/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid with _>.slice/cri-containerd-<id>.scope
//	/kubepods/burstable/pod<uid>/<id>
//	/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod<uid with _>.slice/crio-<id>.scope
//
// Seen from within another control group namespace the path begins with /../.., which changes nothing.
func containerOf(path string) (Container, bool) {
	if len(path) > maxGroup || !strings.Contains(path, "pod") {
		return Container{}, false
	}
	segments := strings.Split(path, "/")
	for i, s := range segments {
		uid, ok := podUID(s)
		if !ok {
			continue
		}
		c := Container{PodUID: uid}
		if i+1 < len(segments) {
			c.ID = containerID(segments[i+1])
		}
		return c, true
	}
	return Container{}, false
}

func podUID(segment string) (string, bool) {
	s, slice := strings.CutSuffix(segment, ".slice")
	if slice {
		k := strings.LastIndex(s, "-pod")
		if k < 0 {
			return "", false
		}
		s = strings.ReplaceAll(s[k+1:], "_", "-")
	}
	uid, ok := strings.CutPrefix(s, "pod")
	return uid, ok && isUID(uid)
}

// isUID takes a UUID, and a static pod's UID, which is a hash of 32 digits.
func isUID(s string) bool {
	switch len(s) {
	case 32:
		return hexadecimal(s)
	case 36:
		return s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' && hexadecimal(strings.ReplaceAll(s, "-", ""))
	}
	return false
}

const idLength = 64

func containerID(segment string) string {
	s := strings.TrimSuffix(segment, ".scope")
	if k := strings.LastIndexByte(s, '-'); k >= 0 {
		s = s[k+1:]
	}
	if len(s) != idLength || !hexadecimal(s) {
		return ""
	}
	return s
}

func hexadecimal(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return s != ""
}
