package hook

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// censusEvery is the time between two looks at all processes of the node. A look reads one small file of each.
const censusEvery = 5 * time.Second

// census answers which processes of a pod live. A ring names its process by the number in the container's PID namespace. An agent with
// hostPID sees the host's numbers, where the same number is another process's, such as a kernel thread's. So a process is a rank's only
// if its control group is the pod's and its innermost NSpid is the ring's. It is safe for concurrent use.
//
// It reads only files of /proc that the kernel fills without the process's memory lock and without any file system: cgroup, status and
// stat. No process can make them hang.
type census struct {
	proc string

	mu   sync.Mutex
	at   time.Time
	pods bool             // processes of other pods than this agent's can be seen
	of   map[string][]int // host PIDs by pod UID
}

// mayBeAlive says whether the process that a ring names can still be running: one with its number is in the pod, is no zombie and is not
// younger than the ring. If no pod's processes can be seen, the number alone has to do; from another PID namespace that errs on the side
// of no.
func (c *census) mayBeAlive(podUID string, s *Snapshot) bool {
	if s.PID <= 0 {
		return false
	}
	mine, pods, age := c.look(podUID)
	if !pods {
		return c.runs(s.PID, s) && !c.kernelThread(s.PID)
	}
	for _, pid := range mine {
		if c.inner(pid) == s.PID && c.runs(pid, s) {
			return true
		}
	}
	// A process that beat after the look may be missing from it. The next look decides.
	return age > s.HeartbeatAge()
}

// runs says whether a process lives and is not younger than the ring.
func (c *census) runs(pid int, s *Snapshot) bool {
	state, start, err := procStat(c.proc, pid)
	return err == nil && state != "Z" && state != "X" && start <= clampDuration(s.StartMono)+time.Second
}

// look is a pod's processes, whether the processes of pods can be seen at all, and how old that knowledge is.
func (c *census) look(podUID string) (pids []int, pods bool, age time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.at.IsZero() || now.Sub(c.at) >= censusEvery {
		c.at = now
		c.take()
	}
	return c.of[podUID], c.pods, now.Sub(c.at)
}

func (c *census) take() {
	c.of, c.pods = map[string][]int{}, false
	dir, err := os.Open(c.proc)
	if err != nil {
		return
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1)
	own := podOfGroup(filepath.Join(c.proc, "self"))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if uid := podOfGroup(filepath.Join(c.proc, name)); uid != "" {
			c.of[uid] = append(c.of[uid], pid)
			c.pods = c.pods || uid != own
		}
	}
}

// maxProcFile bounds what is read of a file of /proc.
const maxProcFile = 8 << 10

func readProc(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, maxProcFile)
	n, _ := f.Read(b)
	return string(b[:n])
}

// podOfGroup is the UID of the pod whose control group a process is in, or "". The kubelet's drivers name it pod<UID>, or
// ...-pod<UID with _>.slice (receivers/process has the shapes).
func podOfGroup(process string) string {
	for segment := range strings.FieldsFuncSeq(readProc(filepath.Join(process, "cgroup")), func(r rune) bool { return r == '/' || r == '\n' }) {
		s, slice := strings.CutSuffix(segment, ".slice")
		if k := strings.LastIndex(s, "-pod"); slice && k >= 0 {
			s = strings.ReplaceAll(s[k+1:], "_", "-")
		}
		if uid, ok := strings.CutPrefix(s, "pod"); ok && (len(uid) == 36 || len(uid) == 32) && ValidPodUID(uid) {
			return uid
		}
	}
	return ""
}

// inner is the process's number in its own PID namespace, or 0.
func (c *census) inner(pid int) int {
	for line := range strings.Lines(readProc(filepath.Join(c.proc, strconv.Itoa(pid), "status"))) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			all := strings.Fields(rest)
			if len(all) == 0 {
				return 0
			}
			n, _ := strconv.Atoi(all[len(all)-1])
			return n
		}
	}
	return 0
}

// kernelThread says whether a process is one: it has no rank's number for long, and never ends.
func (c *census) kernelThread(pid int) bool {
	for line := range strings.Lines(readProc(filepath.Join(c.proc, strconv.Itoa(pid), "status"))) {
		if rest, ok := strings.CutPrefix(line, "Kthread:"); ok {
			return strings.TrimSpace(rest) == "1"
		}
		if strings.HasPrefix(line, "VmSize:") { // kernels before 6.8 do not say it; a kernel thread has no memory of its own
			return false
		}
	}
	return true
}
