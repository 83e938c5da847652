// Package proctest builds /proc trees for tests, in the shape of the kernel's and of the NVIDIA driver's.
package proctest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Tree is a /proc that a test writes.
type Tree struct {
	t    testing.TB
	Root string
}

// New makes an empty tree.
func New(t testing.TB) Tree {
	t.Helper()
	return Tree{t, t.TempDir()}
}

func (p Tree) write(name, content string) {
	p.t.Helper()
	path := filepath.Join(p.Root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// GPU has the driver know a GPU: its device file is /dev/nvidia<minor>.
func (p Tree) GPU(minor int, uuid, pci string) {
	p.t.Helper()
	p.write("driver/nvidia/gpus/"+pci+".0/information", fmt.Sprintf("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 123\nGPU UUID: \t %s\n"+
		"Video BIOS: \t 96.00.74.00.1a\nBus Type: \t PCIe\nDMA Size: \t 52 bits\nBus Location: \t %s.0\nDevice Minor: \t %d\nGPU Firmware: \t 550.54.15\nGPU Excluded:\t No\n", uuid, pci, minor))
}

// Process starts one: start is in ticks, group its control group, open what its file descriptors lead to.
func (p Tree) Process(pid int, start uint64, comm, group string, args []string, open ...string) {
	p.t.Helper()
	dir := strconv.Itoa(pid)
	fields := make([]string, 50) // from the state on
	for i := range fields {
		fields[i] = "0"
	}
	fields[0], fields[19] = "S", strconv.FormatUint(start, 10)
	p.write(dir+"/stat", fmt.Sprintf("%d (%s) %s\n", pid, comm, strings.Join(fields, " ")))
	p.write(dir+"/comm", comm+"\n")
	p.write(dir+"/cgroup", "0::"+group+"\n")
	p.write(dir+"/cmdline", strings.Join(args, "\x00")+"\x00")
	p.Open(pid, open...)
}

// Open replaces what a process has open.
func (p Tree) Open(pid int, open ...string) {
	p.t.Helper()
	dir := filepath.Join(p.Root, strconv.Itoa(pid), "fd")
	if err := os.RemoveAll(dir); err != nil {
		p.t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		p.t.Fatal(err)
	}
	for n, to := range open {
		if err := os.Symlink(to, filepath.Join(dir, strconv.Itoa(n))); err != nil {
			p.t.Fatal(err)
		}
	}
}

// End takes a process away.
func (p Tree) End(pid int) {
	p.t.Helper()
	if err := os.RemoveAll(filepath.Join(p.Root, strconv.Itoa(pid))); err != nil {
		p.t.Fatal(err)
	}
}
