package doctorcmd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/pitcrew/pitcrew/sandbox"
)

// leastFree is the disk space that the sandbox and its build caches take.
const leastFree = 12 << 30

// tool is a program that has to be on PATH.
func tool(name, forWhat string, alternatives ...string) check {
	return check{name, func(context.Context) (answer, error) {
		for _, n := range append([]string{name}, alternatives...) {
			if path, err := exec.LookPath(n); err == nil {
				return ok(path)
			}
		}
		return bad("not on PATH", "install "+name+": "+forWhat)
	}}
}

func laptopChecks() []check {
	return []check{
		tool("go", "the programs and the sandbox's control plane are built with it"),
		tool("cc", "the stub of libdcgm is built with it", "gcc", "clang"),
		tool("make", "make demo and make test"),
		tool("git", "the programs carry the revision they were built from"),
		{"python with torch", func(ctx context.Context) (answer, error) {
			for _, path := range []string{os.Getenv("PITCREW_PYTHON"), "python3", "/usr/bin/python3"} {
				if path == "" {
					continue
				}
				out, err := exec.CommandContext(ctx, path, "-c", "import sys, torch; print(sys.executable, torch.__version__)").Output()
				if err == nil {
					return ok("torch: " + strings.TrimSpace(string(out)))
				}
			}
			if _, err := exec.LookPath("python3"); err != nil {
				return bad("no python3 on PATH", "install python3 and python3-venv")
			}
			return warn("python3 without torch", "make setup installs torch; without it the sandbox trains with a stand-in")
		}},
		{"cache of the sandbox", func(context.Context) (answer, error) {
			dir, err := sandbox.CacheDir()
			if err != nil {
				return answer{remedy: "set PITCREW_CACHE"}, err
			}
			if built, _ := filepath.Glob(filepath.Join(dir, "controlplane", "*", "kube-apiserver")); len(built) == 0 {
				return warn(dir+" has no control plane yet", "make setup builds it once, in about 10 minutes on two cores")
			}
			return ok(dir + " has the control plane")
		}},
		{"disk space", func(context.Context) (answer, error) {
			dir, err := sandbox.CacheDir()
			if err != nil {
				return answer{}, err
			}
			for ; ; dir = filepath.Dir(dir) { // the cache may not exist yet
				var fs syscall.Statfs_t
				if err := syscall.Statfs(dir, &fs); err == nil {
					free := fs.Bavail * uint64(fs.Bsize)
					found := fmt.Sprintf("%d GiB free at %s", free>>30, dir)
					if free < leastFree {
						return warn(found, fmt.Sprintf("a first build takes about %d GiB; free some, or set PITCREW_CACHE and GOCACHE", leastFree>>30))
					}
					return ok(found)
				} else if dir == filepath.Dir(dir) {
					return answer{}, err
				}
			}
		}},
	}
}
