package detectorconnector

import (
	"path/filepath"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/pitcrew/pitcrew/event"
)

func violated(policy string, number int) plog.Logs {
	all := map[string]any{"pitcrew.policy": policy, "hw.id": "GPU-1", "hw.pci": "0000:1a:00", "pitcrew.gpu.index": 0}
	if policy == "xid" {
		all["pitcrew.xid.code"] = number
	} else {
		all["pitcrew.count"] = number
	}
	ld := kernelLine("pitcrew.dcgm.violation", all)
	ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0).Body().SetStr("DCGM policy violated")
	return ld
}

func readable(can bool) plog.Logs {
	return kernelLine("pitcrew.kernel.log", map[string]any{"pitcrew.kernel.log.readable": can})
}

func lastXid(code float64) point {
	return point{"pitcrew.gpu.xid", code, map[string]any{"hw.id": "GPU-1"}}
}

func uncorrected(n float64) point {
	return point{"hw.errors", n, map[string]any{"hw.id": "GPU-1", "error.type": "uncorrected"}}
}

func TestAnXidOfDcgmIsTheKernelsWhereTheKernelLogCannotBeRead(t *testing.T) {
	r := start(t, config(t))
	r.sample(t, samples(t0.Add(-time.Second), status(1), lastXid(13)))
	r.line(t, readable(false))
	r.line(t, violated("xid", 154)) // what the driver wants done stands on the line alone
	r.line(t, violated("xid", 79))
	e := r.want(t, "xid/79")[0]
	if d := e.Data; e.Source != "//c/node/n1/dcgm" || e.Type != event.Fault || e.Subject != "gpu/GPU-1" || d.Target.PCI != "0000:1a:00" || d.Severity != event.Fatal ||
		d.Advice != "reboot-node" || d.Evidence.Raw != "DCGM policy violated" {
		t.Errorf("event %+v", e)
	}
	r.sample(t, samples(t0.Add(time.Second), status(1), lastXid(79)))
	r.line(t, violated("xid", 45))
	r.line(t, readable(true))
	r.line(t, xid79())
	r.want(t, "xid/79")
	r.sample(t, samples(t0.Add(2*time.Second), status(1), lastXid(48)))
	r.want(t, "xid/79")
}

func TestTheLastXidAloneTellsWhereNoPolicyDoes(t *testing.T) {
	r := start(t, config(t))
	r.line(t, readable(false))
	r.sample(t, samples(t0, status(1), lastXid(13)))
	r.sample(t, samples(t0.Add(time.Second), status(1), lastXid(13)))
	r.want(t)
	r.sample(t, samples(t0.Add(2*time.Second), status(1), lastXid(79)))
	if e := r.want(t, "xid/79")[0]; e.Data.Target.PCI != "0000:1a:00" || e.Data.Evidence.Signal != "pitcrew.gpu.xid" {
		t.Errorf("event %+v", e)
	}
}

func TestAViolationOfAnotherPolicyIsToldByItsValueAlone(t *testing.T) {
	r := start(t, config(t))
	r.line(t, readable(false))
	r.sample(t, samples(t0, status(1), uncorrected(5)))
	for _, policy := range []string{"dbe", "pages", "nvlink", "pcie", "thermal", "power", ""} { // running totals, maybe of last week
		ld := violated(policy, 5)
		ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0).Attributes().PutInt("pitcrew.xid.code", 79)
		r.line(t, ld)
	}
	r.want(t)
	r.line(t, violated("dbe", 6))
	r.sample(t, samples(t0.Add(time.Second), status(1), uncorrected(6)))
	r.want(t, "gpu/ecc")
	r.line(t, violated("dbe", 6))
	r.sample(t, samples(t0.Add(2*time.Second), status(1), uncorrected(6)))
	r.want(t, "gpu/ecc")
}

func TestWhatDcgmToldIsNotToldAgainByANewAgentThatCanReadTheLog(t *testing.T) {
	cfg := config(t)
	cfg.StateFile = filepath.Join(t.TempDir(), "state", "open.json")
	t.Run("old agent", func(t *testing.T) {
		r := start(t, cfg)
		r.line(t, readable(false))
		r.line(t, violated("xid", 79))
		r.want(t, "xid/79")
	})
	t.Run("new agent", func(t *testing.T) {
		again := *cfg
		r := start(t, &again)
		r.line(t, xid79()) // with the address alone, before DCGM has said which GPU that is
		r.want(t, "~xid/79")
	})
}

func TestARecordThatDoesNotSayWhetherTheLogCanBeReadChangesNothing(t *testing.T) {
	r := start(t, config(t))
	r.line(t, kernelLine("pitcrew.kernel.log", map[string]any{}))
	r.line(t, violated("xid", 79))
	r.want(t)
	r.line(t, readable(false))
	r.want(t, "xid/79")
}
