package torchreceiver

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/semconv"
)

// event turns what the fleet tells into log records. It runs in one goroutine, in order.
func (r *torchReceiver) event(ctx context.Context, e hook.Event) {
	switch e.Kind {
	case hook.Problem:
		r.problem(e.PodUID, e.Err)
	case hook.RankAttached:
		h := e.Hello
		r.emit(ctx, semconv.EventTrainRankAttached, plog.SeverityNumberInfo, time.Now(), fmt.Sprintf("rank %d of %d attached, attempt %d", h.Rank, h.WorldSize, h.Attempt), func(a pcommon.Map) {
			putIdentity(a, e.PodUID, hook.Identity{Rank: h.Rank, LocalRank: h.LocalRank, WorldSize: h.WorldSize, Attempt: h.Attempt, PID: h.PID}, gpuOf(e.Rank))
			a.PutInt(semconv.Step, h.Step)
		})
	case hook.RankSaid:
		if c, ok := e.Message.(hook.Collectives); ok {
			r.collectives(ctx, e, c)
		}
	case hook.RankExited:
		r.exited(ctx, e)
	case hook.OverBudget:
		r.overBudget(ctx, e)
	}
}

func gpuOf(r *hook.Rank) string {
	if ring := r.Ring(); ring != nil {
		if s, err := ring.Snapshot(); err == nil {
			return s.GPUUUID
		}
	}
	return ""
}

func (r *torchReceiver) exited(ctx context.Context, e hook.Event) {
	x := e.Exit
	severity, how := plog.SeverityNumberError, "ended without bye"
	switch {
	case x.Bye:
		severity, how = plog.SeverityNumberInfo, "said bye"
	case x.Told:
		severity, how = plog.SeverityNumberInfo, "ended by its launcher"
	}
	if x.Known && x.Signal > 0 {
		how += fmt.Sprintf(", signal %d", x.Signal)
	} else if x.Known {
		how += fmt.Sprintf(", exit code %d", x.Code)
	}
	if x.Error != "" {
		how += ": " + x.Error
	}
	r.emit(ctx, semconv.EventTrainRankExited, severity, x.At, fmt.Sprintf("rank %d of %d, attempt %d, %s", x.Rank, x.WorldSize, x.Attempt, how), func(a pcommon.Map) {
		putIdentity(a, e.PodUID, x.Identity, x.GPUUUID)
		a.PutBool(semconv.ExitClean, x.Bye)
		if x.Known {
			a.PutInt(semconv.ExitCode, int64(x.Code))
			a.PutInt(semconv.ExitSignal, int64(x.Signal))
			a.PutBool(semconv.ExitTold, x.Told)
		}
		if x.Error != "" {
			a.PutStr(semconv.Error, x.Error)
		}
		if !x.Start.IsZero() {
			a.PutStr(semconv.ProcessCreationTime, x.Start.UTC().Format(time.RFC3339Nano))
		}
		if x.StepKnown {
			a.PutInt(semconv.Step, int64(min(x.Step, 1<<62)))
		}
		if x.History {
			a.PutBool(semconv.History, true)
		}
	})
}

// putIdentity sets the attributes that every signal of a rank carries.
func putIdentity(a pcommon.Map, pod string, id hook.Identity, gpu string) {
	a.PutStr(semconv.K8sPodUID, pod)
	a.PutInt(semconv.Rank, int64(id.Rank))
	a.PutInt(semconv.LocalRank, int64(id.LocalRank))
	a.PutInt(semconv.WorldSize, int64(id.WorldSize))
	a.PutInt(semconv.Attempt, int64(id.Attempt))
	if gpu != "" {
		a.PutStr(semconv.HWID, gpu)
	}
	if id.PID != 0 {
		a.PutInt(semconv.ProcessPID, int64(id.PID))
	}
}

// Bounds of handing a log record on.
const (
	firstRetry = 10 * time.Millisecond
	lastRetry  = time.Second
	giveUp     = 30 * time.Second
)

// emit hands one record on, again and again for a while when the pipeline is busy: the end of a rank is told once.
func (r *torchReceiver) emit(ctx context.Context, name string, severity plog.SeverityNumber, at time.Time, body string, attrs func(pcommon.Map)) {
	if r.logs == nil {
		return
	}
	until := time.Now().Add(giveUp)
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		ld := plog.NewLogs()
		rl := ld.ResourceLogs().AppendEmpty()
		r.resource(rl.Resource())
		sl := rl.ScopeLogs().AppendEmpty()
		sl.Scope().SetName(ScopeName)
		rec := sl.LogRecords().AppendEmpty()
		rec.SetEventName(name)
		rec.SetTimestamp(pcommon.NewTimestampFromTime(at))
		rec.SetObservedTimestamp(pcommon.NewTimestampFromTime(time.Now()))
		rec.SetSeverityNumber(severity)
		rec.SetSeverityText(severity.String())
		rec.Body().SetStr(body)
		attrs(rec.Attributes())

		octx := r.obs.StartLogsOp(ctx)
		err := r.logs.ConsumeLogs(octx, ld)
		r.obs.EndLogsOp(octx, Type.String(), 1, err)
		if err == nil || ctx.Err() != nil {
			return
		}
		if consumererror.IsPermanent(err) || time.Now().After(until) {
			r.log.Error("log event lost", zap.String("event", name), zap.String("body", body), zap.Error(err))
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}
