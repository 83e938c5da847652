package fabricreceiver

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/pitcrew/pitcrew/semconv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAPortsStateAndCountersAreSaid(t *testing.T) {
	r := newRig(t, "mlx5_0")
	r.counter("mlx5_0", ib, "port_xmit_data", "1000")
	r.counter("mlx5_0", ib, "symbol_error", "7")
	if got := r.said(t, "mlx5_0", 0); !slices.Equal(got, []string{"<nil>→ACTIVE"}) {
		t.Errorf("at first sight %q", got)
	}
	got := r.values()
	for k, v := range map[string]int64{
		semconv.HWNetworkUp: 1, semconv.HWNetworkBandwidthLimit: 50e9, semconv.HWNetworkIO + " transmit": 4000 /* lanes */, semconv.HWNetworkIO + " receive": 0, semconv.FabricErrors + " symbol_error": 7,
		semconv.FabricErrors + " out_of_sequence": 10, semconv.FabricCongestion + " cnp_sent": 10, semconv.FabricLinkDowns: 0,
	} {
		if have, ok := got[k]; !ok || have != v {
			t.Errorf("%s is %d (%v), want %d", k, have, ok, v)
		}
	}
	if _, ok := got[semconv.FabricErrors+" out_of_buffer"]; ok {
		t.Error("a counter that the adapter does not have has a value")
	}
	p := r.metricsSink.AllMetrics()[0].ResourceMetrics().At(0)
	point := p.ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0)
	want := map[string]any{semconv.HWID: "mlx5_0/1", semconv.HWName: "mlx5_0", semconv.HWType: "network", semconv.FabricLayer: "InfiniBand", semconv.HWPCI: "0000:1b:00"}
	if got := point.Attributes().AsRaw(); !reflect.DeepEqual(got, want) {
		t.Errorf("attributes %v, want %v", got, want)
	}
	if got := p.Resource().Attributes().AsRaw(); !reflect.DeepEqual(got, map[string]any{semconv.K8sClusterName: "c", semconv.K8sNodeName: "n1"}) {
		t.Errorf("resource %v", got)
	}
}

func TestAPortThatGoesDownAndComesBackIsSaidEachTime(t *testing.T) {
	r := newRig(t, "mlx5_0")
	r.said(t, "mlx5_0", 0)
	for _, c := range []struct {
		state string
		want  []string
	}{{"1: DOWN", []string{"ACTIVE→DOWN"}}, {"1: DOWN", []string{}}, {"2: INIT", []string{"DOWN→INIT"}}, {"4: ACTIVE", []string{"INIT→ACTIVE"}}} {
		r.state("mlx5_0", ib, c.state, "3: Disabled")
		if got := r.said(t, "mlx5_0", time.Second); !slices.Equal(got, c.want) {
			t.Errorf("at %s said %q, want %q", c.state, got, c.want)
		}
	}
	r.counter("mlx5_0", ib, "link_downed", "1") // of the transition that was seen
	if got := r.said(t, "mlx5_0", time.Minute); len(got) != 0 {
		t.Errorf("said again %q", got)
	}
}

func TestAPortThatWentDownBetweenTwoLooksHasFlapped(t *testing.T) {
	r := newRig(t, "mlx5_0", "mlx5_1")
	for _, n := range []string{"mlx5_0", "mlx5_1"} {
		r.said(t, n, 0)
	}
	r.counter("mlx5_0", ib, "link_downed", "3")
	if got := r.said(t, "mlx5_0", time.Minute); !slices.Equal(got, []string{"ACTIVE→ACTIVE 3"}) {
		t.Errorf("InfiniBand: said %q", got)
	}
	r.write("devices/pci0000:15/"+roce+"/net/ens1/carrier_down_count", "2")
	if got := r.said(t, "mlx5_1", time.Minute); !slices.Equal(got, []string{"ACTIVE→ACTIVE 2"}) {
		t.Errorf("RoCE: said %q", got)
	}
	r.said(t, "mlx5_0", time.Minute)
	r.state("mlx5_0", ib, "1: DOWN", "3: Disabled") // one that is seen, and two more that are not, before the counters are read again
	r.said(t, "mlx5_0", time.Second)
	r.state("mlx5_0", ib, "4: ACTIVE", "5: LinkUp")
	r.said(t, "mlx5_0", time.Second)
	r.counter("mlx5_0", ib, "link_downed", "6")
	if got := r.said(t, "mlx5_0", time.Minute); !slices.Equal(got, []string{"ACTIVE→ACTIVE 2"}) {
		t.Errorf("of three, one was seen: said %q", got)
	}
	r.counter("mlx5_0", ib, "link_downed", "0") // the driver was loaded anew
	if got := r.said(t, "mlx5_0", time.Minute); len(got) != 0 {
		t.Errorf("a reset is told as %q", got)
	}
}

func TestAnAdapterThatFailsHidesNoOtherAndIsAskedLessAndLess(t *testing.T) {
	r := newRig(t, "mlx5_0", "mlx5_1")
	bad := filepath.Join(r.root, "devices/pci0000:15/"+ib+"/infiniband/mlx5_0/fw_ver")
	if err := os.Remove(bad); err != nil { // what the library needs
		t.Fatal(err)
	}
	tried := 0
	a := r.adapters["mlx5_0"]
	for range 600 { // seconds
		before := a.resume
		r.said(t, "mlx5_0", time.Second)
		if !a.resume.Equal(before) {
			tried++
		}
	}
	if tried < 5 || tried > 20 {
		t.Errorf("in ten minutes it was asked %d times", tried)
	}
	if len(r.metricsSink.AllMetrics()) != 0 {
		t.Error("half an adapter was told")
	}
	if r.said(t, "mlx5_1", 0); len(r.metricsSink.AllMetrics()) != 1 {
		t.Error("the other adapter is not told")
	}
	if r.failed["mlx5_0"].text == "" {
		t.Error("the status does not say so")
	}
	r.write("devices/pci0000:15/"+ib+"/infiniband/mlx5_0/fw_ver", "28.39.1002")
	r.said(t, "mlx5_0", mostPause)
	r.said(t, "mlx5_0", time.Second)
	if r.failed["mlx5_0"].text != "" || len(r.metricsSink.AllMetrics()) != 2 {
		t.Error("it is not well again")
	}
}

// An adapter that fell off its bus leaves nothing to read; that is no silence but a port that is down.
func TestAnAdapterThatVanishesTakesItsPortsWithIt(t *testing.T) {
	r := newRig(t, "mlx5_0")
	r.said(t, "mlx5_0", 0)
	class, gone := filepath.Join(r.root, "class/infiniband/mlx5_0"), filepath.Join(r.root, "devices/pci0000:15", ib)
	for _, step := range []struct {
		what string
		do   func() error
		want []string
	}{
		{"its link is gone", func() error { return os.Rename(class, class+".off") }, []string{"ACTIVE→ABSENT"}},
		{"it is still gone", func() error { return nil }, []string{}},
		{"it is back", func() error { return os.Rename(class+".off", class) }, []string{"ABSENT→ACTIVE"}},
		{"its device is gone", func() error { return os.Rename(gone, gone+".off") }, []string{"ACTIVE→ABSENT"}},
		{"it is back again", func() error { return os.Rename(gone+".off", gone) }, []string{"ABSENT→ACTIVE"}},
		{"one port is gone", func() error { return os.Rename(gone+"/infiniband/mlx5_0/ports/1", gone+"/1") }, []string{"ACTIVE→ABSENT"}},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if got := r.said(t, "mlx5_0", 10*time.Second); !reflect.DeepEqual(got, step.want) {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
	}
}

// Daemons tidy up temporary folders.
func TestACleanedUpTemporaryFolderIsNoLostAdapter(t *testing.T) {
	r := newRig(t, "mlx5_0")
	r.said(t, "mlx5_0", 0)
	if err := os.RemoveAll(r.adapters["mlx5_0"].root); err != nil {
		t.Fatal(err)
	}
	r.metricsSink.Reset()
	if got := r.said(t, "mlx5_0", time.Minute); len(got) != 0 {
		t.Errorf("%q", got)
	}
	if len(r.metricsSink.AllMetrics()) != 1 {
		t.Errorf("%d readings", len(r.metricsSink.AllMetrics()))
	}
}

func TestAStateThatMakesNoSenseIsAnError(t *testing.T) {
	for _, s := range []string{"", "ACTIVE", "4:", "4: A\x00B", strings.Repeat("x", 1<<16)} {
		r := newRig(t, "mlx5_0")
		r.state("mlx5_0", ib, s, "5: LinkUp")
		if got := r.said(t, "mlx5_0", 0); len(got) != 0 || r.failed["mlx5_0"].text == "" {
			t.Errorf("%.20q: said %q", s, got)
		}
	}
}

func TestAChangeThatThePipelineRefusesIsSaidAtTheNextLook(t *testing.T) {
	r := newRig(t, "mlx5_0")
	r.said(t, "mlx5_0", 0)
	r.state("mlx5_0", ib, "1: DOWN", "3: Disabled")
	r.logs = consumertest.NewErr(errors.New("full"))
	r.said(t, "mlx5_0", time.Second)
	r.logs = &r.logsSink
	if got := r.said(t, "mlx5_0", time.Second); !slices.Equal(got, []string{"ACTIVE→DOWN"}) {
		t.Errorf("said %q", got)
	}
}

func TestItFollowsAdaptersThatComeAndGo(t *testing.T) {
	r := newRig(t, "mlx5_0")
	f := NewFactory()
	cfg := createDefaultConfig().(*Config)
	cfg.Sys, cfg.StateInterval = r.root, time.Hour // what is said of the end is not by another look
	set := receivertest.NewNopSettings(Type)
	m, err := f.CreateMetrics(t.Context(), set, cfg, &r.metricsSink)
	if err != nil {
		t.Fatal(err)
	}
	l, err := f.CreateLogs(t.Context(), set, cfg, &r.logsSink)
	if err != nil {
		t.Fatal(err)
	}
	if m.(*fabricReceiver) != l.(*fabricReceiver) {
		t.Error("the two pipelines have a receiver each")
	}
	if err := errors.Join(m.Start(t.Context(), componenttest.NewNopHost()), l.Start(t.Context(), componenttest.NewNopHost())); err != nil {
		t.Fatal(err)
	}
	await := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("never came: ", what)
			}
		}
	}
	await("the first adapter", func() bool { return len(r.metricsSink.AllMetrics()) > 0 && len(r.logsSink.AllLogs()) > 0 })
	rcv := m.(*fabricReceiver)
	following := func() int { rcv.mu.Lock(); defer rcv.mu.Unlock(); return len(rcv.read) }
	if err := os.Remove(filepath.Join(r.root, "class/infiniband/mlx5_0")); err != nil {
		t.Fatal(err)
	}
	r.logsSink.Reset()
	rcv.list(t.Context())
	await("its end", func() bool { return following() == 0 && len(r.logsSink.AllLogs()) == 1 })
	if err := errors.Join(m.Shutdown(t.Context()), l.Shutdown(t.Context())); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(rcv.dir); !os.IsNotExist(err) {
		t.Error("its folder is left behind")
	}
}

func TestAnAdapterThatHangsHoldsUpNoOtherAndNoShutdown(t *testing.T) {
	r := newRig(t, "mlx5_0", "mlx5_1")
	hangs := filepath.Join(r.root, "devices/pci0000:15/"+ib+"/infiniband/mlx5_0/ports/1/state")
	if err := errors.Join(os.Remove(hangs), unix.Mkfifo(hangs, 0o600)); err != nil {
		t.Fatal(err)
	}
	r.fabricReceiver.now = time.Now
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); len(r.metricsSink.AllMetrics()) == 0 || len(r.logsSink.AllLogs()) == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the other adapter was not read")
		}
	}
	began := time.Now()
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 5*endWithin {
		t.Errorf("shutdown took %v", took)
	}
	ended := make(chan struct{})
	go func() { r.workers.Wait(); close(ended) }()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) { // the firmware answers, however often it is asked
		if f, err := os.OpenFile(hangs, os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
			f.Close()
		}
		select {
		case <-ended:
			return
		default:
		}
		if time.Now().After(end) {
			t.Fatal("the adapter is still asked though its firmware answers")
		}
	}
}

func TestANodeWithoutAdaptersIsNoTrouble(t *testing.T) {
	r := newRig(t)
	r.list(t.Context())
	if len(r.failed) != 0 {
		t.Errorf("trouble %v", r.failed)
	}
}

func TestAWrongConfigurationNamesEveryFault(t *testing.T) {
	if err := createDefaultConfig().(*Config).Validate(); err != nil {
		t.Error(err)
	}
	err := (&Config{Sys: "sys", Interval: -1}).Validate()
	for _, part := range []string{"sys:", "state_interval:", "interval:"} {
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
		Type       string         `yaml:"type"`
		Attributes map[string]any `yaml:"attributes"`
		Metrics    map[string]struct {
			Unit        string   `yaml:"unit"`
			Description string   `yaml:"description"`
			Attributes  []string `yaml:"attributes"`
		} `yaml:"metrics"`
		Events map[string]struct {
			Attributes []string `yaml:"attributes"`
		} `yaml:"events"`
	}
	if err := yaml.Unmarshal(raw, &meta); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, row := range rows {
		names[row.metric] = true
		m, ok := meta.Metrics[row.metric]
		if !ok || m.Unit != row.unit || m.Description != row.about || row.key != "" && !slices.Contains(m.Attributes, row.key) {
			t.Errorf("%s is described as %+v", row.metric, m)
		}
	}
	if len(meta.Metrics) != len(names) || meta.Type != Type.String() || len(meta.Events) != 1 {
		t.Errorf("metadata has other metrics or events: %+v", meta)
	}
	for _, a := range []string{semconv.HWID, semconv.HWName, semconv.HWType, semconv.HWPCI, semconv.FabricPort, semconv.FabricLayer, semconv.FabricState, semconv.FabricStateBefore, semconv.FabricPhysState, semconv.Count} {
		if _, ok := meta.Attributes[a]; !ok || !slices.Contains(meta.Events[semconv.EventFabricPort].Attributes, a) {
			t.Errorf("%s is not described", a)
		}
	}
}

// BenchmarkState is what a look at one port's state costs here, where no firmware is asked.
func BenchmarkState(b *testing.B) {
	r := newRig(b, "mlx5_0")
	for b.Loop() {
		if _, err := r.adapters["mlx5_0"].states(r.at); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCounters is what a reading of one port's counters costs here.
func BenchmarkCounters(b *testing.B) {
	r := newRig(b, "mlx5_0")
	for b.Loop() {
		if _, _, err := r.adapters["mlx5_0"].counters(r.at); err != nil {
			b.Fatal(err)
		}
	}
}
