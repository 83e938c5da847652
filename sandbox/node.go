package sandbox

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Dir is the node's directory; everything that would be local to the machine lies below it.
func (n *Node) Dir() string { return n.dir }

// Kmsg is the node's kernel log, in /dev/kmsg's record form. A boot replaces the file.
func (n *Node) Kmsg() string { return filepath.Join(n.dir, "kmsg") }

// FabricLog stands for /var/log/fabricmanager.log. Nothing writes it by itself.
func (n *Node) FabricLog() string { return filepath.Join(n.dir, "fabricmanager.log") }

// BootIDFile stands for /proc/sys/kernel/random/boot_id.
func (n *Node) BootIDFile() string { return filepath.Join(n.dir, "boot_id") }

// DCGMScript is the file that drives the stub libdcgm of this node.
func (n *Node) DCGMScript() string { return filepath.Join(n.dir, "dcgm.script") }

// LogDir holds a pod's container logs, <container>.log; they outlive the pod.
func (n *Node) LogDir(pod *corev1.Pod) string {
	return filepath.Join(n.sandbox.Logs(), "pods", pod.Namespace+"_"+pod.Name+"_"+string(pod.UID[:8]))
}

// BootID is the present boot's.
func (n *Node) BootID() string {
	b, _ := os.ReadFile(n.BootIDFile())
	return strings.TrimSpace(string(b))
}

// Up says whether the node has power.
func (n *Node) Up() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.kubelet != nil
}

func (n *Node) unit() string { return "node/" + n.Name + "/" }

// boot gives the node a new boot id, an empty kernel log and healthy GPUs.
func (n *Node) boot() error {
	raw := make([]byte, 16)
	if _, err := rand.Read(raw); err != nil {
		return err
	}
	raw[6], raw[8] = raw[6]&0x0f|0x40, raw[8]&0x3f|0x80
	id := fmt.Sprintf("%x-%x-%x-%x-%x\n", raw[:4], raw[4:6], raw[6:8], raw[8:10], raw[10:])
	if err := os.WriteFile(n.BootIDFile(), []byte(id), 0o644); err != nil {
		return err
	}
	if err := n.healGPUs(); err != nil {
		return err
	}
	return n.kmsg.boot(n.Name, n.GPUs)
}

func (n *Node) healGPUs() error {
	for _, g := range n.GPUs {
		if err := errors.Join(g.set(GPUOk), g.setPace(Pace{}), n.DCGM.Heal(g.Index)); err != nil {
			return err
		}
	}
	for index := range n.troubled { // after a reset the driver takes its verdict back
		text := fmt.Sprintf("NVRM: Xid (PCI:%s): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", n.GPUs[index].PCI)
		if err := n.kmsg.write(kernWarning, text); err != nil {
			return err
		}
	}
	clear(n.troubled)
	return nil
}

// powerOff cuts the kubelet off: no lease, no endpoint, no status. It returns the kubelet that was, or nil.
func (n *Node) powerOff() *kubelet {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := n.kubelet
	n.kubelet = nil
	if k != nil {
		k.cancel()
	}
	return k
}
