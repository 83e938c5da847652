package sandbox

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// kernelLog writes a node's kernel log in the record form of /dev/kmsg: "prio,seq,usec,-;text\n". Time is this machine's
// CLOCK_MONOTONIC, so that a reader which turns it into wall time by the machine's boot time is right.
type kernelLog struct {
	mu   sync.Mutex
	path string
	f    *os.File
	seq  uint64
}

const (
	kernWarning = 4 // the level at which the NVIDIA driver prints
	kernInfo    = 6
)

// boot begins a new log, as a restarted kernel does: an empty ring, sequence 0, and what the driver prints when it loads.
func (k *kernelLog) boot(node string, gpus []GPU) error {
	k.mu.Lock()
	if k.f != nil {
		k.f.Close()
	}
	tmp := k.path + ".new"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o644)
	if err == nil {
		k.f, k.seq = f, 0
		err = os.Rename(tmp, k.path)
	}
	k.mu.Unlock()
	if err != nil {
		return fmt.Errorf("kernel log of %s: %w", node, err)
	}
	lines := []string{
		"Linux version 6.8.0-sandbox (pitcrew@" + node + ") #1 SMP PREEMPT_DYNAMIC",
		"nvidia-nvlink: Nvlink Core is being initialized, major device number 509",
		"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  " + DriverVersion + "  Release Build  (pitcrew-sandbox)",
	}
	for _, g := range gpus {
		lines = append(lines, "NVRM: GPU at PCI:"+g.PCI+": "+g.UUID)
	}
	for _, l := range lines {
		if err := k.write(kernInfo, l); err != nil {
			return err
		}
	}
	return nil
}

// write appends one record with one write, so that a reader never sees half of it.
func (k *kernelLog) write(prio int, text string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return err
	}
	usec := time.Duration(ts.Nano()).Microseconds()
	_, err := fmt.Fprintf(k.f, "%d,%d,%d,-;%s\n", prio, k.seq, usec, text)
	k.seq++
	return err
}

func (k *kernelLog) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.f != nil {
		k.f.Close()
		k.f = nil
	}
}
