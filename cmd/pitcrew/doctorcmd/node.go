package doctorcmd

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// host is the root of a node's file system; tests use another.
type host string

func (h host) path(p string) string { return filepath.Join(string(h), p) }

// libraries are where distributions and the GPU operator put libdcgm.
var libraries = []string{
	"/usr/lib/x86_64-linux-gnu/libdcgm.so.4", "/usr/lib/aarch64-linux-gnu/libdcgm.so.4", "/usr/lib64/libdcgm.so.4", "/usr/lib/libdcgm.so.4", "/usr/local/lib/libdcgm.so.4",
}

func (h host) checks() []check {
	return []check{
		{"GPUs", func(context.Context) (answer, error) {
			gpus, err := filepath.Glob(h.path("/dev/nvidia[0-9]*"))
			if err != nil {
				return answer{}, err
			}
			if len(gpus) == 0 {
				return warn("no /dev/nvidia0", "on a node without NVIDIA GPUs, only the kernel log and the fabric are watched")
			}
			return ok(strings.Join(gpus, " "))
		}},
		{"NVIDIA driver", func(context.Context) (answer, error) {
			b, err := os.ReadFile(h.path("/proc/driver/nvidia/version"))
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return warn("the driver is not loaded", "load it, or install the GPU operator")
			case err != nil:
				return answer{}, err
			}
			line, _, _ := strings.Cut(string(b), "\n")
			return ok(strings.Join(strings.Fields(line), " "))
		}},
		{"kernel log", func(context.Context) (answer, error) {
			f, err := os.OpenFile(h.path("/dev/kmsg"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
			switch {
			case errors.Is(err, fs.ErrPermission):
				return bad("/dev/kmsg may not be read", "run the agent privileged (the chart does), or as root with CAP_SYSLOG")
			case err != nil:
				return bad(err.Error(), "mount /dev/kmsg into the container")
			}
			defer f.Close()
			if _, err := f.Read(make([]byte, 8192)); err != nil && !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EPIPE) {
				return bad("/dev/kmsg opens, but does not read: "+err.Error(), "run the agent privileged (the chart does)")
			}
			return ok("/dev/kmsg can be read")
		}},
		{"DCGM", func(context.Context) (answer, error) {
			for _, p := range libraries {
				if _, err := os.Stat(h.path(p)); err == nil {
					return ok(p)
				}
			}
			return warn("no libdcgm.so.4 in the usual folders", "install datacenter-gpu-manager-4-core, or use the DCGM in the agent's image; without it, GPUs have no metrics and no field watches")
		}},
		{"kubelet's pod resources", func(context.Context) (answer, error) {
			const socket = "/var/lib/kubelet/pod-resources/kubelet.sock"
			info, err := os.Stat(h.path(socket))
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return warn("no "+socket, "without it, GPUs are not attributed to pods: mount it into the agent, or set the kubelet's root folder")
			case err != nil:
				return answer{}, err
			case info.Mode()&fs.ModeSocket == 0:
				return bad(socket+" is not a socket", "check the kubelet's root folder")
			}
			return ok(socket)
		}},
		{"cgroup v2", func(context.Context) (answer, error) {
			if _, err := os.Stat(h.path("/sys/fs/cgroup/cgroup.controllers")); err != nil {
				return warn("cgroup v1", "processes are attributed to pods by their cgroup; version 2 was tried")
			}
			return ok("mounted at /sys/fs/cgroup")
		}},
		{"fabric", func(context.Context) (answer, error) {
			found, err := filepath.Glob(h.path("/sys/class/infiniband/*"))
			if err != nil {
				return answer{}, err
			}
			if len(found) == 0 {
				return ok("no InfiniBand or RoCE ports")
			}
			var names []string
			for _, p := range found {
				names = append(names, filepath.Base(p))
			}
			return ok(strings.Join(names, " "))
		}},
	}
}
