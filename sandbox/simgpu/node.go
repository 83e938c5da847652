// Package simgpu drives the simulated GPUs of one node: it keeps what the node's hardware is like and writes it as the script
// that the stub libdcgm.so.4 reads (sandbox/libdcgm). It promises that a reader of the script sees each change whole or not at
// all (written beside, renamed into place), and that a change is on disk when its method returns. It knows nothing of DCGM.
package simgpu

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// EnvScript is the environment variable in which the stub looks for the script's path.
const EnvScript = "PITCREW_DCGM_SCRIPT"

// MaxEvents is how many XIDs and violations a script keeps; older ones are dropped from it, long after they were delivered.
const MaxEvents = 1024

// GPU is what does not change about one simulated GPU.
type GPU struct {
	UUID   string // GPU-xxxxxxxx-...
	PCI    string // DCGM's spelling: 00000000:1A:00.0
	Name   string
	Serial string
}

// busOfSlot are the PCI buses of an HGX H100 board's eight slots.
var busOfSlot = [8]int{0x1a, 0x40, 0x53, 0x66, 0x9c, 0xc0, 0xd2, 0xe4}

// H100s returns n GPUs of one node. The UUIDs depend on the node's name and the slot alone, so they survive a restart.
func H100s(node string, n int) []GPU {
	gpus := make([]GPU, n)
	for i := range gpus {
		h := sha256.Sum256(fmt.Appendf(nil, "%s/%d", node, i))
		gpus[i] = GPU{
			UUID:   fmt.Sprintf("GPU-%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16]),
			PCI:    fmt.Sprintf("%08X:%02X:00.0", i/8, busOfSlot[i%8]),
			Name:   "NVIDIA H100 80GB HBM3",
			Serial: fmt.Sprintf("1650%x", h[16:20]),
		}
	}
	return gpus
}

// Node is the simulated GPU hardware of one node. Its methods may be called by any goroutine.
type Node struct {
	path   string
	gpus   []GPU
	origin time.Time
	now    func() time.Time

	mu      sync.Mutex
	state   map[int]string            // ok when absent; lost, gone, or a status of the script
	fields  map[int]map[uint16]string // GPU, or all with -1
	links   map[[2]int]string
	health  []string
	events  []string
	eventID int
	calls   map[string]string // function name → hang or fail line
	down    bool
	restart int

	entities entities
}

// New writes the script of a healthy node at path and returns the handle that changes it.
func New(path string, gpus []GPU) (*Node, error) {
	n := &Node{
		path: path, gpus: gpus, now: time.Now,
		state: map[int]string{}, fields: map[int]map[uint16]string{}, links: map[[2]int]string{}, calls: map[string]string{},
		entities: newEntities(),
	}
	n.origin = n.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	return n, n.write()
}

// Path is the script's path, to be given to the reader in EnvScript.
func (n *Node) Path() string { return n.path }

// GPUs returns the node's GPUs by slot.
func (n *Node) GPUs() []GPU { return append([]GPU(nil), n.gpus...) }

// change applies f and writes the script.
func (n *Node) change(gpu int, f func()) error {
	if gpu < -1 || gpu >= len(n.gpus) {
		return fmt.Errorf("simgpu %s: no GPU %d among %d", n.path, gpu, len(n.gpus))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
	return n.write()
}

// write renders the script beside its place and renames it there.
func (n *Node) write() error {
	tmp, err := os.CreateTemp(filepath.Dir(n.path), ".dcgm-*")
	if err != nil {
		return fmt.Errorf("simgpu: write script: %w", err)
	}
	defer os.Remove(tmp.Name()) // after the rename there is nothing left to remove
	if err := tmp.Chmod(0o644); err != nil {
		tmp.Close()
		return fmt.Errorf("simgpu: write script: %w", err)
	}
	if _, err := tmp.Write(n.render()); err != nil {
		tmp.Close()
		return fmt.Errorf("simgpu: write script: %w", err)
	}
	if err := tmp.Close(); err != nil {
		return fmt.Errorf("simgpu: write script: %w", err)
	}
	if err := os.Rename(tmp.Name(), n.path); err != nil {
		return fmt.Errorf("simgpu: write script: %w", err)
	}
	return nil
}
