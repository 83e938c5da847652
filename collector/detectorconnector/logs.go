package detectorconnector

import (
	"context"
	"time"

	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/pitcrew/pitcrew/detector"
	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

type logsSkin struct{ skin }

// ConsumeLogs judges log events of receivers. Records of other names pass by unseen.
func (s *logsSkin) ConsumeLogs(ctx context.Context, ld plog.Logs) error {
	s.emit(ctx, s.next, s.judgeLogs(ld))
	return nil
}

func (c *core) judgeLogs(ld plog.Logs) (found []finding.Finding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rl := range ld.ResourceLogs().All() {
		res := rl.Resource().Attributes()
		for _, sl := range rl.ScopeLogs().All() {
			for _, r := range sl.LogRecords().All() {
				judge, ok := logEvents[r.EventName()]
				if !ok {
					continue
				}
				if e := c.engine(res); e != nil {
					found = append(found, judge(c, e, both{r.Attributes(), res}, r)...)
				}
			}
		}
	}
	return found
}

// logEvents are the records that are read, by EventName.
var logEvents = map[string]func(*core, *detector.Engine, both, plog.LogRecord) []finding.Finding{
	"pitcrew.kernel.xid":          kernel("xid"),
	"pitcrew.kernel.sxid":         kernel("sxid"),
	"pitcrew.kernel.gpu_lost":     kernel("gpu_lost"),
	"pitcrew.kernel.gpu_init":     kernel("gpu_init"),
	"pitcrew.kernel.gsp":          kernel("gsp"),
	"pitcrew.kernel.aer":          kernel("aer"),
	"pitcrew.kernel.mlx5":         kernel("mlx5"),
	"pitcrew.kernel.lines_lost":   kernel("lines_lost"),
	"pitcrew.kernel.log":          kernelLog,
	"pitcrew.dcgm.violation":      violation,
	"pitcrew.gpu.process":         process(false),
	"pitcrew.gpu.process_ended":   process(true),
	"pitcrew.fabric.port":         port,
	"pitcrew.nvlink.transition":   link,
	"pitcrew.train.rank_exited":   exit(false),
	"pitcrew.train.rank_attached": exit(true),
	"pitcrew.train.collectives":   collective,
}

func kernel(kind string) func(*core, *detector.Engine, both, plog.LogRecord) []finding.Finding {
	return func(c *core, e *detector.Engine, a both, r plog.LogRecord) []finding.Finding {
		k := detector.Kernel{
			Kind: kind, Code: int(a.number("pitcrew.xid.code", 0)), Time: when(r), GPU: a.text("hw.id"), PCI: a.text("hw.pci"), MIG: a.text("pitcrew.mig"), PodUID: a.text("k8s.pod.uid"),
			Raw: r.Body().AsString(), BootID: a.text("pitcrew.boot_id"), Seq: a.number("pitcrew.kmsg.seq", 0), Count: int(a.number("pitcrew.count", 0)),
			Name: a.text("pitcrew.xid.name"), Severity: event.Severity(a.text("pitcrew.severity")), Advice: a.text("pitcrew.advice"),
			Clears: int(a.number("pitcrew.xid.clears", 0)),
		}
		k.Fatal, k.Said = a.flag("pitcrew.fatal")
		k.Echo, k.Burst = a.flag("pitcrew.burst.echo")
		k.History, _ = a.flag("pitcrew.history")
		if k.GPU == "" {
			k.GPU = c.uuids[k.PCI]
		}
		return e.Kernel(k)
	}
}

func kernelLog(_ *core, e *detector.Engine, a both, _ plog.LogRecord) []finding.Finding {
	readable, said := a.flag("pitcrew.kernel.log.readable")
	if !said {
		return nil
	}
	return e.KernelLog(readable)
}

// violation takes in an Xid that DCGM's policy tells. What the others tell is judged by the values that are read live right after them.
func violation(_ *core, e *detector.Engine, a both, r plog.LogRecord) []finding.Finding {
	if a.text("pitcrew.policy") != "xid" {
		return nil
	}
	return e.Sighted(detector.Sighting{
		Code: int(a.number("pitcrew.xid.code", 0)), GPU: a.text("hw.id"), PCI: a.text("hw.pci"), Time: when(r), Signal: "DCGM policy", Raw: r.Body().AsString(),
	})
}

func exit(attached bool) func(*core, *detector.Engine, both, plog.LogRecord) []finding.Finding {
	return func(_ *core, e *detector.Engine, a both, r plog.LogRecord) []finding.Finding {
		x := detector.Exit{
			Target: rankTarget(a), Time: when(r), Attached: attached, Code: int(a.number("pitcrew.exit.code", -1)), Signal: int(a.number("pitcrew.exit.signal", 0)),
			Error: a.text("pitcrew.error"), Step: a.number("pitcrew.step", -1), PID: int(a.number("process.pid", 0)), Start: a.text("process.creation.time"),
		}
		x.Told, _ = a.flag("pitcrew.exit.told")
		x.Clean, _ = a.flag("pitcrew.exit.clean")
		x.History, _ = a.flag("pitcrew.history")
		return e.Exit(x)
	}
}

func collective(_ *core, e *detector.Engine, a both, r plog.LogRecord) []finding.Finding {
	return e.Collective(detector.Collective{
		Target: rankTarget(a), Time: when(r), Group: a.text("pitcrew.process_group.name"), Desc: a.text("pitcrew.process_group.desc"),
		Step: a.number("pitcrew.step", -1), Enqueued: a.number("pitcrew.collective.enqueued", -1), Completed: a.number("pitcrew.collective.completed", -1),
		Op: a.text("pitcrew.collective.op"),
	})
}

func when(r plog.LogRecord) time.Time {
	switch {
	case r.Timestamp() != 0:
		return r.Timestamp().AsTime()
	case r.ObservedTimestamp() != 0:
		return r.ObservedTimestamp().AsTime()
	default:
		return time.Time{}
	}
}
