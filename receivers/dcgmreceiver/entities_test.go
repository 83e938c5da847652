//go:build cgo && linux

package dcgmreceiver

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/sandbox/simgpu"
	"github.com/pitcrew/pitcrew/semconv"
)

// must fails the test where a change of the simulated node did.
func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// seen returns the newest point of a metric with these attributes (key, value, ...).
func (b *bench) seen(name string, attrs ...string) (pmetric.NumberDataPoint, bool) {
	all := b.metrics.AllMetrics()
	for i := len(all) - 1; i >= 0; i-- {
		for _, sm := range all[i].ResourceMetrics().At(0).ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if m.Name() != name {
					continue
				}
				for _, p := range numbers(m).All() {
					has := true
					for k := 0; k < len(attrs); k += 2 {
						v, ok := p.Attributes().Get(attrs[k])
						has = has && (ok && v.AsString() == attrs[k+1] || !ok && attrs[k+1] == "")
					}
					if has {
						return p, true
					}
				}
			}
		}
	}
	return pmetric.NumberDataPoint{}, false
}

func (b *bench) number(name string, attrs ...string) float64 {
	p, ok := b.seen(name, attrs...)
	switch {
	case !ok:
		return -1
	case p.ValueType() == pmetric.NumberDataPointValueTypeInt:
		return float64(p.IntValue())
	}
	return p.DoubleValue()
}

func (b *bench) lines(part string) (n int) {
	for _, l := range b.said.All() {
		if strings.Contains(l.Message+fmt.Sprint(l.ContextMap()), part) {
			n++
		}
	}
	return n
}

var twoInstances = []simgpu.Instance{
	{GI: 3, Profile: "3g.40gb", Slices: 3, Compute: []simgpu.Compute{{CI: 0, UUID: "MIG-11111111-2222-3333-4444-555555555555"}, {CI: 1}}},
	{GI: 9, Profile: "1g.10gb", Slices: 1},
}

func TestDCGMInstancesAreEntitiesOfTheirOwn(t *testing.T) {
	b, node := startDCGM(t, func(c *Config, n *simgpu.Node) {
		c.ExtraFields = []uint16{251, 1001, 1009}
		must(t, n.MIG(1, twoInstances...), n.SetInstance(1, 9, 252, 1234))
	})
	uuid := uuidOf(node, 1)
	eventually(t, "the instance's memory", func() bool { return b.number("hw.gpu.memory.usage", semconv.HWID, uuid+"/9") == 1234<<20 })
	p, _ := b.seen("hw.gpu.memory.usage", semconv.HWID, uuid+"/9")
	if a := p.Attributes().AsRaw(); a[semconv.HWParent] != uuid || a[semconv.MIG] != "9" || a[semconv.MIGProfile] != "1g.10gb" {
		t.Errorf("the instance is %v", a)
	}
	if p, ok := b.seen("hw.gpu.memory.usage", semconv.HWID, uuid, semconv.HWParent, ""); !ok || p.IntValue() == 1234<<20 {
		t.Error("the GPU's own memory is not told beside its instances'")
	}
	if a := b.number("pitcrew.gpu.activity", semconv.HWID, uuid+"/3"); a < 0.4 || a > 0.8 {
		t.Errorf("activity of the instance is %v", a)
	}
	if _, ok := b.seen("pitcrew.gpu.pcie.io", semconv.HWID, uuid+"/3"); ok {
		t.Error("an instance has PCIe traffic: that is the whole card's")
	}
	for _, q := range []struct {
		name  string
		attrs []string
		there bool
	}{
		{"DCGM_FI_DEV_FB_USED", []string{"UUID", uuid, "GPU_I_ID", "9", "GPU_I_PROFILE", "1g.10gb", "gpu", "1"}, true},
		{"DCGM_FI_DEV_FB_FREE", []string{"UUID", uuid, "GPU_I_ID", "3", "GPU_I_PROFILE", "3g.40gb"}, true},
		{"DCGM_FI_PROF_GR_ENGINE_ACTIVE", []string{"UUID", uuid, "GPU_I_ID", "3"}, true},
		{"DCGM_FI_DEV_FB_USED", []string{"UUID", uuid, "GPU_I_ID", ""}, false}, // a sum would count it twice
		{"DCGM_FI_DEV_FB_USED", []string{"UUID", uuidOf(node, 0), "GPU_I_ID", ""}, true},
		{"DCGM_FI_DEV_GPU_TEMP", []string{"UUID", uuid, "GPU_I_ID", ""}, true},
	} {
		if _, ok := b.seen(q.name, q.attrs...); ok != q.there {
			t.Errorf("%s %v is there: %v", q.name, q.attrs, ok)
		}
	}
	for ci, want := range map[string]map[string]any{
		"0": {semconv.HWID: uuid + "/3", semconv.HWParent: uuid, semconv.GPUIndex: int64(1), semconv.MIG: "3/0", semconv.MIGProfile: "3g.40gb", semconv.MIGUUID: "MIG-11111111-2222-3333-4444-555555555555"},
		"1": {semconv.HWID: uuid + "/3", semconv.HWParent: uuid, semconv.GPUIndex: int64(1), semconv.MIG: "3/1", semconv.MIGProfile: "3g.40gb"},
	} {
		p, ok := b.seen(semconv.GPUMIGInfo, semconv.MIG, "3/"+ci)
		if got := p.Attributes().AsRaw(); !ok || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("compute instance %s is %v, want %v", ci, got, want)
		}
	}
	must(t, node.MIG(1, simgpu.Instance{GI: 5, Profile: "2g.20gb", Slices: 2}), node.MIG(2, simgpu.Instance{GI: 0, Profile: "7g.80gb", Slices: 7}))
	eventually(t, "an instance that was made while running", func() bool { _, ok := b.seen("hw.gpu.memory.usage", semconv.HWID, uuidOf(node, 2)+"/0"); return ok })
	b.metrics.Reset()
	eventually(t, "values of after", func() bool { _, ok := b.seen(semconv.GPUStatus); return ok })
	if _, ok := b.seen(semconv.GPUMIGInfo, semconv.MIG, "9/0"); ok {
		t.Error("an instance that is gone is told on")
	}
}

func TestDCGMAnInstanceMadeAnewUnderAnOldNumberIsTakenForTheNewOne(t *testing.T) {
	cfg, node := stubNode(t)
	must(t, node.MIG(1, simgpu.Instance{GI: 3, Profile: "3g.40gb", Slices: 3}))
	e, _ := stubEngine(t, cfg)
	before, err := e.Inventory()
	must(t, err, node.MIG(1, simgpu.Instance{GI: 7, Profile: "1g.10gb", Slices: 1})) // the same number of the engine
	e.mig.at = e.mig.at.Add(-migEvery)
	after, err := e.Inventory()
	must(t, err)
	if before.Instances[0].ID != after.Instances[0].ID {
		t.Fatal("the stub has numbered it anew: nothing is proved")
	}
	if in := after.Instances[0]; in.GI != 7 || in.Profile != "1g.10gb" || before.same(after) {
		t.Errorf("the instance is %+v, then %+v", before.Instances[0], in)
	}
}

func TestDCGMTheDriverIsAskedForTheUUIDsThatTheEngineDoesNotTell(t *testing.T) {
	cfg, node := stubNode(t)
	must(t, node.MIG(2,
		simgpu.Instance{GI: 3, Profile: "3g.40gb", Slices: 3, Compute: []simgpu.Compute{{CI: 0, UUID: "MIG-a", NVML: true}, {CI: 1, UUID: "MIG-b", NVML: true}}},
		simgpu.Instance{GI: 9, Profile: "1g.10gb", Slices: 1, Compute: []simgpu.Compute{{UUID: "MIG-c"}}},
		simgpu.Instance{GI: 11, Profile: "1g.10gb", Slices: 1}))
	uuids := func(e *engine) (out []string) {
		inv, err := e.Inventory()
		must(t, err)
		for _, in := range inv.Instances {
			for _, c := range in.Compute {
				out = append(out, fmt.Sprintf("%d/%d=%s", in.GI, c.CI, c.UUID))
			}
		}
		return out
	}
	e, _ := stubEngine(t, cfg)
	if got := uuids(e); !slices.Equal(got, []string{"3/0=MIG-a", "3/1=MIG-b", "9/0=MIG-c", "11/0="}) {
		t.Errorf("MIG devices are %v", got)
	}
	e.mig, e.nvml, e.cfg.NVMLLibrary = migState{}, nvml{}, "/nonexistent/libnvidia-ml.so.1"
	if got := uuids(e); !slices.Equal(got, []string{"3/0=", "3/1=", "9/0=MIG-c", "11/0="}) {
		t.Errorf("without NVML MIG devices are %v", got)
	}
	if e.nvml.err == nil || !strings.Contains(e.nvml.err.Error(), "nonexistent") {
		t.Errorf("error is %v", e.nvml.err)
	}
}

func TestDCGMWithoutMIGTheDriverIsNotAsked(t *testing.T) {
	cfg, _ := stubNode(t)
	e, _ := stubEngine(t, cfg)
	if inv, err := e.Inventory(); err != nil || len(inv.Instances) != 0 || e.nvml.tried {
		t.Errorf("%d instances, NVML was loaded: %v, %v", len(inv.Instances), e.nvml.tried, err)
	}
}

func TestDCGMSwitchesAreEntitiesOfTheirOwn(t *testing.T) {
	b, node := startDCGM(t, func(c *Config, n *simgpu.Node) {
		c.ExtraFields = []uint16{780, 784, 870}
		must(t, n.Switches(4), n.SetSwitch(2, 856, 20034), n.SetSwitchLink(2, 7, 784, 5))
	})
	id := func(i int) string { return fmt.Sprintf("SWX-5117c0de-0000-4000-8000-%012d", i) }
	eventually(t, "a link's errors", func() bool {
		return b.number("pitcrew.nvswitch.link.errors", semconv.HWID, id(2), semconv.NVLinkLink, "7", semconv.NVLinkError, "replay") == 5
	})
	for _, q := range []struct {
		name  string
		attrs []string
		want  float64
	}{
		{semconv.NVSwitchStatus, []string{semconv.HWID, id(3), semconv.NVSwitchIndex, "3", semconv.HWPCI, "0000:08:00"}, 1},
		{"pitcrew.nvswitch.sxid", []string{semconv.HWID, id(2), semconv.SXIDClass, "fatal"}, 20034},
		{"pitcrew.nvswitch.sxid", []string{semconv.HWID, id(2), semconv.SXIDClass, "non_fatal"}, 0},
		{"pitcrew.nvswitch.reset_required", []string{semconv.HWID, id(0)}, 0},
		{"pitcrew.nvswitch.link.state", []string{semconv.HWID, id(0), semconv.NVLinkLink, "63"}, 2},
		{"DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS", []string{"nvswitch", "nvswitch2", "Hostname", "node-a", "gpu", ""}, 20034},
		{"DCGM_FI_DEV_NVSWITCH_LINK_REPLAY_ERRORS", []string{"nvswitch", "nvswitch2", "nvlink", "7"}, 5},
		{semconv.NVLinkLinks, []string{semconv.HWID, id(1), semconv.NVLinkState, "up"}, 64},
	} {
		if got := b.number(q.name, q.attrs...); got != q.want {
			t.Errorf("%s %v is %v, want %v", q.name, q.attrs, got, q.want)
		}
	}
	must(t, node.RemoveSwitch(1))
	eventually(t, "the missing switch is said", func() bool { return b.number(semconv.NVSwitchStatus, semconv.HWID, id(1)) == 0 })
	if v := b.number(semconv.NVSwitchStatus, semconv.HWID, id(2)); v != 1 {
		t.Errorf("its neighbour's status is %v", v)
	}
	must(t, node.RestoreSwitch(1))
	eventually(t, "it is back", func() bool { return b.number(semconv.NVSwitchStatus, semconv.HWID, id(1)) == 1 })
}

func TestDCGMHealthOfASwitchIsItsOwn(t *testing.T) {
	cfg, node := stubNode(t)
	must(t, node.Switches(2), node.SwitchHealth(1, "nvswitch_fatal", "fail", 9, "sxid 20034"))
	e, _ := stubEngine(t, cfg)
	inv, err := e.Inventory()
	must(t, err)
	_, err = e.Watch(inv, []Watch{{time.Second, []uint16{150}}})
	must(t, err)
	_, err = e.Health()
	must(t, err)
	got, err := e.Health()
	if want := (Incident{Of: SwitchLevel, ID: 1, System: "nvswitch_fatal", Fail: true, Code: 9, Text: "sxid 20034"}); err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("incidents are %+v, %v", got, err)
	}
}

func TestDCGMALinkThatGoesDownIsCountedAndToldOnce(t *testing.T) {
	b, node := startDCGM(t, nil)
	uuid := uuidOf(node, 4)
	eventually(t, "the links", func() bool { return b.number(semconv.NVLinkLinks, semconv.HWID, uuid, semconv.NVLinkState, "up") == 18 })
	if n := b.logs.LogRecordCount(); n != 0 {
		t.Fatalf("%d records of links that stood as they are", n)
	}
	must(t, node.NVLink(4, 11, "down"), node.XID(4, 74)) // the Xid has the links looked at, at once
	eventually(t, "the transition", func() bool { return b.logs.LogRecordCount() == 2 })
	found := false
	for _, ld := range b.logs.AllLogs() {
		lr := ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0)
		if lr.EventName() != EventTransition {
			continue
		}
		a := lr.Attributes().AsRaw()
		found = a[semconv.HWID] == uuid && a[semconv.NVLinkLink] == int64(11) && a[semconv.NVLinkFrom] == "up" && a[semconv.NVLinkTo] == "down" && a[semconv.HWPCI] == "0000:9c:00"
		if !found {
			t.Errorf("the record is %v", a)
		}
	}
	if !found {
		t.Error("no record tells the transition")
	}
	eventually(t, "the counts", func() bool {
		return b.number(semconv.NVLinkLinks, semconv.HWID, uuid, semconv.NVLinkState, "down") == 1 && b.number(semconv.NVLinkLinks, semconv.HWID, uuid, semconv.NVLinkState, "up") == 17 && b.number(semconv.NVLinkTransitions, semconv.HWID, uuid) == 1
	})
	if n := b.number(semconv.NVLinkTransitions, semconv.HWID, uuidOf(node, 5)); n != 0 {
		t.Errorf("its neighbour has %v transitions", n)
	}
}

func TestDCGMTopologyIsToldOnceForEachPair(t *testing.T) {
	b, node := startDCGM(t, func(_ *Config, n *simgpu.Node) { must(t, n.Topology(0, 3, "pix")) })
	eventually(t, "the topology", func() bool { _, ok := b.seen(semconv.GPUTopology); return ok })
	md, _ := b.newest(semconv.GPUTopology)
	pairs := map[string]int{}
	for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		if m.Name() == semconv.GPUTopology {
			for _, p := range m.Gauge().DataPoints().All() {
				kind, _ := p.Attributes().Get(semconv.GPUPath)
				pairs[kind.Str()]++
			}
		}
	}
	if pairs["NV18"] != 27 || pairs["PIX"] != 1 || len(pairs) != 2 {
		t.Errorf("pairs by path: %v", pairs)
	}
	if b.number(semconv.GPUTopology, semconv.HWID, uuidOf(node, 0), semconv.GPUPeer, uuidOf(node, 3), semconv.GPUPath, "PIX") != 1 {
		t.Error("the pair of the exception is another")
	}
}

func TestDCGMANodeWithoutTopologyIsReadAllTheSame(t *testing.T) {
	b, _ := startDCGM(t, func(_ *Config, n *simgpu.Node) { must(t, n.Fail("dcgmGetDeviceTopology", -3)) })
	eventually(t, "a value", func() bool { _, ok := b.seen("hw.temperature"); return ok })
	if n := b.lines("no good answer"); n != 0 {
		t.Errorf("said to be without a good answer %d times", n)
	}
}

func TestDCGMOptionalFieldsAreReadWhenAskedFor(t *testing.T) {
	b, node := startDCGM(t, func(c *Config, n *simgpu.Node) {
		c.ExtraFields = []uint16{206, 207, 497, 526, 1216}
		must(t, n.Set(2, 206, 40), n.Set(2, 526, 1))
	})
	uuid := uuidOf(node, 2)
	eventually(t, "the encoder", func() bool {
		return b.number("hw.gpu.utilization", semconv.HWID, uuid, semconv.HWGPUTask, "encoder") == 0.4
	})
	for _, q := range []struct {
		name  string
		attrs []string
		want  float64
	}{
		{"hw.gpu.utilization", []string{semconv.HWID, uuid, semconv.HWGPUTask, "decoder"}, 0},
		{"DCGM_FI_DEV_ENC_UTIL", []string{"UUID", uuid}, 40},
		{"DCGM_FI_DEV_DEC_UTIL", []string{"UUID", uuid}, 0},
		{"DCGM_FI_DEV_VGPU_LICENSE_STATUS", []string{"UUID", uuid}, 1},
		{"pitcrew.gpu.nvlink.link.errors", []string{semconv.HWID, uuid, semconv.NVLinkLink, "3", semconv.NVLinkError, "crc"}, 0},
	} {
		if got := b.number(q.name, q.attrs...); got != q.want {
			t.Errorf("%s %v is %v, want %v", q.name, q.attrs, got, q.want)
		}
	}
	if _, ok := b.seen("pitcrew.gpu.nvlink5.bit_error_rate"); ok {
		t.Error("a card without NVLink 5 has its bit error rate")
	}
}

func TestDCGMAnXIDCarriesItsCodeAndItsNameAsLabelsAndTheOldSeriesEnds(t *testing.T) {
	b, node := startDCGM(t, func(c *Config, _ *simgpu.Node) { c.DCGMNamesInterval = 0 })
	uuid := uuidOf(node, 6)
	eventually(t, "no error", func() bool {
		return b.number("DCGM_FI_DEV_XID_ERRORS", "UUID", uuid, "err_code", "0", "err_msg", "No Error") == 0
	})
	must(t, node.XID(6, 79))
	eventually(t, "the code", func() bool { return b.number("DCGM_FI_DEV_XID_ERRORS", "UUID", uuid, "err_code", "79") == 79 })
	p, _ := b.seen("DCGM_FI_DEV_XID_ERRORS", "UUID", uuid, "err_code", "79")
	if msg, _ := p.Attributes().Get("err_msg"); msg.Str() != "GPU fell off the bus" {
		t.Errorf("err_msg is %q", msg.Str())
	}
	if p, _ := b.seen("DCGM_FI_DEV_XID_ERRORS", "UUID", uuid, "err_code", "0"); !p.Flags().NoRecordedValue() {
		t.Error("the series without an error goes on beside the one with it")
	}
	must(t, node.XID(6, 9999))
	eventually(t, "a code that no table has", func() bool {
		return b.number("DCGM_FI_DEV_XID_ERRORS", "UUID", uuid, "err_code", "9999", "err_msg", "Unknown Error") == 9999
	})
}

func TestABlankNodeWithSwitchesThatAnswerIsBlank(t *testing.T) {
	values := []Value{{Of: SwitchLevel, Field: 856}, {ID: 0, Field: 150, Blank: true}}
	if !allBlank(values) {
		t.Error("a switch's value hides that no GPU answers")
	}
	if allBlank(slices.Concat(values, []Value{{ID: 1, Field: 150}})) || allBlank(values[:1]) {
		t.Error("blank without being so")
	}
}
