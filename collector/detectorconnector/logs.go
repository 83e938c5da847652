package detectorconnector

import (
	"context"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/pitcrew/pitcrew/detector"
	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/detector/verdict"
	"github.com/pitcrew/pitcrew/semconv"
)

type logsSkin struct{ skin }

// ConsumeLogs judges log events of receivers. Records of other names pass by unseen.
func (s *logsSkin) ConsumeLogs(ctx context.Context, ld plog.Logs) error {
	s.emit(ctx, s.next, func() []finding.Finding { return s.judgeLogs(ld) })
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
		count := a.number(semconv.Count, 1)
		if count < 1 { // it only adds details to a record before it
			return nil
		}
		k := detector.Kernel{
			Line: lineOf(kind, a), Time: when(r), GPU: a.text(semconv.HWID), PodUID: a.text(semconv.K8sPodUID), Raw: r.Body().AsString(),
			BootID: a.text(semconv.BootID), Seq: a.number(semconv.KmsgSeq, 0), Count: int(count),
		}
		k.History, _ = a.flag(semconv.History)
		k.Published, _ = a.flag(semconv.HistoryPublished)
		if k.GPU == "" {
			k.GPU = c.uuids[k.PCI]
		}
		return e.Kernel(k)
	}
}

// lineOf reads what a record says of its line.
func lineOf(kind string, a both) verdict.Line {
	l := verdict.Line{
		Kind: kind, Case: a.text(semconv.XIDName), Code: int(a.number(semconv.XIDCode, 0)), PCI: a.text(semconv.HWPCI), MIG: a.text(semconv.MIG),
		Action: a.text(semconv.XIDAction), CausedBy: int(a.number(semconv.XIDCausedBy, 0)), Unit: a.text(semconv.NVLinkUnit),
		Driver: major(a.text(semconv.HWDriverVersion)), Fabric: a.text(semconv.LogFilePath) != "",
	}
	if fatal, said := a.flag(semconv.Fatal); said {
		l.Word = verdict.NonFatal
		if fatal {
			l.Word = verdict.Fatal
		}
	}
	if v := int(a.number(semconv.XIDActionValue, -1)); v >= 0 {
		l.ActionValue = &v
	}
	if v, ok := a.get(semconv.NVLinkRegisters); ok && v.Type() == pcommon.ValueTypeSlice {
		for _, register := range v.Slice().All() {
			l.Registers = append(l.Registers, uint32(register.Int()))
		}
	}
	return l
}

// major is the first number of a version, 0 for none.
func major(version string) int {
	first, _, _ := strings.Cut(version, ".")
	n, _ := strconv.Atoi(first)
	return n
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
