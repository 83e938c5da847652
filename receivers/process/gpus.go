package process

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// GPU is what the NVIDIA driver says of one.
type GPU struct {
	UUID string
	PCI  string // 0000:1a:00, as the kernel log has it
}

const (
	maxGPUs  = 256
	maxOpen  = 1 << 14 // open files of one process that are looked at
	maxFacts = 64      // lines of the driver's word on a GPU
)

// The NVIDIA driver's device files: its major number, and the minors that are not a GPU's.
const (
	nvidiaMajor  = 195
	minorModeset = 254
)

// GPUs lists the NVIDIA driver's GPUs by the number of their device file, /dev/nvidia<n>. Without the driver there are none.
func (f FS) GPUs() (map[int]GPU, error) {
	dir := filepath.Join(f.root, "driver", "nvidia", "gpus")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[int]GPU{}
	for _, e := range entries {
		minor, gpu, ok := readGPU(filepath.Join(dir, e.Name(), "information"))
		if ok && len(out) < maxGPUs {
			gpu.PCI = strings.TrimSuffix(strings.ToLower(e.Name()), ".0")
			out[minor] = gpu
		}
	}
	return out, nil
}

// readGPU reads lines such as "GPU UUID: 	 GPU-…" and "Device Minor: 	 3".
func readGPU(path string) (minor int, gpu GPU, ok bool) {
	file, err := os.Open(path)
	if err != nil {
		return 0, GPU{}, false
	}
	defer file.Close()
	minor = -1
	in := bufio.NewScanner(io.LimitReader(file, 1<<14))
	for n := 0; n < maxFacts && in.Scan(); n++ {
		name, value, _ := strings.Cut(in.Text(), ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(name) {
		case "GPU UUID":
			gpu.UUID = value
		case "Device Minor":
			if m, err := strconv.ParseUint(value, 10, 8); err == nil {
				minor = int(m)
			}
		}
	}
	// A GPU that nothing has opened yet has question marks for a UUID.
	return minor, gpu, minor >= 0 && strings.HasPrefix(gpu.UUID, "GPU-") && !strings.Contains(gpu.UUID, "?")
}

// PIDs lists the processes there are.
func (f FS) PIDs() ([]int, error) {
	dir, err := os.Open(f.root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	out := make([]int, 0, len(names))
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil && pid > 0 {
			out = append(out, pid)
		}
	}
	return out, nil
}

// Uses lists the GPUs that a process has open, by the number of their device file. An error says that this account may not look, or that the
// process is gone. A device file under another name than the driver's is known by its device number.
func (f FS) Uses(pid int) ([]int, error) {
	path := filepath.Join(f.root, strconv.Itoa(pid), "fd")
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxOpen)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var minors []int
	buf := make([]byte, 64)
	for _, n := range names {
		k, err := unix.Readlinkat(int(dir.Fd()), n, buf)
		if err != nil {
			continue // closed in between
		}
		minor, ok := minorOf(string(buf[:k]), func() (unix.Statx_t, error) { return typeOf(int(dir.Fd()), n) })
		if ok && !slices.Contains(minors, minor) {
			minors = append(minors, minor)
		}
	}
	slices.Sort(minors)
	return minors, nil
}

// minorOf says which GPU's device file a link leads to. Most links need no second look: sockets, pipes and the like have no path.
func minorOf(link string, look func() (unix.Statx_t, error)) (int, bool) {
	if rest, ok := strings.CutPrefix(link, "/dev/nvidia"); ok {
		minor, err := strconv.ParseUint(rest, 10, 8)
		return int(minor), err == nil && minor < minorModeset
	}
	if !strings.HasPrefix(link, "/") || strings.HasPrefix(link, "/dev/pts/") || link == "/dev/null" {
		return 0, false
	}
	st, err := look()
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev_major != nvidiaMajor {
		return 0, false
	}
	return int(st.Rdev_minor), st.Rdev_minor < minorModeset
}

// typeOf asks what an open file is, without asking the server of a network file system or a FUSE daemon: one that does not answer would
// hold the caller for ever. A hard NFS mount may still ask its server, so callers bound the time, too (Within).
func typeOf(dir int, name string) (st unix.Statx_t, err error) {
	return st, unix.Statx(dir, name, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
}

// Facts are what tells one process from another of the same number, and what a person would know it by.
type Facts struct {
	Start   uint64 // in clock ticks after boot
	Comm    string
	Command string // the program and its first argument, at most 128 bytes: later ones may hold secrets
}

const maxCommand = 128

// Facts reads them; an error says that the process is gone, or that its file makes no sense.
func (f FS) Facts(pid int) (Facts, error) {
	raw, err := os.ReadFile(filepath.Join(f.root, strconv.Itoa(pid), "stat"))
	if err != nil {
		return Facts{}, err
	}
	// "42 (name) S …": the name may hold anything, also parentheses. Of what follows, the twentieth field is the start.
	from, to := strings.IndexByte(string(raw), '('), strings.LastIndexByte(string(raw), ')')
	if from < 0 || to < from {
		return Facts{}, fmt.Errorf("process %d: stat without a name", pid)
	}
	fields := strings.Fields(string(raw[to+1:]))
	if len(fields) < 20 {
		return Facts{}, fmt.Errorf("process %d: stat of %d fields", pid, len(fields))
	}
	facts := Facts{Comm: strings.ToValidUTF8(string(raw[from+1:to]), "?")}
	if facts.Start, err = strconv.ParseUint(fields[19], 10, 64); err != nil {
		return Facts{}, fmt.Errorf("process %d: start %q", pid, fields[19])
	}
	file, err := os.Open(filepath.Join(f.root, strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return facts, nil
	}
	defer file.Close()
	buf := make([]byte, maxCommand)
	n, _ := io.ReadFull(file, buf)
	words := strings.SplitN(string(buf[:n]), "\x00", 3)
	if len(words) == 3 {
		words = words[:2]
	}
	facts.Command = strings.TrimSpace(strings.ToValidUTF8(strings.Join(words, " "), "?"))
	return facts, nil
}

// Names is who a container is, as the kubelet names its log.
type Names struct{ Namespace, Pod, Container string }

// NamesIn reads the kubelet's folder of container logs, /var/log/containers, whose links are called <pod>_<namespace>_<container>-<id>.log:
// the names of each container by its id. It needs no credentials; the names cannot hold an underscore.
func NamesIn(dir string) (map[string]Names, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	files, err := d.Readdirnames(maxOpen)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	out := make(map[string]Names, len(files))
	for _, file := range files {
		if id, n, ok := namesOf(file); ok {
			out[id] = n
		}
	}
	return out, nil
}

func namesOf(file string) (id string, n Names, ok bool) {
	parts := strings.Split(strings.TrimSuffix(file, ".log"), "_")
	if len(parts) != 3 || !strings.HasSuffix(file, ".log") {
		return "", Names{}, false
	}
	last := parts[2]
	k := len(last) - idLength - 1
	if k <= 0 || last[k] != '-' || !hexadecimal(last[k+1:]) {
		return "", Names{}, false
	}
	n = Names{Namespace: parts[1], Pod: parts[0], Container: last[:k]}
	return last[k+1:], n, n.Pod != "" && n.Namespace != ""
}
