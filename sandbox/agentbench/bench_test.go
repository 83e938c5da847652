package agentbench

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// Env of the benchmark, set by make bench-agent.
const (
	envDuration = "DURATION" // how long each load is measured
	envOut      = "OUT"      // file for the figures as JSON
	envMissed   = "MISSED"   // ok: a goal that is missed is reported and the run succeeds
)

const (
	warmUp  = 15 * time.Second
	windows = 3 // at least, of each load
	steps   = 10
)

// load is one way in which a node is used, with the goals for agent and DCGM process together.
type load struct {
	Name     string        `json:"name"`
	Every    time.Duration `json:"-"`
	Ranks    int           `json:"ranks"`
	GoalCPU  float64       `json:"goal_cpu_percent_of_a_core"`
	GoalPSS  float64       `json:"goal_pss_mib"`
	GoalTook float64       `json:"goal_ms_a_scrape"`
}

var loads = []load{
	{"scraped every 15 s", 15 * time.Second, 0, 0.5, 60, 25},
	{"scraped every second", time.Second, 0, 2, 60, 25},
	{"8 ranks at 10 Hz, scraped every 15 s", 15 * time.Second, gpus, 1, 90, 25},
}

// measured is what a load cost. CPU is the mean over the windows; memory the most of one look a second.
type measured struct {
	load
	Windows   int       `json:"windows"`
	Seconds   float64   `json:"seconds"`
	Steps     float64   `json:"steps_per_second_of_a_rank,omitempty"`
	Processes []usage   `json:"processes"`
	Total     usage     `json:"total"`
	PerWindow []float64 `json:"cpu_percent_of_each_window"`
	Scrapes   scrapes   `json:"scrapes"`
	Peer      *peerUse  `json:"dcgm_exporter,omitempty"`
	Missed    []string  `json:"goals_missed"`
}

// scrapes are of one endpoint under one load.
type scrapes struct {
	Count  int     `json:"count"`
	Median float64 `json:"ms_median"`
	Most   float64 `json:"ms_most"`
	Plain  float64 `json:"kb"`
	Packed float64 `json:"kb_gzip"`
	Series int     `json:"series"`

	took []float64
}

// result is bench/out/agent.json.
type result struct {
	GPUs      int         `json:"gpus"`
	Fields    int         `json:"fields"`
	CPUs      int         `json:"cpus"`
	CPUModel  string      `json:"cpu_model"`
	Busy      float64     `json:"load_average_at_the_start"` // beyond the processors: others took them, and shares are not to be compared
	Loads     []measured  `json:"loads"`
	Breakdown []breakdown `json:"breakdown"`
	Peer      string      `json:"dcgm_exporter"` // how it was built, or why not
	Met       bool        `json:"goals_met"`
}

// BenchmarkAgent measures both processes of a node with 8 GPUs and 55 core fields of each, with four of dashboards, all at 1 Hz: scraped
// every 15 s, every second, and with 8 ranks at 10 steps a second. dcgm-exporter runs beside it on the same stub where it can be built.
func BenchmarkAgent(b *testing.B) {
	duration := 10 * time.Minute
	if s := os.Getenv(envDuration); s != "" {
		var err error
		if duration, err = time.ParseDuration(s); err != nil {
			b.Fatal(err)
		}
	}
	r := result{GPUs: gpus, Fields: 59, CPUs: runtime.NumCPU(), CPUModel: cpuModel(), Busy: loadAverage(), Met: true}
	n := startNode(b, "PITCREW_DCGM_MAX_INTERVAL=1s")
	peer, said := startPeer(b, n)
	r.Peer = said
	fmt.Println("dcgm-exporter: " + said) // the log of a benchmark is cut
	for b.Loop() {                        // once: see the Makefile
		ranks := 0
		for _, l := range loads {
			if l.Ranks > ranks {
				ranks = l.Ranks
				n.train(b, ranks, time.Second/steps)
			}
			n.scrape() // the first one after a change takes more: it is not what a node costs
			time.Sleep(warmUp)
			m := n.measure(b, l, duration, peer)
			r.Met = r.Met && len(m.Missed) == 0
			r.Loads = append(r.Loads, m)
		}
	}
	for i, m := range r.Loads {
		b.ReportMetric(m.Total.CPU, fmt.Sprintf("%%core-%d", i))
		b.ReportMetric(m.Total.PSSMax, fmt.Sprintf("MiB-pss-%d", i))
	}
	r.Breakdown = breakDown(b, n)
	fmt.Println("\n" + r.table())
	if out := os.Getenv(envOut); out != "" {
		raw, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(out, append(raw, '\n'), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	if !r.Met && os.Getenv(envMissed) != "ok" {
		b.Errorf("goals are missed; %s=ok reports them and succeeds", envMissed)
	}
}

// measure runs one load. Windows hold whole scrapes, so that each has as many.
func (n *node) measure(b *testing.B, l load, duration time.Duration, peer *peer) measured {
	width := (duration / windows).Truncate(l.Every)
	width = max(width, l.Every)
	count := max(windows, int(duration/width))
	m := measured{load: l, Windows: count}
	meters := []*meter{{pid: n.agent.cmd.Process.Pid, usage: usage{Name: "agent"}}, {pid: n.dcgm.cmd.Process.Pid, usage: usage{Name: "dcgm"}}}
	if peer != nil {
		meters = append(meters, &meter{pid: peer.cmd.Process.Pid, usage: usage{Name: "dcgm-exporter"}})
	}
	step := 0.0
	if l.Ranks > 0 {
		step = n.value("pitcrew_train_step{")
	}
	var theirs scrapes
	began := time.Now()
	for range count {
		for _, x := range meters {
			x.begin(b)
		}
		from := time.Now()
		for next := time.Second; next <= width; next += time.Second {
			time.Sleep(time.Until(from.Add(next)))
			for _, x := range meters {
				x.look(b)
			}
			if next%l.Every == 0 {
				m.Scrapes.take(b, "http://"+n.prometheus+"/metrics")
				if peer != nil {
					theirs.take(b, peer.url)
				}
			}
		}
		sum := 0.0
		for i, x := range meters {
			cpu := x.window(b, time.Since(from))
			if i < 2 {
				sum += cpu
			}
		}
		m.PerWindow = append(m.PerWindow, round(sum))
	}
	m.Seconds = time.Since(began).Seconds()
	m.Total.Name = "total"
	for i, x := range meters {
		x.end(b, count)
		if i < 2 {
			m.Processes = append(m.Processes, x.usage)
			m.Total.add(x.usage)
		}
	}
	m.Scrapes.finish(n.scrape())
	if l.Ranks > 0 {
		m.Steps = (n.value("pitcrew_train_step{") - step) / m.Seconds
	}
	if peer != nil {
		page, _ := get(peer.url)
		theirs.finish(page)
		m.Peer = &peerUse{meters[2].usage, theirs}
	}
	for _, g := range []struct {
		what       string
		value, max float64
		unit       string
	}{
		{"processor time", m.Total.CPU, l.GoalCPU, "% of a core"}, {"memory", m.Total.PSSMax, l.GoalPSS, "MiB PSS"}, {"a scrape", m.Scrapes.Median, l.GoalTook, "ms"},
	} {
		if !(g.value <= g.max) {
			m.Missed = append(m.Missed, fmt.Sprintf("%s: %s %.2f %s, goal %g", l.Name, g.what, g.value, g.unit, g.max))
		}
	}
	return m
}

// finish sums up, with the last page.
func (s *scrapes) finish(page string) {
	s.Count = len(s.took)
	slices.Sort(s.took)
	if s.Count > 0 {
		s.Median, s.Most = round(s.took[s.Count/2]), round(s.took[s.Count-1])
	}
	for l := range strings.Lines(page) {
		if !strings.HasPrefix(l, "#") && len(l) > 1 {
			s.Series++
		}
	}
	s.Plain = round(float64(len(page)) / 1000)
}

func round(v float64) float64 { return math.Round(v*100) / 100 }

func (r result) table() string {
	var t strings.Builder
	fmt.Fprintf(&t, "%d GPUs × %d fields at 1 Hz, %d × %s, load average %.1f at the start: processor time of /proc, other work on the machine changes it\n", r.GPUs, r.Fields, r.CPUs, r.CPUModel, r.Busy)
	for _, m := range r.Loads {
		fmt.Fprintf(&t, "\n%s (%.0f s, %d windows", m.Name, m.Seconds, m.Windows)
		if m.Ranks > 0 {
			fmt.Fprintf(&t, ", %.1f steps/s", m.Steps)
		}
		fmt.Fprintf(&t, ")\n%-14s %9s %9s %9s %9s %8s %8s %8s %8s %7s\n", "", "% a core", "PSS max", "RSS max", "private", "ms p50", "ms max", "KB", "KB gzip", "series")
		for _, u := range append(slices.Clone(m.Processes), m.Total) {
			fmt.Fprintf(&t, "%-14s %9.2f %9.1f %9.1f %9.1f", u.Name, u.CPU, u.PSSMax, u.RSSMax, u.PrivateMax)
			if u.Name == "total" {
				s := m.Scrapes
				fmt.Fprintf(&t, " %8.1f %8.1f %8.1f %8.1f %7d", s.Median, s.Most, s.Plain, s.Packed, s.Series)
			}
			t.WriteByte('\n')
		}
		if p := m.Peer; p != nil {
			s := p.Scrapes
			fmt.Fprintf(&t, "%-14s %9.2f %9.1f %9.1f %9.1f %8.1f %8.1f %8.1f %8.1f %7d\n", p.Name, p.CPU, p.PSSMax, p.RSSMax, p.PrivateMax, s.Median, s.Most, s.Plain, s.Packed, s.Series)
			fmt.Fprintf(&t, "%-14s %9.2f %9.2f %9.2f %9.2f %8.2f %8.2f %8.2f\n", "ratio", m.Total.CPU/p.CPU, m.Total.PSSMax/p.PSSMax, m.Total.RSSMax/p.RSSMax, m.Total.PrivateMax/p.PrivateMax, m.Scrapes.Median/s.Median, m.Scrapes.Most/s.Most, m.Scrapes.Plain/s.Plain)
		}
		fmt.Fprintf(&t, "goals: %g %% of a core, %g MiB PSS, %g ms a scrape; processor time of each window: %v\n", m.GoalCPU, m.GoalPSS, m.GoalTook, m.PerWindow)
	}
	for _, d := range r.Breakdown {
		t.WriteString("\n" + d.table())
	}
	t.WriteString("\n" + r.verdict() + "\n")
	return t.String()
}

// verdict reports whether the goals were met.
func (r result) verdict() string {
	if r.Met {
		return "goals met"
	}
	var missed []string
	for _, m := range r.Loads {
		missed = append(missed, m.Missed...)
	}
	return "GOALS MISSED\n" + strings.Join(missed, "\n")
}
