//go:build cgo && linux

package stubtest

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/pitcrew/pitcrew/sandbox/simgpu"
)

func listen(t *testing.T, typ ...dcgm.PolicyCondition) <-chan dcgm.PolicyViolation {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ch, err := dcgm.ListenForPolicyViolations(ctx, typ...)
	must(t, err)
	t.Cleanup(func() { // before the disconnection: the channel closes when the registration is undone
		cancel()
		for range ch {
		}
		dcgm.GetPolicyForGroup(dcgm.GroupAllGPUs())
	})
	return ch
}

func next(t *testing.T, ch <-chan dcgm.PolicyViolation) dcgm.PolicyViolation {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(2 * time.Second):
		t.Fatal("no violation came")
		panic("unreachable")
	}
}

func none(t *testing.T, ch <-chan dcgm.PolicyViolation) {
	t.Helper()
	select {
	case v := <-ch:
		t.Fatalf("violation %+v came", v)
	case <-time.After(100 * time.Millisecond):
	}
}

func TestAnXIDIsCalledBackOnceAndKeptInItsField(t *testing.T) {
	node := start(t)
	ch := listen(t, dcgm.XidPolicy)
	began := time.Now()
	must(t, node.XID(5, 79))
	v := next(t, ch)
	if v.GPU != 5 || v.Condition != dcgm.XidPolicy || v.Data.(dcgm.XidPolicyCondition).ErrNum != 79 {
		t.Errorf("violation is %+v", v)
	}
	t.Logf("called back after %v", time.Since(began))
	must(t, node.Set(0, 150, 50)) // the script is written again: not a second XID
	none(t, ch)
	must(t, node.XID(5, 79)) // the same code again is another
	next(t, ch)
	if got := read(t, 5, dcgm.DCGM_FV_FLAG_LIVE_DATA, 230)[0].Int64(); got != 79 {
		t.Errorf("field 230 is %d", got)
	}
}

func TestEachConditionCarriesItsNumbers(t *testing.T) {
	node := start(t)
	ch := listen(t, dcgm.DbePolicy, dcgm.PCIePolicy, dcgm.MaxRtPgPolicy, dcgm.ThermalPolicy, dcgm.PowerPolicy, dcgm.NvlinkPolicy)
	for kind, want := range map[string]any{
		"dbe":     dcgm.DbePolicyCondition{Location: "Device", NumErrors: 3},
		"pci":     dcgm.PciPolicyCondition{ReplayCounter: 3},
		"pages":   dcgm.RetiredPagesPolicyCondition{SbePages: 3, DbePages: 4},
		"thermal": dcgm.ThermalPolicyCondition{ThermalViolation: 3},
		"power":   dcgm.PowerPolicyCondition{PowerViolation: 3},
		"nvlink":  dcgm.NvlinkPolicyCondition{FieldId: 3, Counter: 4},
	} {
		must(t, node.Violate(1, kind, 3, 4))
		if v := next(t, ch); v.GPU != 1 || v.Data != want {
			t.Errorf("%s: %+v", kind, v)
		}
	}
}

func TestOnlyRegisteredConditionsAreCalledBack(t *testing.T) {
	node := start(t)
	ch := listen(t, dcgm.XidPolicy)
	must(t, node.Violate(1, "dbe", 1, 0))
	none(t, ch)
}

func TestWhatHappenedBeforeTheListenerIsHistory(t *testing.T) {
	node := start(t)
	must(t, node.XID(0, 31))
	none(t, listen(t, dcgm.XidPolicy))
}

func TestAPolicyIsReadBackAsSet(t *testing.T) {
	start(t)
	limit := uint32(93)
	must(t, dcgm.SetPolicyForGroup(dcgm.GroupAllGPUs(), dcgm.PolicyConfig{Condition: dcgm.ThermalPolicy, MaxTemperature: &limit}))
	p, err := dcgm.GetPolicyForGroup(dcgm.GroupAllGPUs())
	must(t, err)
	if len(p.Conditions) != 1 || p.Conditions[dcgm.ThermalPolicy] != limit {
		t.Errorf("policy is %+v", p)
	}
	must(t, dcgm.ClearPolicyForGroup(dcgm.GroupAllGPUs()))
	if p, err = dcgm.GetPolicyForGroup(dcgm.GroupAllGPUs()); err != nil || len(p.Conditions) != 0 {
		t.Errorf("cleared policy is %+v, %v", p, err)
	}
}

func TestHealthReportsFromTheSecondCheckOn(t *testing.T) {
	node := start(t)
	g := dcgm.GroupAllGPUs()
	must(t, dcgm.HealthSet(g, dcgm.DCGM_HEALTH_WATCH_ALL))
	must(t, node.Health(4, "mem", "fail", 95, "row remap failed"))
	first, err := dcgm.HealthCheck(g)
	must(t, err)
	second, err := dcgm.HealthCheck(g)
	must(t, err)
	if len(first.Incidents) != 0 {
		t.Errorf("the first check reported %+v", first.Incidents)
	}
	if second.OverallHealth != dcgm.DCGM_HEALTH_RESULT_FAIL || len(second.Incidents) != 1 {
		t.Fatalf("the second check is %+v", second)
	}
	if in := second.Incidents[0]; in.System != dcgm.DCGM_HEALTH_WATCH_MEM || in.EntityInfo.EntityId != 4 || in.Error.Message != "row remap failed" || in.Error.Code != 95 {
		t.Errorf("incident is %+v", in)
	}
	must(t, dcgm.HealthSet(g, dcgm.DCGM_HEALTH_WATCH_PCIE))
	dcgm.HealthCheck(g)
	if r, err := dcgm.HealthCheck(g); err != nil || len(r.Incidents) != 0 {
		t.Errorf("a system not watched reported %+v, %v", r, err)
	}
}

func TestAHangHoldsOneCallAndNoOther(t *testing.T) {
	node := start(t)
	must(t, node.Hang("dcgmEntitiesGetLatestValues", time.Minute))
	done := make(chan struct{})
	go func() {
		defer close(done)
		dcgm.EntitiesGetLatestValues([]dcgm.GroupEntityPair{{EntityGroupId: dcgm.FE_GPU}}, []dcgm.Short{150}, 1)
	}()
	began := time.Now()
	if _, err := dcgm.GetSupportedDevices(); err != nil || time.Since(began) > time.Second {
		t.Errorf("another call took %v, %v", time.Since(began), err)
	}
	select {
	case <-done:
		t.Fatal("the call did not hang")
	case <-time.After(100 * time.Millisecond):
	}
	must(t, node.Answer("dcgmEntitiesGetLatestValues"))
	select {
	case <-done:
	case <-time.After(2 * time.Second):
		t.Fatal("the call hangs on after the hang was taken back")
	}
}

func TestAHangEndsAfterItsTime(t *testing.T) {
	node := start(t)
	must(t, node.Hang("dcgmGetAllSupportedDevices", 150*time.Millisecond))
	began := time.Now()
	if _, err := dcgm.GetSupportedDevices(); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d < 140*time.Millisecond {
		t.Errorf("the call took %v", d)
	}
}

func TestAnErrorCarriesItsCodeAndText(t *testing.T) {
	node := start(t)
	must(t, node.Fail("dcgmGetAllSupportedDevices", -57))
	_, err := dcgm.GetSupportedDevices()
	var e *dcgm.Error
	if !errors.As(err, &e) || int(e.Code) != -57 || !strings.Contains(err.Error(), "NVML driver timeout") {
		t.Errorf("error is %v", err)
	}
	must(t, node.Answer("dcgmGetAllSupportedDevices"))
	if _, err := dcgm.GetSupportedDevices(); err != nil {
		t.Error(err)
	}
}

func TestADeadEngineBreaksTheConnectionForGood(t *testing.T) {
	node, err := simgpu.New(t.TempDir()+"/script", simgpu.H100s("n", 8))
	must(t, err)
	t.Setenv(simgpu.EnvScript, node.Path())
	stop, err := dcgm.Init(dcgm.Standalone, "localhost:5555", "0")
	must(t, err)
	must(t, node.EngineDown(true))
	if _, err := dcgm.GetSupportedDevices(); err == nil || !strings.Contains(err.Error(), "connection invalid") {
		t.Errorf("error is %v", err)
	}
	must(t, node.EngineDown(false))
	if _, err := dcgm.GetSupportedDevices(); err == nil {
		t.Error("the old connection works again")
	}
	stop()
	connect(t)
	if ids, err := dcgm.GetSupportedDevices(); err != nil || len(ids) != 8 {
		t.Errorf("%d GPUs on a new connection, %v", len(ids), err)
	}
}

func TestAMissingEngineRefusesTheConnection(t *testing.T) {
	node, err := simgpu.New(t.TempDir()+"/script", simgpu.H100s("n", 8))
	must(t, err)
	must(t, node.EngineDown(true))
	t.Setenv(simgpu.EnvScript, node.Path())
	if _, err := dcgm.Init(dcgm.Standalone, "localhost:5555", "0"); err == nil {
		t.Error("connected to an engine that is down")
	}
}

func TestAMalformedScriptLeavesTheLastGoodOneInForce(t *testing.T) {
	node := start(t)
	must(t, os.WriteFile(node.Path(), []byte("gpus 8\nfrobnicate 3\n"), 0o644))
	if ids, err := dcgm.GetSupportedDevices(); err != nil || len(ids) != 8 {
		t.Errorf("%d GPUs, %v", len(ids), err)
	}
}

func TestUnsupportedCallsSaySo(t *testing.T) {
	start(t)
	if _, err := dcgm.GetCPUHierarchy(); err == nil || !strings.Contains(err.Error(), "not supported") {
		t.Errorf("error is %v", err)
	}
	if h, err := dcgm.GetGPUInstanceHierarchy(); err != nil || h.Count != 0 {
		t.Errorf("%d MIG entities were invented, %v", h.Count, err)
	}
}

func TestEmbeddedModeNeedsNoAddress(t *testing.T) {
	node, err := simgpu.New(t.TempDir()+"/script", simgpu.H100s("n", 4))
	must(t, err)
	t.Setenv(simgpu.EnvScript, node.Path())
	stop, err := dcgm.Init(dcgm.Embedded)
	must(t, err)
	defer stop()
	if n, err := dcgm.GetAllDeviceCount(); err != nil || n != 4 {
		t.Errorf("%d GPUs, %v", n, err)
	}
}

func TestCallsFromManyThreadsAgree(t *testing.T) {
	node := start(t)
	watch(t, 5*time.Millisecond, 1, 150, 155, 230)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				if v := read(t, uint(i), 0, 150, 155, 230); len(v) != 3 || int(v[0].EntityID) != i {
					t.Errorf("GPU %d: %d values", i, len(v))
					return
				}
			}
		})
	}
	for k := range 20 {
		must(t, node.Set(k%8, 150, float64(40+k)))
	}
	wg.Wait()
}
