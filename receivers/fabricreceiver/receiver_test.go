package fabricreceiver

import (
	"errors"
	"fmt"
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
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sys is a /sys that a test writes, in the shape of one with ConnectX adapters.
type sys struct {
	t    testing.TB
	root string
}

func (s sys) write(name, content string) {
	s.t.Helper()
	path := filepath.Join(s.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content+"\n"), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// adapter makes mlx5_<n> at a PCI address, with one port; layer is InfiniBand or Ethernet.
func (s sys) adapter(name, pci, layer string) {
	s.t.Helper()
	device := "devices/pci0000:15/" + pci + "/infiniband/" + name
	for file, content := range map[string]string{
		"fw_ver": "28.39.1002", "board_id": "MT_0000000838", "hca_type": "MT4129", "node_guid": "9c63:c003:00ab:cdef", "ports/1/link_layer": layer,
		"ports/1/rate": map[string]string{"InfiniBand": "400 Gb/sec (4X NDR)", "Ethernet": "100 Gb/sec (4X EDR)"}[layer],
	} {
		s.write(device+"/"+file, content)
	}
	for _, c := range []string{"excessive_buffer_overrun_errors", "link_downed", "link_error_recovery", "local_link_integrity_errors", "port_rcv_constraint_errors",
		"port_rcv_errors", "port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors", "port_xmit_constraint_errors", "port_xmit_discards",
		"port_xmit_wait", "symbol_error", "VL15_dropped", "port_rcv_data", "port_xmit_data", "port_rcv_packets", "port_xmit_packets"} {
		s.counter(name, pci, c, "0")
	}
	for _, c := range []string{"out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "np_cnp_sent", "rp_cnp_handled", "lifespan"} {
		s.write(device+"/ports/1/hw_counters/"+c, "10")
	}
	link := func(to, at string) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(s.root, at)), 0o755); err != nil {
			s.t.Fatal(err)
		}
		if err := os.Symlink(to, filepath.Join(s.root, at)); err != nil {
			s.t.Fatal(err)
		}
	}
	link("../../"+device, "class/infiniband/"+name)
	link("../../../"+pci, device+"/device")
	if layer == "Ethernet" {
		s.write("devices/pci0000:15/"+pci+"/net/ens1/carrier_down_count", "0")
		s.write("devices/pci0000:15/"+pci+"/net/ens1/operstate", "up")
		link("../../devices/pci0000:15/"+pci+"/net/ens1", "class/net/ens1")
	}
	s.state(name, pci, "4: ACTIVE", "5: LinkUp")
}

func (s sys) state(name, pci, state, phys string) {
	s.t.Helper()
	dir := "devices/pci0000:15/" + pci + "/infiniband/" + name + "/ports/1/"
	s.write(dir+"state", state)
	s.write(dir+"phys_state", phys)
}

func (s sys) counter(name, pci, counter, value string) {
	s.t.Helper()
	s.write("devices/pci0000:15/"+pci+"/infiniband/"+name+"/ports/1/counters/"+counter, value)
}

const ib, roce = "0000:1b:00.0", "0000:5c:00.1"

type rig struct {
	sys
	*fabricReceiver
	metricsSink consumertest.MetricsSink
	logsSink    consumertest.LogsSink
	at          time.Time
	adapters    map[string]*adapter
}

// newRig is a receiver that the test drives itself: look is called, no goroutine runs.
func newRig(t testing.TB, names ...string) *rig {
	t.Helper()
	r := &rig{sys: sys{t, t.TempDir()}, at: time.Unix(1700000000, 0), adapters: map[string]*adapter{}}
	for _, n := range names {
		if n == "mlx5_1" {
			r.adapter(n, roce, "Ethernet")
		} else {
			r.adapter(n, ib, "InfiniBand")
		}
	}
	cfg := createDefaultConfig().(*Config)
	cfg.Sys, cfg.Cluster, cfg.Node = r.root, "c", "n1"
	r.fabricReceiver = newReceiver(receivertest.NewNopSettings(Type), cfg)
	r.metrics, r.logs, r.host, r.now = &r.metricsSink, &r.logsSink, componenttest.NewNopHost(), func() time.Time { return r.at }
	dir := t.TempDir()
	for _, n := range names {
		a, err := openAdapter(r.root, dir, n)
		if err != nil {
			t.Fatal(err)
		}
		r.adapters[n] = a
	}
	return r
}

// said looks at an adapter after a time and lists the changes said: "before→state", with a number where the link went down unseen.
func (r *rig) said(t testing.TB, name string, after time.Duration) []string {
	t.Helper()
	r.at = r.at.Add(after)
	r.logsSink.Reset()
	r.look(t.Context(), r.adapters[name])
	out := []string{}
	for _, ld := range r.logsSink.AllLogs() {
		for _, rec := range ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().All() {
			a := rec.Attributes().AsRaw()
			s := fmt.Sprint(a[attrBefore], "→", a[attrState])
			if n, ok := a[attrCount]; ok {
				s += fmt.Sprint(" ", n)
			}
			out = append(out, s)
		}
	}
	return out
}

// values lists the newest metrics: "name key=value" → value.
func (r *rig) values() map[string]int64 {
	out := map[string]int64{}
	for _, md := range r.metricsSink.AllMetrics() {
		for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
			var points pmetric.NumberDataPointSlice
			if m.Type() == pmetric.MetricTypeGauge {
				points = m.Gauge().DataPoints()
			} else {
				points = m.Sum().DataPoints()
			}
			for _, p := range points.All() {
				key := m.Name()
				for _, a := range []string{attrDirection, attrError, attrSignal} {
					if v, ok := p.Attributes().Get(a); ok {
						key += " " + v.Str()
					}
				}
				out[key] = p.IntValue()
			}
		}
	}
	return out
}

func TestAPortsStateAndCountersAreSaid(t *testing.T) {
	r := newRig(t, "mlx5_0")
	r.counter("mlx5_0", ib, "port_xmit_data", "1000")
	r.counter("mlx5_0", ib, "symbol_error", "7")
	if got := r.said(t, "mlx5_0", 0); !slices.Equal(got, []string{"<nil>→ACTIVE"}) {
		t.Errorf("at first sight %q", got)
	}
	got := r.values()
	for k, v := range map[string]int64{
		metricUp: 1, metricLimit: 50e9, metricIO + " transmit": 4000 /* lanes */, metricIO + " receive": 0, metricErrors + " symbol_error": 7,
		metricErrors + " out_of_sequence": 10, metricCongestion + " cnp_sent": 10, metricDowns: 0,
	} {
		if have, ok := got[k]; !ok || have != v {
			t.Errorf("%s is %d (%v), want %d", k, have, ok, v)
		}
	}
	if _, ok := got[metricErrors+" out_of_buffer"]; ok {
		t.Error("a counter that the adapter does not have has a value")
	}
	p := r.metricsSink.AllMetrics()[0].ResourceMetrics().At(0)
	point := p.ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0)
	want := map[string]any{attrID: "mlx5_0/1", attrName: "mlx5_0", attrType: "network", attrLayer: "InfiniBand", attrPCI: "0000:1b:00"}
	if got := point.Attributes().AsRaw(); !reflect.DeepEqual(got, want) {
		t.Errorf("attributes %v, want %v", got, want)
	}
	if got := p.Resource().Attributes().AsRaw(); !reflect.DeepEqual(got, map[string]any{resCluster: "c", resNode: "n1"}) {
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
	if !r.failed["mlx5_0"] {
		t.Error("the status does not say so")
	}
	r.write("devices/pci0000:15/"+ib+"/infiniband/mlx5_0/fw_ver", "28.39.1002")
	r.said(t, "mlx5_0", mostPause)
	r.said(t, "mlx5_0", time.Second)
	if r.failed["mlx5_0"] || len(r.metricsSink.AllMetrics()) != 2 {
		t.Error("it is not well again")
	}
}

func TestAStateThatMakesNoSenseIsAnError(t *testing.T) {
	for _, s := range []string{"", "ACTIVE", "4:", "4: A\x00B", strings.Repeat("x", 1<<16)} {
		r := newRig(t, "mlx5_0")
		r.state("mlx5_0", ib, s, "5: LinkUp")
		if got := r.said(t, "mlx5_0", 0); len(got) != 0 || !r.failed["mlx5_0"] {
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
	cfg.Sys, cfg.StateInterval = r.root, 100*time.Millisecond
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
	rcv.list(t.Context())
	await("its end", func() bool { return following() == 0 })
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
	f, err := os.OpenFile(hangs, os.O_WRONLY, 0) // the firmware answers
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	r.workers.Wait()
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
	for _, a := range []string{attrID, attrName, attrType, attrPCI, attrPort, attrLayer, attrState, attrBefore, attrPhys, attrCount} {
		if _, ok := meta.Attributes[a]; !ok || !slices.Contains(meta.Events[eventPort].Attributes, a) {
			t.Errorf("%s is not described", a)
		}
	}
}

func FuzzASysfsTree(f *testing.F) {
	f.Add("4: ACTIVE", "5: LinkUp", "400 Gb/sec (4X NDR)", "18446744073709551615")
	f.Add(":", "::", "x Gb", "-1")
	f.Fuzz(func(t *testing.T, state, phys, rate, counter string) {
		r := newRig(t, "mlx5_0")
		r.state("mlx5_0", ib, state, phys)
		r.write("devices/pci0000:15/"+ib+"/infiniband/mlx5_0/ports/1/rate", rate)
		r.counter("mlx5_0", ib, "port_xmit_data", counter)
		r.counter("mlx5_0", ib, "link_downed", counter)
		r.said(t, "mlx5_0", 0)
		r.said(t, "mlx5_0", time.Minute)
	})
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
