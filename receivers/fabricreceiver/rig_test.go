package fabricreceiver

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/pitcrew/pitcrew/semconv"
)

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
			s := fmt.Sprint(a[semconv.FabricStateBefore], "→", a[semconv.FabricState])
			if n, ok := a[semconv.Count]; ok {
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
				for _, a := range []string{semconv.NetworkIODirection, semconv.ErrorType, semconv.FabricSignal} {
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
