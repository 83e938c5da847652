//go:build cgo && linux

package stubtest

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"
)

// Status codes of dcgmReturn_t that values carry.
const (
	stOK, stBadParam, stNotSupported, stNoData, stNotWatched, stNoPermission, stLost = 0, -1, -6, -14, -16, -17, -18
)

func TestInventoryNamesEachGPU(t *testing.T) {
	node := start(t)
	n, err := dcgm.GetAllDeviceCount()
	must(t, err)
	ids, err := dcgm.GetSupportedDevices()
	must(t, err)
	if n != 8 || len(ids) != 8 {
		t.Fatalf("%d GPUs, %d supported; want 8", n, len(ids))
	}
	for i, g := range node.GPUs() {
		d, err := dcgm.GetDeviceInfo(uint(i))
		must(t, err)
		if d.UUID != g.UUID || d.PCI.BusID != g.PCI || d.Identifiers.Model != g.Name || d.DCGMSupported != "Yes" || d.PCI.FBTotal != 81559 {
			t.Errorf("GPU %d is %+v", i, d)
		}
		if len(d.Topology) != 7 {
			t.Errorf("GPU %d has %d peers", i, len(d.Topology))
		}
	}
}

func TestValuesOfEachTypeAreRead(t *testing.T) {
	node := start(t)
	must(t, node.Set(2, 150, 71))
	must(t, node.Set(2, 155, 412.5))
	v := read(t, 2, dcgm.DCGM_FV_FLAG_LIVE_DATA, 150, 155, 54)
	if v[0].FieldType != dcgm.DCGM_FT_INT64 || v[0].Int64() != 71 {
		t.Errorf("temperature is %d", v[0].Int64())
	}
	if v[1].FieldType != dcgm.DCGM_FT_DOUBLE || v[1].Float64() != 412.5 {
		t.Errorf("power is %v", v[1].Float64())
	}
	if v[2].FieldType != dcgm.DCGM_FT_STRING || *v[2].StringValue != node.GPUs()[2].UUID {
		t.Errorf("UUID is %v", v[2].StringValue)
	}
	if age := time.Since(time.UnixMicro(v[0].TS)); age < 0 || age > 5*time.Second {
		t.Errorf("a live value is %v old", age)
	}
}

func TestAnUnwatchedFieldHasNoCachedValue(t *testing.T) {
	start(t)
	v := read(t, 0, 0, 150)
	if v[0].Status != stNotWatched || !dcgm.IsInt64Blank(v[0].Int64()) {
		t.Errorf("status %d, value %d", v[0].Status, v[0].Int64())
	}
}

func TestAWatchedFieldIsCachedUntilItsNextCycle(t *testing.T) {
	node := start(t)
	watch(t, time.Hour, 1, 150)
	before := read(t, 0, 0, 150)[0]
	must(t, node.Set(0, 150, 99))
	if v := read(t, 0, 0, 150)[0]; v.Int64() != before.Int64() || v.TS != before.TS {
		t.Errorf("cached value moved from %d to %d before its cycle", before.Int64(), v.Int64())
	}
	if v := read(t, 0, dcgm.DCGM_FV_FLAG_LIVE_DATA, 150)[0]; v.Int64() != 99 {
		t.Errorf("live value is %d", v.Int64())
	}
	must(t, dcgm.UpdateAllFields())
	if v := read(t, 0, 0, 150)[0]; v.Int64() != 99 {
		t.Errorf("value after an update is %d", v.Int64())
	}
}

func TestAFastWatchFollowsAChange(t *testing.T) {
	node := start(t)
	watch(t, 10*time.Millisecond, 1, 150)
	must(t, node.Set(0, 150, 88))
	eventually(t, "the change is read", func() bool { return read(t, 0, 0, 150)[0].Int64() == 88 })
}

func TestUnwatchingEndsTheCache(t *testing.T) {
	start(t)
	g, fg := watch(t, time.Second, 1, 150)
	must(t, dcgm.UnwatchFields(fg, g))
	if v := read(t, 0, 0, 150)[0]; v.Status != stNotWatched {
		t.Errorf("status %d after the watch ended", v.Status)
	}
}

func TestBlanksSayWhy(t *testing.T) {
	node := start(t)
	for i, c := range []struct {
		how    string
		status int
	}{{"blank", stNoData}, {"notfound", stNoData}, {"notsupported", stNotSupported}, {"noperm", stNoPermission}} {
		must(t, node.Blank(0, 150, c.how))
		must(t, node.Blank(0, 155, c.how))
		v := read(t, 0, dcgm.DCGM_FV_FLAG_LIVE_DATA, 150, 155)
		if v[0].Int64() != 0x7ffffffffffffff0+int64(i) || v[0].Status != c.status {
			t.Errorf("%s: int64 %#x, status %d", c.how, v[0].Int64(), v[0].Status)
		}
		if v[1].Float64() != 140737488355328.0+float64(i) {
			t.Errorf("%s: double %v", c.how, v[1].Float64())
		}
	}
}

func TestACounterRisesAtItsRate(t *testing.T) {
	node := start(t)
	must(t, node.Ramp(0, 312, 100, 1000, 1e12))
	first := read(t, 0, dcgm.DCGM_FV_FLAG_LIVE_DATA, 312)[0]
	time.Sleep(50 * time.Millisecond)
	second := read(t, 0, dcgm.DCGM_FV_FLAG_LIVE_DATA, 312)[0]
	want := float64(second.TS-first.TS) / 1e3
	if got := float64(second.Int64() - first.Int64()); got < want-2 || got > want+2 {
		t.Errorf("rose by %v in %v µs", got, second.TS-first.TS)
	}
	must(t, node.Ramp(0, 312, 0, 1e9, 7))
	if v := read(t, 0, dcgm.DCGM_FV_FLAG_LIVE_DATA, 312)[0].Int64(); v > 7 {
		t.Errorf("ramp is %d, beyond its limit 7", v)
	}
}

func TestSamplesSinceATimeComeOnce(t *testing.T) {
	start(t)
	g, fg := watch(t, 20*time.Millisecond, 100, 156)
	time.Sleep(100 * time.Millisecond)
	v, next, err := dcgm.GetValuesSince(g, fg, time.Time{})
	must(t, err)
	perGPU := map[uint]int64{}
	for _, s := range v {
		if s.TS <= perGPU[s.EntityID] {
			t.Fatalf("GPU %d: sample at %d after %d", s.EntityID, s.TS, perGPU[s.EntityID])
		}
		perGPU[s.EntityID] = s.TS
	}
	if len(v) < 8*4 || len(perGPU) != 8 {
		t.Fatalf("%d samples of %d GPUs in 100 ms at 20 ms", len(v), len(perGPU))
	}
	again, _, err := dcgm.GetValuesSince(g, fg, next)
	must(t, err)
	for _, s := range again {
		if s.TS <= perGPU[s.EntityID] {
			t.Errorf("GPU %d: sample at %d came twice", s.EntityID, s.TS)
		}
	}
}

func TestALostGPUIsListedButNotSupported(t *testing.T) {
	node := start(t)
	watch(t, 10*time.Millisecond, 1, 150)
	must(t, node.Lose(3))
	n, err := dcgm.GetAllDeviceCount()
	must(t, err)
	ids, err := dcgm.GetSupportedDevices()
	must(t, err)
	if n != 8 || len(ids) != 7 || dcgm.GetGPUStatus(3) != dcgm.EntityStatusLost {
		t.Errorf("%d listed, %d supported, status %v", n, len(ids), dcgm.GetGPUStatus(3))
	}
	eventually(t, "its values are blank", func() bool {
		v := read(t, 3, 0, 150)[0]
		return v.Status == stLost && dcgm.IsInt64Blank(v.Int64())
	})
	must(t, node.Restore(3))
	if ids, err = dcgm.GetSupportedDevices(); err != nil || len(ids) != 8 {
		t.Errorf("%d supported after it came back, %v", len(ids), err)
	}
}

func TestARemovedGPUIsUnknown(t *testing.T) {
	node := start(t)
	must(t, node.Remove(7))
	if n, err := dcgm.GetAllDeviceCount(); err != nil || n != 7 {
		t.Errorf("%d GPUs, %v", n, err)
	}
	if v := read(t, 7, dcgm.DCGM_FV_FLAG_LIVE_DATA, 150)[0]; v.Status != stBadParam {
		t.Errorf("status %d", v.Status)
	}
	if v := read(t, 0, dcgm.DCGM_FV_FLAG_LIVE_DATA, 4)[0]; v.Int64() != 7 {
		t.Errorf("field 4 is %d", v.Int64())
	}
}

func TestLinksTellTheirState(t *testing.T) {
	node := start(t)
	must(t, node.NVLink(1, 5, "down"))
	links, err := dcgm.GetNvLinkLinkStatus()
	must(t, err)
	up := 0
	for _, l := range links {
		if l.State == dcgm.LS_UP {
			up++
		}
		if l.ParentId == 1 && l.Index == 5 && l.State != dcgm.LS_DOWN {
			t.Errorf("link 5 of GPU 1 is in state %d", l.State)
		}
	}
	if up != 8*18-1 {
		t.Errorf("%d links up", up)
	}
	g, err := dcgm.CreateGroup("links")
	must(t, err)
	must(t, dcgm.AddLinkEntityToGroup(g, 5, dcgm.FE_GPU, 1))
	must(t, dcgm.AddLinkEntityToGroup(g, 6, dcgm.FE_GPU, 1))
	fg, err := dcgm.FieldGroupCreate("links", []dcgm.Short{1508})
	must(t, err)
	must(t, dcgm.WatchFieldsWithGroupEx(fg, g, 1e6, 0, 1))
	for index, want := range map[uint]int64{5: 0, 6: 1} {
		v, err := dcgm.LinkGetLatestValues(index, dcgm.FE_GPU, 1, []dcgm.Short{1508})
		if err != nil || v[0].Int64() != want {
			t.Errorf("link %d: %v, %v", index, v, err)
		}
	}
}

func TestMetadataKnowsTypesAndLevels(t *testing.T) {
	start(t)
	for id, want := range map[dcgm.Short]dcgm.FieldMeta{
		150:  {FieldType: 'i', EntityLevel: dcgm.FE_GPU},
		155:  {FieldType: 'd', EntityLevel: dcgm.FE_GPU},
		54:   {FieldType: 's', EntityLevel: dcgm.FE_GPU},
		1508: {FieldType: 'i', EntityLevel: dcgm.FE_LINK},
	} {
		got, err := dcgm.FieldGetByID(id)
		if err != nil || got.FieldType != want.FieldType || got.EntityLevel != want.EntityLevel {
			t.Errorf("field %d: %+v, %v", id, got, err)
		}
	}
	if _, err := dcgm.FieldGetByID(1999); err == nil {
		t.Error("field 1999 is known")
	}
	if _, err := dcgm.FieldGroupCreate("unknown", []dcgm.Short{1999}); err == nil {
		t.Error("a group of an unknown field was made")
	}
}
