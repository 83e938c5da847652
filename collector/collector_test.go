package collector

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"go.opentelemetry.io/collector/otelcol"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/sandbox/freeport"
)

var allModes = []Mode{Agent, DCGM, Gateway}

// surround sets the environment of a node of its own below dir.
func surround(t testing.TB, dir, nats string) (kmsg string) {
	t.Helper()
	kmsg = filepath.Join(dir, "kmsg")
	if err := os.WriteFile(kmsg, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{
		"PITCREW_NODE": "n1", "PITCREW_CLUSTER": "c", "PITCREW_NATS": nats, "PITCREW_KMSG": kmsg, "PITCREW_RUN_DIR": filepath.Join(dir, "run"),
		"PITCREW_STATE_DIR": filepath.Join(dir, "state"), "PITCREW_KUBELET_ROOT": filepath.Join(dir, "kubelet"), "PITCREW_POD_RESOURCES": filepath.Join(dir, "none.sock"),
		"PITCREW_SELF": freeport.Loopback(t), "PITCREW_HEALTH": freeport.Loopback(t), "PITCREW_PROMETHEUS": freeport.Loopback(t), "PITCREW_OTLP": freeport.Loopback(t),
		"PITCREW_LOG_LEVEL": "error", "PITCREW_OVERLAY": "", "PITCREW_SELF_HOST": "", "PITCREW_SELF_PORT": "", "PITCREW_GATEWAY": "", "PITCREW_GATEWAYS": "", "PITCREW_RULE_FILES": "", "PITCREW_SCRAPE": "",
		"PITCREW_CLASSES_FILE": filepath.Join(dir, "classes"), "PITCREW_JOBS_FILE": filepath.Join(dir, "jobs"),
	} {
		t.Setenv(k, v)
	}
	return kmsg
}

// run starts the mode's collector in this process and gives the function that ends it.
func run(t testing.TB, m Mode) (stop func()) {
	t.Helper()
	if err := Prepare(m); err != nil {
		t.Fatal(err)
	}
	set, err := Settings(m)
	if err != nil {
		t.Fatal(err)
	}
	set.DisableGracefulShutdown = true
	col, err := otelcol.NewCollector(set)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- col.Run(context.Background()) }()
	for deadline := time.Now().Add(30 * time.Second); col.GetState() != otelcol.StateRunning; time.Sleep(5 * time.Millisecond) {
		select {
		case err := <-ended:
			t.Fatalf("collector %s ended: %v", m, err)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("collector %s is %v after 30 s", m, col.GetState())
		}
	}
	return func() {
		col.Shutdown()
		if err := <-ended; err != nil {
			t.Errorf("collector %s: %v", m, err)
		}
	}
}

func TestEachConfigurationStartsWithoutAFlagAndWithoutNats(t *testing.T) {
	for _, m := range allModes {
		t.Run(string(m), func(t *testing.T) {
			surround(t, t.TempDir(), "nats://127.0.0.1:1")
			run(t, m)()
		})
	}
}

// tree is a configuration as YAML says it.
func tree(t *testing.T, m Mode) map[string]any {
	t.Helper()
	text, err := Config(m)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestNoConfigurationListensBeyondThisHostOrBatches(t *testing.T) {
	local := regexp.MustCompile(`^(unix://)?(\$\{env:[A-Z_]+:-)?(127\.0\.0\.1|localhost|/)`)
	var walk func(t *testing.T, path string, v any)
	walk = func(t *testing.T, path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				if k == "batch" || strings.HasPrefix(k, "batch/") {
					t.Errorf("%s.%s: a batch holds a fault back", path, k)
				}
				walk(t, path+"."+k, x)
			}
		case []any:
			for i, x := range v {
				walk(t, fmt.Sprintf("%s[%d]", path, i), x)
			}
		case string:
			if (strings.HasSuffix(path, ".endpoint") || strings.HasSuffix(path, ".host")) && !local.MatchString(v) {
				t.Errorf("%s: %s is not on this host", path, v)
			}
			if strings.Contains(v, "0.0.0.0") {
				t.Errorf("%s: %s", path, v)
			}
		}
	}
	for _, m := range allModes {
		t.Run(string(m), func(t *testing.T) { walk(t, "", tree(t, m)) })
	}
}

func TestPodsSamplesPassTheMemoryLimiterFirstAndFaultsAndDCGMsSamplesPassNone(t *testing.T) {
	ofPods := map[any]bool{"torch": true, "otlp/training": true}
	for _, m := range allModes {
		pipelines := tree(t, m)["service"].(map[string]any)["pipelines"].(map[string]any)
		for name, p := range pipelines {
			processors, _ := p.(map[string]any)["processors"].([]any)
			limited := slices.Contains(processors, any("memory_limiter"))
			first := len(processors) > 0 && processors[0] == "memory_limiter"
			pods := slices.ContainsFunc(p.(map[string]any)["receivers"].([]any), func(r any) bool { return ofPods[r] })
			switch {
			case strings.HasPrefix(name, "logs") && len(processors) > 0:
				t.Errorf("%s, %s: %v are in the way of a fault", m, name, processors)
			case m == Agent && strings.HasPrefix(name, "metrics") && pods && !first:
				t.Errorf("%s, %s: samples of pods pass %v; want memory_limiter first", m, name, processors)
			case m == Agent && strings.HasPrefix(name, "metrics") && !pods && limited:
				t.Errorf("%s, %s: %v refuse samples of DCGM because of what pods do", m, name, processors)
			case m != Agent && name == "metrics" && !first:
				t.Errorf("%s, %s: processors %v; want memory_limiter first", m, name, processors)
			}
		}
	}
}

// line is a kernel log record as /dev/kmsg gives it, of now.
func line(seq int, pci string, code int) string {
	raw, err := os.ReadFile("/proc/uptime")
	if err != nil {
		panic(err)
	}
	var up float64
	if _, err := fmt.Sscan(string(raw), &up); err != nil {
		panic(err)
	}
	return fmt.Sprintf("4,%d,%d,-;NVRM: Xid (PCI:%s): %d, pid=77, name=python, GPU has fallen off the bus.\n", seq, int64(up*1e6), pci, code)
}

func write(t testing.TB, f *os.File, s string) {
	t.Helper()
	if _, err := f.WriteString(s); err != nil {
		t.Fatal(err)
	}
}

func TestAKernelLineIsAnEventOnTheBus(t *testing.T) {
	s := bustest.Server(t)
	kmsg := surround(t, t.TempDir(), s.URL())
	b := bustest.Connect(t, s.URL())
	defer run(t, Agent)()
	f, err := os.OpenFile(kmsg, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write(t, f, "not a record at all\n")
	write(t, f, line(1000, "0000:1a:00", 79))

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var got *bus.Delivery
	err = b.Events(ctx, "test", func(_ context.Context, d bus.Delivery) error {
		got = &d
		cancel()
		return nil
	}, func(subject string, err error) { t.Errorf("%s: %v", subject, err) })
	if err != nil || got == nil {
		t.Fatalf("no event: %v", err)
	}
	e := got.Event
	if e.Type != event.Fault || e.Data.Cause.Signal() != "xid/79" || e.Data.Severity != event.Fatal || got.Node != "n1" {
		t.Errorf("event %+v on node %s", e, got.Node)
	}
	if d := e.Data.Target; d.Cluster != "c" || d.Node != "n1" || d.PCI != "0000:1a:00" {
		t.Errorf("target %+v", d)
	}
	if age := time.Since(e.Time).Abs(); age > time.Minute {
		t.Errorf("event is of %v, %v from now", e.Time, age)
	}

	ctx, cancel = context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var c bus.Condition
	if err := b.Conditions(ctx, nil, func(x bus.Condition) { c = x; cancel() }); err != nil || !c.Active || c.Event == nil || c.Event.ID != e.ID {
		t.Errorf("condition %+v: %v", c, err)
	}
}

func TestALostGpuComesFromTheDcgmProcessOverTheAgentsSocket(t *testing.T) {
	s := bustest.Server(t)
	dir := t.TempDir()
	surround(t, dir, s.URL())
	recording := filepath.Join(dir, "recording.json")
	if err := os.WriteFile(recording, []byte(`{"devices":[
		{"ID":0,"UUID":"GPU-0","PCI":"00000000:1A:00.0","Answer":true},{"ID":1,"UUID":"GPU-1","PCI":"00000000:1B:00.0","Answer":false}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	b := bustest.Connect(t, s.URL())
	defer run(t, Agent)()
	for k, v := range map[string]string{
		"PITCREW_DCGM_MODE": "replay", "PITCREW_DCGM_FILE": recording, "PITCREW_SELF": freeport.Loopback(t), "PITCREW_HEALTH": freeport.Loopback(t), "PITCREW_EXPECTED_GPUS": "2",
	} {
		t.Setenv(k, v)
	}
	defer run(t, DCGM)()

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var lost []event.Event
	err := b.Events(ctx, "test", func(_ context.Context, d bus.Delivery) error {
		lost = append(lost, d.Event)
		time.AfterFunc(3*time.Second, cancel) // samples enough for a second one, were there to be one
		return nil
	}, func(subject string, err error) { t.Errorf("%s: %v", subject, err) })
	if err != nil || len(lost) != 1 {
		t.Fatalf("%d events: %+v, %v", len(lost), lost, err)
	}
	if d := lost[0].Data; d.Cause.Signal() != "gpu/lost" || d.Target.GPU != "GPU-1" || d.Target.PCI != "0000:1b:00" || d.Target.Node != "n1" {
		t.Errorf("event %+v", d)
	}
}

func TestASocketThatAKilledAgentLeftIsClearedAndOneInUseIsNot(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "otlp.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := clearSocket(path); err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("a socket in use: %v", err)
	}
	l.Close()
	if err := clearSocket(path); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := clearSocket(path); err == nil {
		t.Error("a file that is no socket was accepted")
	}
}

func TestAnOverlayIsMergedIntoTheBuiltInConfiguration(t *testing.T) {
	surround(t, t.TempDir(), "nats://127.0.0.1:1")
	for overlay, fails := range map[string]bool{
		"yaml:connectors::detector::stall_factor: 8":   false,
		"yaml:connectors::detector::stall_factor: 0.5": true,
		"/nonexistent/overlay.yaml":                    true,
	} {
		t.Setenv(OverlayEnv, overlay)
		c, err := Command("test")
		if err != nil {
			t.Fatal(err)
		}
		c.SetArgs([]string{"validate"})
		c.SilenceErrors = true
		if err := c.Execute(); (err != nil) != fails {
			t.Errorf("overlay %q: %v", overlay, err)
		}
	}
}

func TestTheCommandKnowsItsModes(t *testing.T) {
	c, err := Command("test")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range append([]string{"components", "validate"}, string(Agent), string(DCGM), string(Gateway), string(Router)) {
		if sub, _, err := c.Find([]string{m}); err != nil || sub == c {
			t.Errorf("no command %s: %v", m, err)
		} else if m == string(Gateway) && (sub.Version != "test" || c.Version != "test") {
			t.Errorf("it says that it is %q, and %s %q", c.Version, m, sub.Version)
		}
	}
	if _, err := Config("nonsense"); err == nil {
		t.Error("an unknown mode has a configuration")
	}
}
