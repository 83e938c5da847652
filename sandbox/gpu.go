package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew/pitcrew/sandbox/simgpu"
)

const gpuResource = "nvidia.com/gpu"

// GPU is one simulated device. UUID and PCI address follow from the node's name and the index alone.
type GPU struct {
	Index int    `json:"index"`
	UUID  string `json:"uuid"`
	PCI   string `json:"pci"`  // as the driver prints it: 0000:1a:00
	File  string `json:"file"` // its first byte the training process asks before it uses the device: see GPUState; the rest is its Pace
}

// GPUState is the byte in a GPU's file: what a call to the device does.
type GPUState byte

const (
	GPUOk     GPUState = 'o' // returns
	GPUBlocks GPUState = 'b' // never returns: the device is off the bus
	GPUErrors GPUState = 'e' // fails: the context is poisoned
)

// gpusOf names the node's devices as the stub libdcgm does; dir is where their files go.
func gpusOf(devices []simgpu.GPU, dir string) []GPU {
	gpus := make([]GPU, len(devices))
	for i, d := range devices {
		// DCGM says 00000000:1A:00.0, the kernel log 0000:1a:00.
		pci := strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(d.PCI, "0000"), ".0"))
		gpus[i] = GPU{Index: i, UUID: d.UUID, PCI: pci, File: filepath.Join(dir, d.UUID)}
	}
	return gpus
}

// set changes what calls to the device do, in place: a training process may hold the file mapped.
func (g GPU) set(s GPUState) error {
	f, err := os.OpenFile(g.File, os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt([]byte{byte(s)}, 0)
	return err
}

// gpuPool hands a node's devices to pods, lowest index first, as the device plugin does.
type gpuPool struct {
	mu    sync.Mutex
	gpus  []GPU
	owner map[string]gpuOwner // by UUID
}

type gpuOwner struct {
	pod       types.UID
	namespace string
	name      string
	container string
}

func newGPUPool(gpus []GPU) *gpuPool { return &gpuPool{gpus: gpus, owner: map[string]gpuOwner{}} }

// take gives n devices or none.
func (p *gpuPool) take(n int, owner gpuOwner) ([]GPU, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var got []GPU
	for _, g := range p.gpus {
		if _, taken := p.owner[g.UUID]; !taken && len(got) < n {
			got = append(got, g)
		}
	}
	if len(got) < n {
		return nil, false
	}
	for _, g := range got {
		p.owner[g.UUID] = owner
	}
	return got, true
}

func (p *gpuPool) release(pod types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uuid, o := range p.owner {
		if o.pod == pod {
			delete(p.owner, uuid)
		}
	}
}

// assigned lists every device that has an owner, in index order.
func (p *gpuPool) assigned() (gpus []GPU, owners []gpuOwner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.gpus {
		if o, ok := p.owner[g.UUID]; ok {
			gpus, owners = append(gpus, g), append(owners, o)
		}
	}
	return gpus, owners
}
