package sandbox

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// FaultKind names what can break.
type FaultKind string

const (
	ECCDegrading FaultKind = "ecc-degrading" // XID 63 three times and rising corrected errors; the rank lives
	XID79        FaultKind = "xid79"         // off the bus, said by the kernel log and DCGM; the rank's calls block
	GPULost      FaultKind = "gpu-lost"      // off the bus, said by DCGM alone; the rank's calls block
	XID48        FaultKind = "xid48"         // uncorrectable memory error; the rank's calls fail
	RankKilled   FaultKind = "rank-killed"   // SIGKILL to the rank's worker
	RankHung     FaultKind = "rank-hung"     // SIGSTOP to the rank's worker
	NodeLost     FaultKind = "node-lost"     // power cut
)

// FaultKinds lists what a job does not survive by itself, in a fixed order. SlowFaults and UnconfirmedFaults are others.
var FaultKinds = []FaultKind{ECCDegrading, XID79, GPULost, XID48, RankKilled, RankHung, NodeLost}

// AllFaults lists every kind, in a fixed order.
func AllFaults() []FaultKind { return slices.Concat(FaultKinds, SlowFaults, UnconfirmedFaults) }

// Fault says what to break: on a Node its GPU (for a rank fault the worker of that local rank), or, with Node empty, where the
// running Rank is.
type Fault struct {
	Kind FaultKind `json:"kind"`
	Node string    `json:"node,omitempty"`
	GPU  int       `json:"gpu"`
	Rank int       `json:"rank"`
}

// Injected says what was broken. At is taken just before the first effect.
type Injected struct {
	Kind FaultKind `json:"kind"`
	Node string    `json:"node"`
	GPU  GPU       `json:"gpu"`
	PID  int       `json:"pid,omitempty"` // of the worker that a rank fault hit
	At   time.Time `json:"at"`
}

// Rank is a live training process, found by its ring.
type Rank struct {
	Rank      int    `json:"rank"`
	LocalRank int    `json:"local_rank"`
	PID       int    `json:"pid"`
	PodUID    string `json:"pod_uid"`
	Node      string `json:"node"`
}

// Ranks reads who trains where from the rings in the pods' directories (docs/hook-protocol.md, section 2). A ring whose process is
// gone, or is not the pod's, does not count.
func (s *Sandbox) Ranks() []Rank {
	ranks := []Rank{}
	for _, n := range s.nodes {
		rings, _ := filepath.Glob(filepath.Join(n.PodsDir(), "*", "volumes", "kubernetes.io~empty-dir", "pitcrew", "local-*.ring"))
		for _, path := range rings {
			uid := strings.Split(strings.TrimPrefix(path, n.PodsDir()+"/"), "/")[0]
			head := make([]byte, 48)
			f, err := os.Open(path)
			if err != nil {
				continue
			}
			_, err = f.ReadAt(head, 0)
			f.Close()
			if err != nil || string(head[:8]) != "PCRING01" {
				continue
			}
			r := Rank{Rank: int(binary.LittleEndian.Uint32(head[24:])), LocalRank: int(binary.LittleEndian.Uint32(head[28:])),
				PID: int(binary.LittleEndian.Uint32(head[40:])), PodUID: uid, Node: n.Name}
			if slices.Contains(s.procs.find(n.unit()+"pod/"+uid+"/"), r.PID) {
				ranks = append(ranks, r)
			}
		}
	}
	return ranks
}

// Fault breaks something and returns at once; what follows is for Pitcrew to see.
func (s *Sandbox) Fault(_ context.Context, f Fault) (Injected, error) {
	s.faults.Lock()
	defer s.faults.Unlock()
	if all := AllFaults(); !slices.Contains(all, f.Kind) {
		return Injected{}, fmt.Errorf("sandbox: unknown fault %q: want one of %s", f.Kind, strings.Trim(fmt.Sprint(all), "[]"))
	}
	onRank := f.Kind == RankKilled || f.Kind == RankHung
	var rank *Rank
	if onRank || f.Node == "" {
		var err error
		if rank, err = s.findRank(f); err != nil {
			return Injected{}, err
		}
		f.Node, f.GPU = rank.Node, s.gpuOf(*rank)
	}
	n, err := s.Node(f.Node)
	if err != nil {
		return Injected{}, err
	}
	if !n.Up() {
		return Injected{}, fmt.Errorf("sandbox: node %s is lost already: repair it first", n.Name)
	}
	if f.GPU < 0 || f.GPU >= len(n.GPUs) {
		return Injected{}, fmt.Errorf("sandbox: node %s has no GPU %d", n.Name, f.GPU)
	}
	in := Injected{Kind: f.Kind, Node: n.Name, GPU: n.GPUs[f.GPU], At: time.Now()}
	if onRank {
		in.PID = rank.PID
	}
	if _, slow := slowFaults[f.Kind]; slow {
		return in, n.slow(in)
	}
	return in, n.fail(in)
}

func (s *Sandbox) findRank(f Fault) (*Rank, error) {
	var found []Rank
	for _, r := range s.Ranks() {
		if f.Node == "" && r.Rank == f.Rank || f.Node == r.Node && r.LocalRank == f.GPU {
			found = append(found, r)
		}
	}
	switch {
	case len(found) == 1:
		return &found[0], nil
	case f.Node == "":
		return nil, fmt.Errorf("sandbox: %d running processes are rank %d; `pitcrew sandbox status` shows the ranks, --node names where to break", len(found), f.Rank)
	}
	return nil, fmt.Errorf("sandbox: %d running processes on %s are local rank %d", len(found), f.Node, f.GPU)
}

// gpuOf is the device that a rank trains on: the pod's GPUs in order, by local rank.
func (s *Sandbox) gpuOf(r Rank) int {
	n, err := s.Node(r.Node)
	if err != nil {
		return 0
	}
	n.mu.Lock()
	k := n.kubelet
	n.mu.Unlock()
	if k == nil {
		return 0
	}
	nth := 0
	gpus, owners := k.gpus.assigned()
	for i, o := range owners {
		if string(o.pod) != r.PodUID {
			continue
		}
		if nth == r.LocalRank {
			return gpus[i].Index
		}
		nth++
	}
	return 0
}

// fail makes the fault real, in the order in which hardware would show it: the device first, then the driver's words.
func (n *Node) fail(in Injected) error {
	g := in.GPU
	xid := func(code int, text string) error {
		n.troubled[g.Index] = true
		if err := n.kmsg.write(kernWarning, fmt.Sprintf("NVRM: Xid (PCI:%s): %d, %s", g.PCI, code, text)); err != nil {
			return err
		}
		return n.DCGM.XID(g.Index, code)
	}
	const nobody = "pid='<unknown>', name=<unknown>, "
	remap := func() error {
		return xid(63, nobody+"Row Remapper: New row (0x0000000018f31d80) marked for remapping, reset gpu to activate.")
	}
	again := func(row string) func() error {
		return func() error {
			return xid(63, nobody+"Row Remapper: New row ("+row+") marked for remapping, reset gpu to activate.")
		}
	}
	steps := map[FaultKind][]func() error{
		ECCDegrading: {remap, again("0x0000000018f31e80"), again("0x0000000018f32a00"), func() error { return n.DCGM.RampECC(g.Index, 20) }},
		XID79: {
			func() error { return g.set(GPUBlocks) },
			func() error { return xid(79, nobody+"GPU has fallen off the bus.") },
			func() error {
				return n.kmsg.write(kernWarning, "NVRM: GPU "+g.PCI+".0: GPU has fallen off the bus.")
			},
			func() error { return n.DCGM.Lose(g.Index) },
			func() error {
				return xid(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
			},
		},
		GPULost: {func() error { return g.set(GPUBlocks) }, func() error { return n.DCGM.Lose(g.Index) }},
		XID48: {
			func() error { return g.set(GPUErrors) },
			func() error {
				return xid(48, nobody+"An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at physAddr 0x18f31d80 partition 16, subpartition 3.")
			},
			remap,
			func() error {
				return xid(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
			},
		},
		RankKilled: {func() error { return syscall.Kill(in.PID, syscall.SIGKILL) }},
		RankHung:   {func() error { return syscall.Kill(in.PID, syscall.SIGSTOP) }},
		NodeLost: {func() error {
			n.powerOff()
			n.sandbox.procs.kill(n.unit())
			return nil
		}},
	}
	for _, step := range steps[in.Kind] {
		if err := step(); err != nil {
			return fmt.Errorf("sandbox: fault %s on %s: %w", in.Kind, n.Name, err)
		}
	}
	return nil
}

// Repair makes a node whole: healthy GPUs, stopped processes going again and, if it was lost, a boot with a new boot id, a kubelet that
// reconciles what the API still expects of it, and the processes that StartProcess had put there.
func (s *Sandbox) Repair(_ context.Context, node string) error {
	s.faults.Lock()
	defer s.faults.Unlock()
	n, err := s.Node(node)
	if err != nil {
		return err
	}
	if n.Up() {
		for _, pid := range s.procs.find(n.unit()) {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
		return n.healGPUs()
	}
	s.procs.kill(n.unit())
	if err := n.boot(); err != nil {
		return err
	}
	if err := n.startKubelet(s.ctx); err != nil {
		return err
	}
	return s.startAgain(node)
}
