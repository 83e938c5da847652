package detectorconnector

import (
	"context"
	"time"

	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/pitcrew/pitcrew/detector"
	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
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
	semconv.EventKernelXID:         kernel("xid"),
	semconv.EventKernelSXID:        kernel("sxid"),
	semconv.EventKernelGPULost:     kernel("gpu_lost"),
	semconv.EventKernelGPUInit:     kernel("gpu_init"),
	semconv.EventKernelGSP:         kernel("gsp"),
	semconv.EventKernelAER:         kernel("aer"),
	semconv.EventKernelMlx5:        kernel("mlx5"),
	semconv.EventKernelLinesLost:   kernel("lines_lost"),
	semconv.EventKernelLog:         kernelLog,
	semconv.EventDCGMViolation:     violation,
	semconv.EventGPUProcess:        process(false),
	semconv.EventGPUProcessEnded:   process(true),
	semconv.EventFabricPort:        port,
	semconv.EventNVLinkTransition:  link,
	semconv.EventTrainRankExited:   exit(false),
	semconv.EventTrainRankAttached: exit(true),
	semconv.EventTrainCollectives:  collective,
}

func kernel(kind string) func(*core, *detector.Engine, both, plog.LogRecord) []finding.Finding {
	return func(c *core, e *detector.Engine, a both, r plog.LogRecord) []finding.Finding {
		k := detector.Kernel{
			Kind: kind, Code: int(a.number(semconv.XIDCode, 0)), Time: when(r), GPU: a.text(semconv.HWID), PCI: a.text(semconv.HWPCI), MIG: a.text(semconv.MIG), PodUID: a.text(semconv.K8sPodUID),
			Raw: r.Body().AsString(), BootID: a.text(semconv.BootID), Seq: a.number(semconv.KmsgSeq, 0), Count: int(a.number(semconv.Count, 0)),
			Name: a.text(semconv.XIDName), Severity: event.Severity(a.text(semconv.Severity)), Advice: a.text(semconv.Advice),
			Clears: int(a.number(semconv.XIDClears, 0)),
		}
		k.Fatal, k.Said = a.flag(semconv.Fatal)
		k.Echo, k.Burst = a.flag(semconv.BurstEcho)
		k.History, _ = a.flag(semconv.History)
		if k.GPU == "" {
			k.GPU = c.uuids[k.PCI]
		}
		return e.Kernel(k)
	}
}

func kernelLog(_ *core, e *detector.Engine, a both, _ plog.LogRecord) []finding.Finding {
	readable, said := a.flag(semconv.KernelLogReadable)
	if !said {
		return nil
	}
	return e.KernelLog(readable)
}

// violation takes in an Xid that DCGM's policy tells. What the others tell is judged by the values that are read live right after them.
func violation(_ *core, e *detector.Engine, a both, r plog.LogRecord) []finding.Finding {
	if a.text(semconv.Policy) != "xid" {
		return nil
	}
	return e.Sighted(detector.Sighting{
		Code: int(a.number(semconv.XIDCode, 0)), GPU: a.text(semconv.HWID), PCI: a.text(semconv.HWPCI), Time: when(r), Signal: "DCGM policy", Raw: r.Body().AsString(),
	})
}

func exit(attached bool) func(*core, *detector.Engine, both, plog.LogRecord) []finding.Finding {
	return func(_ *core, e *detector.Engine, a both, r plog.LogRecord) []finding.Finding {
		x := detector.Exit{
			Target: rankTarget(a), Time: when(r), Attached: attached, Code: int(a.number(semconv.ExitCode, -1)), Signal: int(a.number(semconv.ExitSignal, 0)),
			Error: a.text(semconv.Error), Step: a.number(semconv.Step, -1), PID: int(a.number(semconv.ProcessPID, 0)), Start: a.text(semconv.ProcessCreationTime),
		}
		x.Told, _ = a.flag(semconv.ExitTold)
		x.Clean, _ = a.flag(semconv.ExitClean)
		x.History, _ = a.flag(semconv.History)
		return e.Exit(x)
	}
}

func collective(_ *core, e *detector.Engine, a both, r plog.LogRecord) []finding.Finding {
	return e.Collective(detector.Collective{
		Target: rankTarget(a), Time: when(r), Group: a.text(semconv.ProcessGroupName), Desc: a.text(semconv.ProcessGroupDesc),
		Step: a.number(semconv.Step, -1), Enqueued: a.number(semconv.CollectiveEnqueued, -1), Completed: a.number(semconv.CollectiveCompleted, -1),
		Op: a.text(semconv.CollectiveOp),
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
