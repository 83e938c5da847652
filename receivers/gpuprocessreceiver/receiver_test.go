package gpuprocessreceiver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"

	"github.com/pitcrew/pitcrew/receivers/process/proctest"
	"github.com/pitcrew/pitcrew/semconv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	uid   = "1f2e3d4c-5b6a-4798-8697-a5b4c3d2e1f0"
	group = "/kubepods/burstable/pod" + uid + "/"
)

var container = strings.Repeat("0123456789abcdef", 4)

type rig struct {
	proctest.Tree
	*logReceiver
	sink   consumertest.LogsSink
	refuse error
	at     time.Time
	logDir string
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{Tree: proctest.New(t), at: time.Unix(1700000000, 0), logDir: t.TempDir()}
	cfg := createDefaultConfig().(*Config)
	cfg.Proc, cfg.ContainerLogs, cfg.Cluster, cfg.Node = r.Root, r.logDir, "c", "n1"
	next, err := consumer.NewLogs(func(ctx context.Context, ld plog.Logs) error {
		if r.refuse != nil {
			return r.refuse
		}
		return r.sink.ConsumeLogs(ctx, ld)
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.logReceiver, err = newReceiver(receivertest.NewNopSettings(Type), cfg, next); err != nil {
		t.Fatal(err)
	}
	r.host, r.now = componenttest.NewNopHost(), func() time.Time { return r.at }
	return r
}

// said looks once, after a time, and lists what was said: "+pid gpu" or "-pid gpu".
func (r *rig) said(t testing.TB, after time.Duration) []string {
	t.Helper()
	r.at = r.at.Add(after)
	r.sink.Reset()
	r.look(t.Context())
	out := []string{}
	for _, rec := range records(&r.sink) {
		sign := "+"
		if rec.EventName() == semconv.EventGPUProcessEnded {
			sign = "-"
		}
		a := rec.Attributes().AsRaw()
		out = append(out, fmt.Sprint(sign, a[semconv.ProcessPID], " ", a[semconv.HWID]))
	}
	slices.Sort(out)
	return out
}

func records(s *consumertest.LogsSink) (out []plog.LogRecord) {
	for _, ld := range s.AllLogs() {
		for _, rec := range ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().All() {
			out = append(out, rec)
		}
	}
	return out
}

func TestAProcessAndItsGPUAreSaidWithItsContainer(t *testing.T) {
	r := newRig(t)
	r.GPU(0, "GPU-a", "0000:1a:00")
	r.Process(42, 100, "python3", group+container, []string{"python3", "train.py", "--token=x"}, "/dev/nvidia0", "/dev/nvidiactl")
	r.Process(43, 100, "bash", "/", []string{"bash"}, "/dev/null")
	if err := os.WriteFile(filepath.Join(r.logDir, "llm-0_train_main-"+container+".log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.look(t.Context())
	recs := records(&r.sink)
	if len(recs) != 1 || recs[0].EventName() != semconv.EventGPUProcess {
		t.Fatalf("%d records", len(recs))
	}
	want := map[string]any{
		semconv.ProcessPID: int64(42), semconv.ProcessStart: int64(100), semconv.GPUMinor: int64(0), semconv.ProcessExecutableName: "python3", semconv.ProcessCommandLine: "python3 train.py", semconv.HWID: "GPU-a", semconv.HWPCI: "0000:1a:00",
		semconv.K8sPodUID: uid, semconv.ContainerID: container, semconv.K8sNamespaceName: "train", semconv.K8sPodName: "llm-0", semconv.K8sContainerName: "main",
	}
	if got := recs[0].Attributes().AsRaw(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	if res := r.sink.AllLogs()[0].ResourceLogs().At(0).Resource().Attributes().AsRaw(); !reflect.DeepEqual(res, map[string]any{semconv.K8sClusterName: "c", semconv.K8sNodeName: "n1"}) {
		t.Errorf("resource %v", res)
	}
}

// A runtime makes a container's process before it puts it into the container's own group.
func TestAProcessThatWasNotYetInItsContainerIsNamedOnceItIs(t *testing.T) {
	r := newRig(t)
	r.GPU(0, "GPU-a", "0000:1a:00")
	for _, in := range []string{group, group + container} {
		r.Process(42, 100, "python3", in, []string{"python3"}, "/dev/nvidia0")
		r.said(t, time.Minute)
	}
	recs := records(&r.sink)
	if len(recs) != 1 {
		t.Fatalf("%d records", len(recs))
	}
	if got, _ := recs[0].Attributes().Get(semconv.ContainerID); got.Str() != container {
		t.Errorf("container %q", got.Str())
	}
}

func TestAUseIsSaidAgainNowAndThenAndEndsWhenItEnds(t *testing.T) {
	r := newRig(t)
	r.GPU(0, "GPU-a", "0000:1a:00")
	r.GPU(1, "GPU-b", "0000:40:00")
	r.Process(42, 100, "python3", group+container, []string{"python3"})
	step := func(what string, after time.Duration, want ...string) {
		t.Helper()
		if got := r.said(t, after); !slices.Equal(got, want) {
			t.Errorf("%s: said %q, want %q", what, got, want)
		}
	}
	step("it has opened nothing yet", 0)
	r.Open(42, "/dev/nvidia0", "/dev/nvidia1")
	step("it opens both", 5*time.Second, "+42 GPU-a", "+42 GPU-b")
	step("not looked into yet", time.Second)
	step("said again", lookMost, "+42 GPU-a", "+42 GPU-b")
	r.Open(42, "/dev/nvidia1")
	step("one is closed", lookMost, "+42 GPU-b", "-42 GPU-a")
	r.End(42)
	r.Process(42, 999, "other", "/", []string{"other"}, "/dev/nvidia0") // the number is given again
	step("another process of that number", lookMost, "+42 GPU-a", "-42 GPU-b")
	r.End(42)
	r.Process(42, 1234, "third", "/", []string{"third"}, "/dev/nvidia0") // again, and on the same GPU
	step("a third one of that number", lookMost, "+42 GPU-a", "-42 GPU-a")
	r.End(42)
	step("it ends", time.Second, "-42 GPU-a")
	step("nothing more is said", lookMost)
}

func TestWithoutADriverNoProcessIsLookedInto(t *testing.T) {
	r := newRig(t)
	r.Process(42, 100, "python3", group+container, []string{"python3"}, "/dev/nvidia0")
	if got := r.said(t, 0); len(got) != 0 || r.scanner.looks != 0 {
		t.Errorf("said %q after %d looks", got, r.scanner.looks)
	}
	r.GPU(0, "GPU-a", "0000:1a:00") // the driver is loaded
	if got := r.said(t, driverMost); !slices.Equal(got, []string{"+42 GPU-a"}) {
		t.Errorf("said %q", got)
	}
}

func TestManyProcessesAreLookedIntoInTurns(t *testing.T) {
	r := newRig(t)
	r.GPU(0, "GPU-a", "0000:1a:00")
	r.cfg.MaxLooks = 10
	for pid := 1; pid <= 35; pid++ {
		r.Process(pid, 100, "x", "/", []string{"x"}, "/dev/nvidia0")
	}
	seen := map[string]bool{}
	for k := range 4 {
		got := r.said(t, 5*time.Second)
		if len(got) > 10 {
			t.Errorf("%d processes were looked into at once", len(got))
		}
		for _, s := range got {
			seen[s] = true
		}
		if k == 3 && len(seen) != 35 {
			t.Errorf("after four turns %d of 35 were seen", len(seen))
		}
	}
}

func TestProcessesThatCannotBeLookedIntoAreCounted(t *testing.T) {
	r := newRig(t)
	r.GPU(0, "GPU-a", "0000:1a:00")
	r.Process(42, 100, "x", "/", []string{"x"}, "/dev/nvidia0")
	r.Process(43, 100, "x", "/", []string{"x"}, "/dev/nvidia0")
	fd := filepath.Join(r.Root, "42", "fd")
	if err := errors.Join(os.RemoveAll(fd), os.WriteFile(fd, nil, 0)); err != nil { // root, too, reads no folder there
		t.Fatal(err)
	}
	if got := r.said(t, 0); !slices.Equal(got, []string{"+43 GPU-a"}) || r.scanner.unreadable != 1 {
		t.Errorf("said %q, %d counted", got, r.scanner.unreadable)
	}
	r.End(43) // one that has ended is none of them
	if r.said(t, time.Second); r.scanner.unreadable != 1 {
		t.Errorf("%d counted", r.scanner.unreadable)
	}
}

func TestAProcessIsLookedIntoLessAndLess(t *testing.T) {
	r := newRig(t)
	r.GPU(0, "GPU-a", "0000:1a:00")
	r.Process(42, 100, "x", "/", []string{"x"}, "/dev/nvidia0")
	for range 120 { // ten minutes
		r.said(t, 5*time.Second)
	}
	if n := r.scanner.looks; n < 11 || n > 15 {
		t.Errorf("%d looks in ten minutes: not after 5, 10, 20, 40 and every 60 s", n)
	}
}

// More than a batch may hold is said by the looks that follow, and what cannot be remembered is taken up when there is room.
func TestANodeFullOfProcessesIsBounded(t *testing.T) {
	r := newRig(t)
	devices := make([]string, 8)
	for n := range devices {
		r.GPU(n, fmt.Sprintf("GPU-%d", n), fmt.Sprintf("0000:%02x:00", n+1))
		devices[n] = fmt.Sprintf("/dev/nvidia%d", n)
	}
	const processes = 150
	for pid := 1; pid <= processes; pid++ {
		r.Process(pid, 100, "x", "/", []string{"x"}, devices...)
	}
	r.cfg.MaxLooks = 2 * processes
	seen := map[string]bool{}
	for range 2 {
		got := r.said(t, time.Second)
		if len(got) > maxUsing+len(devices) {
			t.Errorf("%d were said at once", len(got))
		}
		for _, s := range got {
			seen[s] = true
		}
	}
	if len(seen) != processes*len(devices) {
		t.Errorf("after two looks %d of %d were said", len(seen), processes*len(devices))
	}
	for pid := range maxProcesses {
		r.scanner.processes[1<<20+pid] = &known{pid: 1<<20 + pid}
	}
	r.Process(1000, 100, "x", "/", []string{"x"}, devices[0])
	if got := r.said(t, time.Second); slices.Contains(got, "+1000 GPU-0") || len(r.scanner.processes) > maxProcesses {
		t.Errorf("%d processes are remembered", len(r.scanner.processes))
	}
	if got := r.said(t, time.Second); !slices.Contains(got, "+1000 GPU-0") {
		t.Errorf("said %q", got)
	}
}

func TestAProcThatIsNotThereIsWaitedFor(t *testing.T) {
	r := newRig(t)
	root := r.cfg.Proc
	r.cfg.Proc = filepath.Join(root, "later")
	if got := r.said(t, 0); len(got) != 0 || r.logReceiver.said == "" {
		t.Errorf("said %q, trouble %q", got, r.logReceiver.said)
	}
	r.cfg.Proc = root
	r.GPU(0, "GPU-a", "0000:1a:00")
	r.Process(42, 100, "x", "/", []string{"x"}, "/dev/nvidia0")
	if got := r.said(t, time.Second); len(got) != 1 {
		t.Errorf("said %q", got)
	}
}

func TestARefusingPipelineStopsNothing(t *testing.T) {
	r := newRig(t)
	r.GPU(0, "GPU-a", "0000:1a:00")
	r.Process(42, 100, "x", "/", []string{"x"}, "/dev/nvidia0")
	r.refuse = errors.New("full")
	r.said(t, 0)
	r.refuse = nil
	if got := r.said(t, lookMost); !slices.Equal(got, []string{"+42 GPU-a"}) {
		t.Errorf("said %q", got)
	}
}

func TestItStartsAndEnds(t *testing.T) {
	r := newRig(t)
	r.GPU(0, "GPU-a", "0000:1a:00")
	r.Process(42, 100, "x", "/", []string{"x"}, "/dev/nvidia0")
	rcv, err := NewFactory().CreateLogs(t.Context(), receivertest.NewNopSettings(Type), r.cfg, &r.sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := rcv.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); len(r.sink.AllLogs()) == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if err := rcv.Shutdown(t.Context()); err != nil || len(r.sink.AllLogs()) == 0 {
		t.Errorf("%d batches, %v", len(r.sink.AllLogs()), err)
	}
}

func TestAWrongConfigurationNamesEveryFault(t *testing.T) {
	if err := createDefaultConfig().(*Config).Validate(); err != nil {
		t.Error(err)
	}
	err := (&Config{Proc: "proc", ContainerLogs: "x"}).Validate()
	for _, part := range []string{"proc:", "container_logs:", "interval:", "max_looks:"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v lacks %q", err, part)
		}
	}
}

func TestMetadataNamesWhatTheCodeEmits(t *testing.T) {
	raw, err := os.ReadFile("metadata.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var meta struct {
		Type       string
		Attributes map[string]any
		Resource   map[string]any `yaml:"resource_attributes"`
		Events     map[string]struct{ Attributes []string }
	}
	if err := yaml.Unmarshal(raw, &meta); err != nil {
		t.Fatal(err)
	}
	attrs := []string{semconv.ProcessPID, semconv.ProcessExecutableName, semconv.ProcessCommandLine, semconv.ProcessStart, semconv.HWID, semconv.HWPCI, semconv.GPUMinor, semconv.K8sPodUID, semconv.ContainerID, semconv.K8sNamespaceName, semconv.K8sPodName, semconv.K8sContainerName}
	for _, a := range attrs {
		if _, ok := meta.Attributes[a]; !ok || !slices.Contains(meta.Events[semconv.EventGPUProcess].Attributes, a) {
			t.Errorf("%s is not described", a)
		}
	}
	if len(meta.Attributes) != len(attrs) || len(meta.Events) != 2 || len(meta.Events[semconv.EventGPUProcessEnded].Attributes) == 0 || meta.Type != Type.String() || len(meta.Resource) != 2 {
		t.Errorf("metadata %+v", meta)
	}
	var _ component.Type = Type
}

// BenchmarkLook is the cost of one look at this machine's own processes, each of them due.
func BenchmarkLook(b *testing.B) {
	r := newRig(b)
	r.cfg.Proc = "/proc"
	r.look(b.Context())
	if r.scanner == nil {
		b.Skip("no /proc")
	}
	pids, err := r.scanner.fs.PIDs()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(len(pids)), "processes")
	b.ResetTimer()
	for b.Loop() {
		for _, pid := range pids {
			_, _ = r.scanner.fs.Uses(pid)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*max(1, len(pids))), "ns/process")
}
