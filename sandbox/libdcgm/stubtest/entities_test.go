//go:build cgo && linux

package stubtest

import (
	"testing"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/pitcrew/pitcrew/sandbox/simgpu"
)

func live(t *testing.T, group dcgm.Field_Entity_Group, id uint, fields ...dcgm.Short) []dcgm.FieldValue_v2 {
	t.Helper()
	v, err := dcgm.EntitiesGetLatestValues([]dcgm.GroupEntityPair{{EntityGroupId: group, EntityId: id}}, fields, dcgm.DCGM_FV_FLAG_LIVE_DATA)
	must(t, err)
	return v
}

func TestInstancesStandInTheHierarchyUnderTheirGPU(t *testing.T) {
	node := start(t)
	must(t, node.MIG(1,
		simgpu.Instance{GI: 3, Profile: "3g.40gb", Slices: 3, Compute: []simgpu.Compute{{CI: 0, UUID: "MIG-aaa"}, {CI: 1}}},
		simgpu.Instance{GI: 9, Profile: "1g.10gb", Slices: 1}))
	h, err := dcgm.GetGPUInstanceHierarchy()
	must(t, err)
	type row struct {
		group, parent dcgm.Field_Entity_Group
		id, parentID  uint
		gi, ci        uint
	}
	none := uint(^uint32(0))
	want := []row{
		{dcgm.FE_GPU_I, dcgm.FE_GPU, 8, 1, 3, none},
		{dcgm.FE_GPU_CI, dcgm.FE_GPU_I, 8, 8, 3, 0},
		{dcgm.FE_GPU_CI, dcgm.FE_GPU_I, 9, 8, 3, 1},
		{dcgm.FE_GPU_I, dcgm.FE_GPU, 9, 1, 9, none},
		{dcgm.FE_GPU_CI, dcgm.FE_GPU_I, 10, 9, 9, 0},
	}
	if int(h.Count) != len(want) {
		t.Fatalf("%d entities, want %d", h.Count, len(want))
	}
	for i, w := range want {
		e := h.EntityList[i]
		got := row{e.Entity.EntityGroupId, e.Parent.EntityGroupId, e.Entity.EntityId, e.Parent.EntityId, e.Info.NvmlInstanceId, e.Info.NvmlComputeInstanceId}
		if got != w || e.Info.GpuUuid != node.GPUs()[1].UUID {
			t.Errorf("entity %d is %+v of %s, want %+v", i, got, e.Info.GpuUuid, w)
		}
	}
	if e := h.EntityList[0]; e.Info.NvmlProfileSlices != 3 {
		t.Errorf("%d slices", e.Info.NvmlProfileSlices)
	}
	ids, err := dcgm.GetEntityGroupEntities(dcgm.FE_GPU_I)
	if must(t, err); len(ids) != 2 {
		t.Errorf("instances %v", ids)
	}
	if v := live(t, dcgm.FE_GPU, 1, 67)[0]; v.Int64() != 1 {
		t.Error("the GPU's MIG mode is off")
	}
	must(t, node.MIG(1))
	if h, err = dcgm.GetGPUInstanceHierarchy(); err != nil || h.Count != 0 {
		t.Errorf("%d entities after MIG was turned off, %v", h.Count, err)
	}
}

func TestAnInstanceHasItsOwnMemoryAndItsGPUsTemperature(t *testing.T) {
	node := start(t)
	must(t, node.MIG(0, simgpu.Instance{GI: 1, Profile: "2g.20gb", Slices: 2, Compute: []simgpu.Compute{{UUID: "MIG-b"}}}))
	must(t, node.SetInstance(0, 1, 252, 1234))
	must(t, node.Set(0, 150, 61))
	v := live(t, dcgm.FE_GPU_I, 0, 50, 250, 252, 150, 1001)
	if *v[0].StringValue != "2g.20gb" || v[1].Int64() != 2*9984 || v[2].Int64() != 1234 || v[3].Int64() != 61 {
		t.Errorf("profile %v, size %d, used %d, temperature %d", *v[0].StringValue, v[1].Int64(), v[2].Int64(), v[3].Int64())
	}
	if a := v[4].Float64(); a < 0.4 || a > 0.8 {
		t.Errorf("activity %v", a)
	}
	if v := live(t, dcgm.FE_GPU_CI, 0, 54)[0]; v.StringValue == nil || *v.StringValue != "MIG-b" {
		t.Errorf("the compute instance's UUID is %v", v.StringValue)
	}
	must(t, node.Lose(0))
	if v := live(t, dcgm.FE_GPU_I, 0, 252)[0]; v.Status != stLost {
		t.Errorf("an instance of a lost GPU answers with status %d", v.Status)
	}
}

func TestSwitchesHaveFieldsLinksAndHealth(t *testing.T) {
	node := start(t)
	must(t, node.Switches(4))
	must(t, node.SetSwitch(2, 856, 20034))
	must(t, node.SwitchLink(2, 7, "down"))
	must(t, node.SetSwitchLink(2, 7, 784, 5))
	ids, err := dcgm.GetEntityGroupEntities(dcgm.FE_SWITCH)
	if must(t, err); len(ids) != 4 {
		t.Fatalf("switches %v", ids)
	}
	v := live(t, dcgm.FE_SWITCH, 2, 856, 857, 878, 867, 150)
	if v[0].Int64() != 20034 || v[1].Int64() != 0 || *v[2].StringValue != "SWX-5117c0de-0000-4000-8000-000000000002" || v[3].Int64() != 7 || v[4].Status != stNotSupported {
		t.Errorf("fatal %d, non-fatal %d, uuid %v, bus %d, a GPU's field with status %d", v[0].Int64(), v[1].Int64(), *v[2].StringValue, v[3].Int64(), v[4].Status)
	}
	links, err := dcgm.GetNvLinkLinkStatus()
	must(t, err)
	up := 0
	for _, l := range links {
		if l.ParentType == dcgm.FE_SWITCH && l.State == dcgm.LS_UP {
			up++
		}
	}
	if up != 4*64-1 {
		t.Errorf("%d links of switches are up", up)
	}
	g, err := dcgm.CreateGroup("switches")
	must(t, err)
	must(t, dcgm.AddEntityToGroup(g, dcgm.FE_SWITCH, 2))
	must(t, dcgm.AddLinkEntityToGroup(g, 7, dcgm.FE_SWITCH, 2))
	must(t, dcgm.AddEntityToGroup(g, dcgm.FE_GPU, 0))
	fg, err := dcgm.FieldGroupCreate("switches", []dcgm.Short{784, 856, 870})
	must(t, err)
	must(t, dcgm.WatchFieldsWithGroupEx(fg, g, 1e6, 0, 1))
	lv, err := dcgm.LinkGetLatestValues(7, dcgm.FE_SWITCH, 2, []dcgm.Short{784, 870})
	if must(t, err); lv[0].Int64() != 5 || lv[1].Int64() != 0 {
		t.Errorf("the link has %d replays and status %d", lv[0].Int64(), lv[1].Int64())
	}
	must(t, dcgm.HealthSet(g, dcgm.DCGM_HEALTH_WATCH_ALL))
	must(t, node.SwitchHealth(2, "nvswitch_fatal", "fail", 9, "sxid 20034"))
	dcgm.HealthCheck(g)
	r, err := dcgm.HealthCheck(g)
	if must(t, err); len(r.Incidents) != 1 || r.Incidents[0].EntityInfo.EntityGroupId != dcgm.FE_SWITCH || r.Incidents[0].EntityInfo.EntityId != 2 || r.Incidents[0].System != dcgm.DCGM_HEALTH_WATCH_NVSWITCH_FATAL {
		t.Errorf("health is %+v", r)
	}
	must(t, node.RemoveSwitch(2))
	if ids, err = dcgm.GetEntityGroupEntities(dcgm.FE_SWITCH); err != nil || len(ids) != 3 {
		t.Errorf("switches %v, %v", ids, err)
	}
}

func TestProfilingIsRefusedWhereItIsMissingTakenOrTooMuchAtOnce(t *testing.T) {
	node := start(t)
	watch := func(name string, fields ...dcgm.Short) error {
		fg, err := dcgm.FieldGroupCreate(t.Name()+name, fields)
		must(t, err)
		err = dcgm.WatchFieldsWithGroupEx(fg, dcgm.GroupAllGPUs(), 1e6, 0, 1)
		if err == nil {
			must(t, dcgm.UnwatchFields(fg, dcgm.GroupAllGPUs()))
		}
		return err
	}
	groups, err := dcgm.GetSupportedMetricGroups(0)
	if must(t, err); len(groups) != 1 || len(groups[0].FieldIds) != 9 {
		t.Fatalf("an H100's groups are %+v", groups)
	}
	if err := watch("all", 1001, 1012); err != nil {
		t.Errorf("on a Hopper card: %v", err)
	}
	must(t, node.Profiling("group 0 0 1001 1002", "group 0 1 1004", "group 1 0 1005"))
	if err := watch("two majors", 1001, 1002, 1005); err != nil {
		t.Errorf("one group of each major: %v", err)
	}
	if err := watch("one major", 1001, 1004); err == nil {
		t.Error("two groups of one major were watched at once")
	}
	if err := watch("none of them", 1012); err == nil {
		t.Error("a metric that no group has was watched")
	}
	must(t, node.Profiling("busy"))
	if err := watch("busy", 1001); err == nil {
		t.Error("the counters were had while another has them")
	}
	must(t, node.Profiling("none"))
	if groups, err := dcgm.GetSupportedMetricGroups(0); err == nil {
		t.Errorf("a card without profiling has %v", groups)
	}
}

func TestTheTopologyIsWhatTheScriptSays(t *testing.T) {
	node := start(t)
	must(t, node.Topology(0, 3, "pix"))
	must(t, node.Topology(0, 4, "nv4"))
	links, err := dcgm.GetDeviceTopology(0)
	must(t, err)
	got := map[uint]string{}
	for _, l := range links {
		got[l.GPU] = l.Link.PCIPaths()
	}
	if len(got) != 7 || got[3] != "PIX" || got[4] != "NV4" || got[1] != "NV18" {
		t.Errorf("topology is %v", got)
	}
}
