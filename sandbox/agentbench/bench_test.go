package agentbench

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/hook/hooktest"
)

// Env of the benchmark, set by make bench-agent.
const (
	envDuration = "DURATION" // how long is measured
	envOut      = "OUT"      // file for the figures as JSON
)

const (
	warmUp      = 15 * time.Second
	scrapeEvery = 15 * time.Second // as a Prometheus would
	steps       = 5                // a second, of each rank
)

// What both processes together may take. A run beyond it fails.
const (
	boundCPU = 2.0   // per cent of a core
	boundRSS = 120.0 // MiB, the sum of what each took at its most
)

// usage is what a process takes. CPU is the share of one core over the whole duration; memory the most and the mean of one look a second.
type usage struct {
	Name       string  `json:"name"`
	CPU        float64 `json:"cpu_percent_of_a_core"`
	RSSMax     float64 `json:"rss_mib_max"`
	RSSMean    float64 `json:"rss_mib_mean"`
	PSSMax     float64 `json:"pss_mib_max"`
	PrivateMax float64 `json:"private_mib_max"`
	Threads    int     `json:"threads"`
}

// result is bench/out/agent.json.
type result struct {
	Seconds   float64 `json:"seconds"`
	GPUs      int     `json:"gpus"`
	Fields    int     `json:"fields"`
	Ranks     int     `json:"ranks"`
	Steps     float64 `json:"steps_per_second_of_a_rank"`
	Series    int     `json:"series_on_the_endpoint"`
	CPUs      int     `json:"cpus"`
	CPUModel  string  `json:"cpu_model"`
	Processes []usage `json:"processes"`
	Total     usage   `json:"total"`
	BoundCPU  float64 `json:"bound_cpu_percent_of_a_core"`
	BoundRSS  float64 `json:"bound_rss_mib"`
	Met       bool    `json:"bounds_met"`
}

// BenchmarkAgent measures both processes of a node with 8 GPUs, 55 fields of each and four of dashboards at 1 Hz, and 8 ranks at 5
// steps a second.
func BenchmarkAgent(b *testing.B) {
	duration := 10 * time.Minute
	if s := os.Getenv(envDuration); s != "" {
		var err error
		if duration, err = time.ParseDuration(s); err != nil {
			b.Fatal(err)
		}
	}
	n := startNode(b, "PITCREW_DCGM_MAX_INTERVAL=1s")
	dir := hooktest.Pod(b, n.kubeletRoot(), "0a7f3c1e-5b0d-4a53-9d7e-3f1c2b4a6d80")
	for i := range gpus {
		hooktest.Start(b, hooktest.Config{Dir: dir, Rank: i, LocalRank: i, WorldSize: gpus, StepEvery: time.Second / steps, CanSave: true})
		fill(b, filepath.Join(dir, hook.RingName(i)))
	}
	var held []string
	for _, g := range n.gpus.GPUs() {
		held = append(held, g.UUID)
	}
	n.kubelet.give("train", "llm-0", "torch", held...)
	time.Sleep(warmUp)

	r := result{GPUs: gpus, Fields: 55, Ranks: gpus, CPUs: runtime.NumCPU(), CPUModel: cpuModel(), BoundCPU: boundCPU, BoundRSS: boundRSS}
	meters := []*meter{{pid: n.agent.cmd.Process.Pid, usage: usage{Name: "agent"}}, {pid: n.dcgm.cmd.Process.Pid, usage: usage{Name: "dcgm"}}}
	step := n.value("pitcrew_train_step{")
	for _, m := range meters {
		m.begin(b)
	}
	began, scraped := time.Now(), time.Now()
	for b.Loop() { // once: see the Makefile
		for time.Since(began) < duration {
			time.Sleep(time.Second)
			for _, m := range meters {
				m.look(b)
			}
			if time.Since(scraped) >= scrapeEvery {
				scraped = time.Now()
				n.scrape()
			}
		}
	}
	elapsed := time.Since(began)
	r.Seconds = elapsed.Seconds()
	r.Total.Name = "total"
	for _, m := range meters {
		m.end(b, elapsed)
		r.Processes = append(r.Processes, m.usage)
		r.Total.add(m.usage)
	}
	text := n.scrape()
	r.Steps = (n.value("pitcrew_train_step{") - step) / elapsed.Seconds()
	for l := range strings.Lines(text) {
		if !strings.HasPrefix(l, "#") && len(l) > 1 {
			r.Series++
		}
	}
	r.Met = r.Total.CPU <= boundCPU && r.Total.RSSMax <= boundRSS
	b.ReportMetric(r.Total.CPU, "%core")
	b.ReportMetric(r.Total.RSSMax, "MiB-rss")
	b.ReportMetric(r.Total.PSSMax, "MiB-pss")
	b.Log("\n" + r.table())
	if !r.Met {
		b.Error(r.verdict())
	}
	if out := os.Getenv(envOut); out != "" {
		raw, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(out, append(raw, '\n'), 0o644); err != nil {
			b.Fatal(err)
		}
	}
}

func (u *usage) add(v usage) {
	u.CPU += v.CPU
	u.RSSMax += v.RSSMax
	u.RSSMean += v.RSSMean
	u.PSSMax += v.PSSMax
	u.PrivateMax += v.PrivateMax
	u.Threads += v.Threads
}

func (r result) table() string {
	var t strings.Builder
	fmt.Fprintf(&t, "%.0f s, %d GPUs × %d fields at 1 Hz, %d ranks at %.1f steps/s, %d series, %d × %s\n", r.Seconds, r.GPUs, r.Fields, r.Ranks, r.Steps, r.Series, r.CPUs, r.CPUModel)
	fmt.Fprintf(&t, "%-8s %10s %9s %9s %9s %9s\n", "", "% a core", "RSS max", "RSS mean", "PSS max", "private")
	for _, u := range append(append([]usage{}, r.Processes...), r.Total) {
		fmt.Fprintf(&t, "%-8s %10.2f %9.1f %9.1f %9.1f %9.1f\n", u.Name, u.CPU, u.RSSMax, u.RSSMean, u.PSSMax, u.PrivateMax)
	}
	t.WriteString(r.verdict() + "\n")
	return t.String()
}

// verdict says whether the bounds held.
func (r result) verdict() string {
	word := "bounds met"
	if !r.Met {
		word = "BOUNDS NOT MET"
	}
	return fmt.Sprintf("%s: %.2f %% of a core (at most %.0f %%), %.1f MiB (at most %.0f MiB)", word, r.Total.CPU, r.BoundCPU, r.Total.RSSMax, r.BoundRSS)
}

// meter reads one process in /proc. Neither process starts others; end checks that.
type meter struct {
	usage
	pid   int
	ticks float64
	looks int
}

func (m *meter) path(name string) string { return fmt.Sprintf("/proc/%d/%s", m.pid, name) }

// cpu is user and system time in clock ticks (100 a second on Linux).
func (m *meter) cpu(b *testing.B) float64 {
	raw, err := os.ReadFile(m.path("stat"))
	if err != nil {
		b.Fatal(err)
	}
	f := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return user + system
}

func (m *meter) begin(b *testing.B) { m.ticks = m.cpu(b) }

func (m *meter) look(b *testing.B) {
	raw, err := os.ReadFile(m.path("smaps_rollup"))
	if err != nil {
		b.Fatal(err)
	}
	kib := map[string]float64{}
	for l := range strings.Lines(string(raw)) {
		if f := strings.Fields(l); len(f) == 3 && f[2] == "kB" {
			kib[f[0]], _ = strconv.ParseFloat(f[1], 64)
		}
	}
	rss := kib["Rss:"] / 1024
	m.looks++
	m.RSSMax, m.RSSMean = max(m.RSSMax, rss), m.RSSMean+(rss-m.RSSMean)/float64(m.looks)
	m.PSSMax = max(m.PSSMax, kib["Pss:"]/1024)
	m.PrivateMax = max(m.PrivateMax, (kib["Private_Clean:"]+kib["Private_Dirty:"])/1024)
}

func (m *meter) end(b *testing.B, elapsed time.Duration) {
	m.CPU = (m.cpu(b) - m.ticks) / elapsed.Seconds() // ticks are hundredths: this is per cent
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

// fill gives every record of a ring the phases that a rank on a GPU measures; the stand-in writes the others, step by step.
func fill(b *testing.B, path string) {
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

func cpuModel() string {
	raw, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	_, rest, _ := strings.Cut(string(raw), "model name")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), ":"))
}
