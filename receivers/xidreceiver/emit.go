package xidreceiver

import (
	"context"
	"strconv"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/receivers/process"
	"github.com/pitcrew/pitcrew/receivers/xidreceiver/kernel"
	"github.com/pitcrew/pitcrew/semconv"
)

// emit hands a report to the pipeline, and keeps the position.
func (r *logReceiver) emit(ctx context.Context, rep *kernel.Report) {
	logs, rec := r.newRecord(eventPrefix+string(rep.Event.Kind), rep.Stamp.At)
	rec.Body().SetStr(rep.Line)
	r.attributes(rec.Attributes(), rep)
	rec.Attributes().PutInt(semconv.KmsgSeq, int64(rep.Stamp.Seq))
	r.consume(ctx, logs)
	r.save(ctx)
}

// attributes are what the line says. The detector judges it.
func (r *logReceiver) attributes(a pcommon.Map, rep *kernel.Report) {
	e := &rep.Event
	a.EnsureCapacity(20)
	str := func(name, value string) {
		if value != "" {
			a.PutStr(name, value)
		}
	}
	num := func(name string, value int, has bool) {
		if has {
			a.PutInt(name, int64(value))
		}
	}
	num(semconv.XIDCode, e.Code, e.Kind == kernel.Xid || e.Kind == kernel.SXid)
	str(semconv.XIDName, e.Case)
	str(semconv.HWPCI, e.PCI.String())
	str(semconv.HWID, r.parser.UUID(e.PCI))
	str(semconv.MIG, e.MIG())
	str(semconv.HWDriverVersion, r.parser.Driver())
	num(semconv.ProcessPID, e.PID, e.PID > 0)
	str(semconv.ProcessExecutableName, string(e.Process))
	if c, ok := r.container(rep); ok {
		a.PutStr(semconv.K8sPodUID, c.PodUID)
		str(semconv.ContainerID, c.ID)
	}
	if e.Word != kernel.Unsaid {
		a.PutBool(semconv.Fatal, e.Word == kernel.Fatal)
	}
	str(semconv.XIDAction, string(e.Action))
	num(semconv.XIDActionValue, e.ActionValue, e.ActionValue >= 0)
	num(semconv.XIDCausedBy, e.CausedBy, e.CausedBy != 0)
	str(semconv.NVLinkUnit, string(e.Unit))
	if e.Regs > 0 {
		registers := a.PutEmptySlice(semconv.NVLinkRegisters)
		for _, v := range e.Reg[:e.Regs] {
			registers.AppendEmpty().SetInt(int64(v))
		}
	}
	num(semconv.NVLinkLink, e.Link, e.Link >= 0)
	str(semconv.KernelDetail, rep.Detail)
	a.PutInt(semconv.Count, int64(rep.Count))
	str(semconv.BootID, r.bootOf(rep))
	a.PutBool(semconv.History, rep.Stamp.History)
	if rep.Stamp.Published {
		a.PutBool(semconv.HistoryPublished, true)
	}
}

// earlierBoot stands for the unknown id of a boot that is over, so that nothing of it is taken for this boot's.
const earlierBoot = "earlier"

func (r *logReceiver) bootOf(rep *kernel.Report) string {
	if rep.Stamp.EarlierBoot {
		return earlierBoot
	}
	return r.follow.boot
}

// container is where the process of a line runs. It is asked for at once, since the process may be dying of the fault: an old line's process
// is another's number by now, and so is one that goes by another name.
func (r *logReceiver) container(rep *kernel.Report) (process.Container, bool) {
	e := &rep.Event
	if r.proc == nil || e.PID <= 0 || rep.Stamp.History {
		return process.Container{}, false
	}
	if comm, ok := r.proc.Comm(e.PID); !ok || len(e.Process) > 0 && comm != string(e.Process[:min(len(e.Process), kernel.MaxComm)]) {
		return process.Container{}, false
	}
	return r.proc.ContainerOf(e.PID)
}

func (r *logReceiver) emitLost(ctx context.Context, l *lostLines) {
	logs, rec := r.newRecord(eventLinesLost, l.at)
	rec.SetSeverityNumber(plog.SeverityNumberWarn)
	rec.SetSeverityText("warning")
	rec.Body().SetStr(strconv.FormatUint(l.count, 10) + " kernel log records were lost before they were read")
	a := rec.Attributes()
	a.PutInt(semconv.Count, int64(l.count))
	a.PutStr(semconv.LostReason, l.reason)
	a.PutStr(semconv.BootID, r.follow.boot)
	a.PutInt(semconv.KmsgSeq, int64(r.follow.last.Seq))
	r.consume(ctx, logs)
}

// sayReadable emits that the log cannot be read, or can again: others may then know better what happens to the GPUs, or no longer.
func (r *logReceiver) sayReadable(ctx context.Context, can bool) {
	if r.unread == !can {
		return
	}
	r.unread = !can
	logs, rec := r.newRecord(eventLog, r.clock.sinceBoot())
	rec.SetSeverityNumber(plog.SeverityNumberInfo)
	rec.Body().SetStr("the kernel log can be read again")
	if !can {
		rec.SetSeverityNumber(plog.SeverityNumberWarn)
		rec.Body().SetStr("the kernel log cannot be read")
	}
	rec.Attributes().PutBool(semconv.KernelLogReadable, can)
	r.consume(ctx, logs)
}

func (r *logReceiver) newRecord(event string, at time.Duration) (plog.Logs, plog.LogRecord) {
	logs := plog.NewLogs()
	rl := logs.ResourceLogs().AppendEmpty()
	res := rl.Resource().Attributes()
	for _, kv := range [][2]string{{semconv.K8sClusterName, r.cfg.Cluster}, {semconv.K8sNodeName, r.cfg.Node}, {semconv.HostBootID, r.follow.boot}} {
		if kv[1] != "" {
			res.PutStr(kv[0], kv[1])
		}
	}
	sl := rl.ScopeLogs().AppendEmpty()
	sl.Scope().SetName(scope)
	rec := sl.LogRecords().AppendEmpty()
	rec.SetEventName(event)
	rec.SetTimestamp(pcommon.NewTimestampFromTime(r.clock.wall(at)))
	rec.SetObservedTimestamp(pcommon.NewTimestampFromTime(r.clock.now()))
	return logs, rec
}

// consume hands records on, once. The detector takes every record; only a consumer that somebody put beside it can refuse one. Waiting for that
// one would hold up all later faults, so what it refuses is counted.
func (r *logReceiver) consume(ctx context.Context, logs plog.Logs) {
	if err := r.next.ConsumeLogs(context.WithoutCancel(ctx), logs); err != nil {
		r.tel.wasRefused.Add(ctx, 1)
		r.set.Logger.Error("a consumer refused an event of the kernel log; it is not sent again", zap.Error(err))
	}
}

// save keeps the position up to which everything was handed on.
func (r *logReceiver) save(ctx context.Context) {
	f := &r.follow
	if f.last.BootID == f.saved.BootID && f.last.Seq == f.saved.Seq && f.last.Usec == f.saved.Usec {
		return
	}
	if err := savePosition(context.WithoutCancel(ctx), r.store, f.last, r.parser.UUIDs()); err != nil {
		r.set.Logger.Warn("the position in the kernel log could not be stored; a restart may repeat events", zap.Error(err))
		return
	}
	f.saved = f.last
}
