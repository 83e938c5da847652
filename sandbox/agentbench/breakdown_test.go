package agentbench

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/sandbox/freeport"
)

// breakdown is where one process's memory or processor time goes.
type breakdown struct {
	Process string  `json:"process"`
	Of      string  `json:"of"`
	Unit    string  `json:"unit"`
	Parts   []share `json:"parts"`
}

type share struct {
	Part  string  `json:"part"`
	Value float64 `json:"value"`
}

func (d breakdown) table() string {
	var t strings.Builder
	fmt.Fprintf(&t, "%s of %s, %s\n", d.Of, d.Process, d.Unit)
	for _, p := range d.Parts {
		fmt.Fprintf(&t, "%8.2f  %s\n", p.Value, p.Part)
	}
	return t.String()
}

// profileFor is how long processor time is sampled, in a node of its own whose program serves profiles.
const profileFor = 40 * time.Second

// breakDown gives the memory of the node's processes, and the processor time of a node like it that is scraped every second.
func breakDown(b *testing.B, n *node) []breakdown {
	out := []breakdown{memoryOf(b, n.agent, "agent"), memoryOf(b, n.dcgm, "dcgm")}
	if os.Getenv(envCollector) != "" {
		return out // another program than the tree's: it serves no profiles
	}
	exe := filepath.Join(b.TempDir(), "pitcrew-collector")
	if said, err := exec.Command("go", "build", "-tags", "grpcnotrace,profile", "-o", exe, "../../cmd/pitcrew-collector").CombinedOutput(); err != nil {
		b.Logf("no breakdown of processor time: %v: %s", err, said)
		return out
	}
	at := map[string]string{"agent": freeport.Loopback(b), "dcgm": freeport.Loopback(b)}
	p := startNodeOf(b, exe, func(mode string) []string {
		return []string{"PITCREW_DCGM_MAX_INTERVAL=1s", "PITCREW_PPROF=" + at[mode]}
	})
	time.Sleep(warmUp)
	type profiled struct {
		process string
		parts   []share
		err     error
	}
	done := make(chan profiled, len(at))
	for process, address := range at {
		go func() {
			parts, err := profile(fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", address, int(profileFor.Seconds())), filepath.Join(p.dir, process+".pprof"), exe)
			done <- profiled{process, parts, err}
		}()
	}
	for end := time.Now().Add(profileFor); time.Now().Before(end); time.Sleep(time.Second) {
		var s scrapes
		s.take(b, "http://"+p.prometheus+"/metrics")
	}
	var times []breakdown
	for range at {
		d := <-done
		if d.err != nil {
			b.Logf("no breakdown of processor time: %v", d.err)
			continue
		}
		times = append(times, breakdown{d.process, "processor time", "% of a core, scraped every second, by profile", d.parts})
	}
	slices.SortFunc(times, func(a, b breakdown) int { return cmp.Compare(a.Process, b.Process) })
	return append(out, times...)
}

// costs name what a stack is charged to: the first that matches a function of it, looked for from the innermost.
var costs = []struct {
	name string
	re   *regexp.Regexp
}{
	{"garbage collection", regexp.MustCompile(`^runtime\.(gcBgMarkWorker|bgsweep|bgscavenge|GC|gcAssistAlloc|gcStart)`)},
	{"endpoint: encode and pack a page", regexp.MustCompile(`promexporter\.\(\*endpoint\)`)},
	{"endpoint: keep values", regexp.MustCompile(`promexporter\.\(\*store\)`)},
	{"pods' labels", regexp.MustCompile(`/podlabels\.`)},
	{"dynamic thresholds", regexp.MustCompile(`detectorconnector\.\(\*anomalies\)`)},
	{"certain faults", regexp.MustCompile(`detectorconnector\.`)},
	{"ranks' rings", regexp.MustCompile(`/torchreceiver\.|/hook\.`)},
	{"processes on GPUs", regexp.MustCompile(`/gpuprocessreceiver\.|/receivers/process\.`)},
	{"fabric ports", regexp.MustCompile(`/fabricreceiver\.`)},
	{"read DCGM", regexp.MustCompile(`dcgmreceiver\.\(\*(engine|session)\)`)},
	{"build a batch", regexp.MustCompile(`dcgmreceiver\.`)},
	{"kernel log", regexp.MustCompile(`/xidreceiver\.`)},
	{"NATS", regexp.MustCompile(`nats|/pilotextension\.`)},
	{"decode and encode OTLP", regexp.MustCompile(`pdata/|otelgrpc`)},
	{"gRPC between the two", regexp.MustCompile(`google\.golang\.org/grpc|x/net/http2`)},
	{"HTTP of scrapes", regexp.MustCompile(`^net/http\.`)},
	{"scheduler and timers", regexp.MustCompile(`^runtime\.(schedule|findRunnable|mcall|sysmon|park_m|mstart|goexit0)`)},
}

// profile fetches a CPU profile and charges its samples.
func profile(url, file, exe string) ([]share, error) {
	r, err := http.Get(url)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	if _, err = io.Copy(f, r.Body); err == nil {
		err = f.Close()
	}
	if err != nil {
		return nil, err
	}
	raw, err := exec.Command("go", "tool", "pprof", "-traces", "-unit=ms", exe, file).Output()
	if err != nil {
		return nil, fmt.Errorf("go tool pprof: %w", err)
	}
	return charge(string(raw), profileFor), nil
}

// charge reads what go tool pprof -traces writes: stacks between rulers, the innermost function first with its time before it.
func charge(traces string, over time.Duration) []share {
	sum := map[string]float64{}
	for stack := range strings.SplitSeq(traces, "-----------+") {
		lines := strings.Split(stack, "\n")
		if len(lines) < 2 {
			continue
		}
		first := strings.Fields(lines[1])
		if len(first) < 2 || !strings.HasSuffix(first[0], "ms") {
			continue
		}
		ms, err := strconv.ParseFloat(strings.TrimSuffix(first[0], "ms"), 64)
		if err != nil {
			continue
		}
		sum[partOf(lines[1:], first[1])] += 100 * ms / float64(over.Milliseconds())
	}
	var out []share
	for name, v := range sum {
		out = append(out, share{name, round(v)})
	}
	slices.SortFunc(out, func(a, b share) int { return cmp.Or(cmp.Compare(b.Value, a.Value), cmp.Compare(a.Part, b.Part)) })
	return out
}

func partOf(lines []string, innermost string) string {
	for _, p := range costs {
		for i, l := range lines {
			name := strings.TrimSpace(l)
			if i == 0 {
				name = innermost
			}
			if p.re.MatchString(name) {
				return p.name
			}
		}
	}
	return "the rest"
}

var runtimeGauge = regexp.MustCompile(`(?m)^otelcol_process_runtime_heap_alloc(?:_bytes)?(?:\{.*\})? (\S+)$`)

// memoryOf gives a process's proportional memory by what maps it.
func memoryOf(b testing.TB, p *process, name string) breakdown {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", p.cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	sum, mapped := map[string]float64{}, ""
	header := regexp.MustCompile(`^[0-9a-f]+-[0-9a-f]+ (\S+) \S+ \S+ \S+\s*(.*)$`)
	for l := range strings.Lines(string(raw)) {
		l = strings.TrimSpace(l)
		if m := header.FindStringSubmatch(l); m != nil {
			writable := strings.HasPrefix(m[1], "rw")
			switch {
			case strings.HasPrefix(m[2], "[heap]"):
				mapped = "C heap"
			case m[2] == "" || strings.HasPrefix(m[2], "["):
				mapped = "Go heap, stacks and runtime"
			case m[2] == p.cmd.Path && writable:
				mapped = "program's variables"
			case m[2] == p.cmd.Path:
				mapped = "program's file, half of what both map"
			default:
				mapped = "libraries and other files"
			}
			continue
		}
		if kib, ok := strings.CutPrefix(l, "Pss:"); ok {
			v, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(kib), " kB"), 64)
			sum[mapped] += v / 1024
		}
	}
	d := breakdown{Process: name, Of: "memory", Unit: "MiB PSS"}
	for part, v := range sum {
		d.Parts = append(d.Parts, share{part, round(v)})
	}
	slices.SortFunc(d.Parts, func(a, b share) int { return cmp.Compare(b.Value, a.Value) })
	if page, code := get("http://" + p.self + "/metrics"); code == http.StatusOK {
		if m := runtimeGauge.FindStringSubmatch(page); m != nil {
			v, _ := strconv.ParseFloat(m[1], 64)
			d.Parts = append(d.Parts, share{"of that: Go objects at this moment", round(v / (1 << 20))})
		}
	}
	return d
}

func TestAProfileIsChargedToTheInnermostPartThatIsNamed(t *testing.T) {
	traces := `File: pitcrew-collector
Type: cpu
-----------+-------------------------------------------------------
      10ms   runtime.mallocgc
             github.com/pitcrew/pitcrew/collector/podlabels.(*labeller).scope
             google.golang.org/grpc.(*Server).processUnaryRPC
-----------+-------------------------------------------------------
      30ms   runtime.scanobject
             runtime.gcBgMarkWorker
-----------+-------------------------------------------------------
      20ms   something.else
-----------+-------------------------------------------------------
`
	want := "[{garbage collection 3} {the rest 2} {pods' labels 1}]"
	if got := fmt.Sprint(charge(traces, time.Second)); got != want {
		t.Errorf("charged %s, want %s", got, want)
	}
}
