package xidreceiver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/semconv"
)

func TestALineNamesThePodOfItsProcess(t *testing.T) {
	const uid = "1f2e3d4c-5b6a-4798-8697-a5b4c3d2e1f0"
	id := strings.Repeat("0123456789abcdef", 4)
	proc := t.TempDir()
	process := func(pid int, comm string) {
		dir := filepath.Join(proc, fmt.Sprint(pid))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, content := range map[string]string{"comm": comm + "\n", "cgroup": "0::/kubepods/burstable/pod" + uid + "/" + id + "\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	process(4242, "python3")
	process(4243, "pt_main_thread_") // what the kernel keeps of a longer name
	process(4244, "bash")            // has another's number by now
	r := newRig(t)
	r.cfg.Proc = proc
	r.start()
	for _, c := range []struct {
		line string
		pod  any
	}{
		{"NVRM: Xid (PCI:0000:1a:00): 31, pid=4242, name=python3, Ch 00000008", uid},
		{"NVRM: Xid (PCI:0000:40:00): 31, pid=4243, name=pt_main_thread_of_a_rank, Ch 00000008", uid},
		{"NVRM: Xid (PCI:0000:53:00): 31, pid=4244, name=python3, Ch 00000008", nil},
		{"NVRM: Xid (PCI:0000:66:00): 31, pid=4245, name=python3, Ch 00000008", nil}, // gone
		{"NVRM: Xid (PCI:0000:9c:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", nil},
	} {
		r.log.write("%s", c.line)
		rec := r.next()
		if rec.attrs[semconv.K8sPodUID] != c.pod || (rec.attrs[semconv.ContainerID] == id) != (c.pod != nil) {
			t.Errorf("%s: pod %v, container %v; want pod %v", c.line, rec.attrs[semconv.K8sPodUID], rec.attrs[semconv.ContainerID], c.pod)
		}
	}
}

func TestAnOldLinesProcessIsNotLookedFor(t *testing.T) {
	proc := t.TempDir()
	if err := os.Mkdir(filepath.Join(proc, "4242"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"comm": "python3\n", "cgroup": "0::/kubepods/pod1f2e3d4c-5b6a-4798-8697-a5b4c3d2e1f0\n"} {
		if err := os.WriteFile(filepath.Join(proc, "4242", name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := newRig(t)
	r.cfg.Proc = proc
	r.cfg.NewsWindow, r.log.age = time.Second, 10*time.Second
	r.log.write("NVRM: Xid (PCI:0000:01:00): 31, pid=4242, name=python3, Ch 00000008")
	r.start()
	if rec := r.next(); !rec.flag(semconv.History) || rec.attrs[semconv.K8sPodUID] != nil {
		t.Errorf("record %+v, want history without a pod", rec)
	}
}
