package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/sandbox"
)

// The line is one in the real kernel log of this machine, the agent one that reads it, as it does on a real node.
func TestALineInTheRealKernelLogHealsAJob(t *testing.T) {
	w, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		t.Skipf("/dev/kmsg cannot be written here: %v", err)
	}
	r := newRig(t)
	r.must(err)
	defer w.Close()
	j := r.training(sandbox.LauncherPitcrew)
	n, err := r.Box().Node(r.nodeOf(j, "1"))
	r.must(err)
	pci := r.freshAddress(n)
	r.agentWith(n, "PITCREW_KMSG=/dev/kmsg", "PITCREW_KMSG_USER_RECORDS=true", "PITCREW_BOOT_ID=/proc/sys/kernel/random/boot_id")
	t.Cleanup(func() { r.agentWith(n) })
	r.must(r.steps(j, 20*time.Second))
	b := r.before(j)
	_, err = fmt.Fprintf(w, "<4>NVRM: Xid (PCI:%s): %s\n", pci, remapFailed)
	r.must(err)
	i := r.follow(j, sandbox.Injected{Kind: sandbox.ECCDegrading, Node: n.Name, At: b.at})
	r.healed(j, b, i)
	if f := i.Faults[0]; f.Signal != "xid/64" || f.Node != n.Name || f.Event.Data.Target.PCI != pci {
		t.Errorf("the incident is about %s on %s, GPU at %s", f.Signal, f.Node, f.Event.Data.Target.PCI)
	}
}

// agentWith replaces a node's agent by one with other settings, and waits until it answers.
func (r *rig) agentWith(n *sandbox.Node, env ...string) {
	r.Helper()
	for _, process := range []string{"agent", "dcgm"} {
		r.must(r.Box().StopProcess(n.Name, process))
	}
	r.must(r.StartAgent(n, env...))
	for end := time.Now().Add(20 * time.Second); ; {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := r.Bus().Request(ctx, n.Name, bus.VerbStatus, bus.Command{})
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			r.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// kernelLine is a line of this machine's kernel log and its age.
type kernelLine struct {
	text string
	age  time.Duration
}

func (r *rig) kernelLog() []kernelLine {
	r.Helper()
	fd, err := syscall.Open("/dev/kmsg", syscall.O_RDONLY|syscall.O_NONBLOCK, 0)
	r.must(err)
	defer syscall.Close(fd)
	var now unix.Timespec
	r.must(unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	var out []kernelLine
	buf := make([]byte, 8192)
	for {
		n, err := syscall.Read(fd, buf)                                     // one record at a time
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.EINTR) { // overwritten while it was read
			continue
		}
		if err != nil || n == 0 {
			return out
		}
		head, text, _ := strings.Cut(string(buf[:n]), ";")
		var prio, seq, usec int64
		if _, err := fmt.Sscanf(head, "%d,%d,%d,", &prio, &seq, &usec); err == nil {
			out = append(out, kernelLine{text, time.Duration(now.Nano()) - time.Duration(usec)*time.Microsecond})
		}
	}
}

// remapFailed is a line that acts at once. One that only counts would do so by its condition, and conditions of this machine's boot, which is not
// the simulated node's, count for nothing: what earlier runs wrote must not act.
const remapFailed = "64, pid='<unknown>', name=<unknown>, Row Remapper error: (0x0000000018f31d80) - All reserved rows for bank are remapped"

// freshAddress is that of one of the node's GPUs which no earlier run has spoken of in this kernel's log: its condition would hold
// already. Where all are used up it is one that the node does not have. It waits until no earlier line is young enough to act.
func (r *rig) freshAddress(n *sandbox.Node) string {
	r.Helper()
	const maxEventAge = 62 * time.Second // of the policies, and a little
	used, wait := map[string]bool{}, time.Duration(0)
	for _, l := range r.kernelLog() {
		if pci, rest, ok := strings.Cut(l.text, "): "); ok && strings.HasPrefix(rest, remapFailed) {
			used[strings.TrimPrefix(pci, "NVRM: Xid (PCI:")] = true
			wait = max(wait, maxEventAge-l.age)
		}
	}
	if wait > 0 {
		r.Logf("an earlier run wrote such a line %s ago: waiting until it is stale", maxEventAge-wait)
		time.Sleep(wait)
	}
	for _, g := range n.GPUs {
		if !used[g.PCI] {
			return g.PCI
		}
	}
	return fmt.Sprintf("%04x:1a:00", 0x1000+time.Now().Unix()&0xefff)
}
