package agentbench

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/hook/hooktest"
)

// usage is what a process takes. CPU is the mean share of one core; memory the most and the mean of one look a second.
type usage struct {
	Name       string  `json:"name"`
	CPU        float64 `json:"cpu_percent_of_a_core"`
	RSSMax     float64 `json:"rss_mib_max"`
	RSSMean    float64 `json:"rss_mib_mean"`
	PSSMax     float64 `json:"pss_mib_max"`
	PrivateMax float64 `json:"private_mib_max"`
	Threads    int     `json:"threads"`
}

func (u *usage) add(v usage) {
	u.CPU += v.CPU
	u.RSSMax += v.RSSMax
	u.RSSMean += v.RSSMean
	u.PSSMax += v.PSSMax
	u.PrivateMax += v.PrivateMax
	u.Threads += v.Threads
}

// meter reads one process. It must not start others: end checks that.
type meter struct {
	usage
	pid   int
	from  time.Duration
	looks int
}

func (m *meter) path(name string) string { return fmt.Sprintf("/proc/%d/%s", m.pid, name) }

// cpu is user and system time of all of the process's threads, by the kernel's clock of it: /proc counts in hundredths of a second.
func (m *meter) cpu(b testing.TB) time.Duration {
	var t unix.Timespec
	const scheduled = 2 // CPUCLOCK_SCHED: see clock_getcpuclockid(3)
	if err := unix.ClockGettime(int32(^m.pid<<3|scheduled), &t); err != nil {
		b.Fatalf("processor time of %s: %v", m.Name, err)
	}
	return time.Duration(t.Nano())
}

func (m *meter) begin(b testing.TB) { m.from = m.cpu(b) }

// window adds the share of a window that ends, and returns it.
func (m *meter) window(b testing.TB, width time.Duration) float64 {
	share := 100 * float64(m.cpu(b)-m.from) / float64(width)
	m.CPU += share
	return share
}

func (m *meter) look(b testing.TB) {
	kib := rollup(b, m.path("smaps_rollup"))
	rss := kib["Rss:"] / 1024
	m.looks++
	m.RSSMax, m.RSSMean = max(m.RSSMax, rss), m.RSSMean+(rss-m.RSSMean)/float64(m.looks)
	m.PSSMax = max(m.PSSMax, kib["Pss:"]/1024)
	m.PrivateMax = max(m.PrivateMax, (kib["Private_Clean:"]+kib["Private_Dirty:"])/1024)
}

func rollup(b testing.TB, path string) map[string]float64 {
	raw, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	kib := map[string]float64{}
	for l := range strings.Lines(string(raw)) {
		if f := strings.Fields(l); len(f) == 3 && f[2] == "kB" {
			kib[f[0]], _ = strconv.ParseFloat(f[1], 64)
		}
	}
	return kib
}

func (m *meter) end(b testing.TB, windows int) {
	m.CPU /= float64(windows)
	tasks, err := os.ReadDir(m.path("task"))
	if err != nil {
		b.Fatal(err)
	}
	m.Threads = len(tasks)
	for _, t := range tasks {
		if raw, err := os.ReadFile(m.path("task/" + t.Name() + "/children")); err == nil && len(raw) > 0 {
			b.Errorf("%s has children that are not measured: %s", m.Name, raw)
		}
	}
}

// take scrapes as Prometheus does: with gzip, which it does not unpack here.
func (s *scrapes) take(b testing.TB, url string) {
	q, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url, nil)
	if err != nil {
		b.Fatal(err)
	}
	q.Header.Set("Accept-Encoding", "gzip")
	q.Header.Set("Accept", "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2")
	from := time.Now()
	r, err := http.DefaultTransport.RoundTrip(q)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Body.Close()
	size, err := io.Copy(io.Discard, r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		b.Fatalf("%s: %s, %v", url, r.Status, err)
	}
	s.took = append(s.took, float64(time.Since(from))/1e6)
	s.Packed = round(float64(size) / 1000)
}

// train starts ranks that step, and gives their pod the GPUs.
func (n *node) train(b testing.TB, ranks int, every time.Duration) {
	dir := hooktest.Pod(b, n.kubeletRoot(), "0a7f3c1e-5b0d-4a53-9d7e-3f1c2b4a6d80")
	for i := range ranks {
		hooktest.Start(b, hooktest.Config{Dir: dir, Rank: i, LocalRank: i, WorldSize: ranks, StepEvery: every, CanSave: true})
		fill(b, filepath.Join(dir, hook.RingName(i)))
	}
	var held []string
	for _, g := range n.gpus.GPUs() {
		held = append(held, g.UUID)
	}
	n.kubelet.give("train", "llm-0", "torch", held...)
	n.eventually("the ranks on the endpoint", func() bool { return strings.Count(n.scrape(), "\npitcrew_train_step{") >= ranks })
}

// fill gives every record of a ring the phases that a rank on a GPU measures; the stand-in writes the others, step by step.
func fill(b testing.TB, path string) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		b.Fatal(err)
	}
	word := make([]byte, 8)
	for record := int64(4096); record < info.Size(); record += 128 {
		for _, offset := range []int64{40, 56, 64, 72, 80} { // data wait, backward, optimizer, communication, launch
			binary.LittleEndian.PutUint64(word, uint64(time.Millisecond))
			if _, err := f.WriteAt(word, record+offset); err != nil {
				b.Fatal(err)
			}
		}
		binary.LittleEndian.PutUint64(word, math.Float64bits(1.5))
		if _, err := f.WriteAt(word, record+96); err != nil {
			b.Fatal(err)
		}
	}
}

func loadAverage() float64 {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(raw), " ")
	v, _ := strconv.ParseFloat(first, 64)
	return v
}

func cpuCount() int { return runtime.NumCPU() }

func cpuModel() string {
	raw, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	_, rest, _ := strings.Cut(string(raw), "model name")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), ":"))
}
