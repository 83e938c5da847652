package dcgmreceiver

import (
	"context"
	"fmt"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/semconv"
)

// EventViolation is the EventName of a policy violation's log record.
const EventViolation = semconv.EventDCGMViolation

// listen passes violations on at once, whatever the loop waits for, and makes it read the fast fields.
func (r *dcgmReceiver) listen(ctx context.Context, src Source) {
	for {
		select {
		case <-ctx.Done():
			return
		case v := <-src.Violations():
			select {
			case r.run.kick <- struct{}{}:
			default: // one is waiting already
			}
			if r.logs == nil {
				continue
			}
			if err := r.logs.ConsumeLogs(ctx, r.record(v)); err != nil {
				r.log.Warn("dcgm: the pipeline refused a violation", zap.String("policy", v.Policy), zap.Error(err))
			}
		}
	}
}

// record makes the log record of a violation.
func (r *dcgmReceiver) record(v Violation) plog.Logs {
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	r.resource(rl.Resource())
	sl := rl.ScopeLogs().AppendEmpty()
	sl.Scope().SetName(ScopeName)
	lr := sl.LogRecords().AppendEmpty()
	lr.SetEventName(EventViolation)
	lr.SetTimestamp(pcommon.NewTimestampFromTime(v.Time))
	lr.SetObservedTimestamp(pcommon.NewTimestampFromTime(r.now()))
	lr.SetSeverityNumber(plog.SeverityNumberError)
	d := r.device(v.GPU)
	a := lr.Attributes()
	a.PutStr(semconv.HWID, d.id())
	if pci := d.pci(); pci != "" {
		a.PutStr(semconv.HWPCI, pci)
	}
	a.PutInt(semconv.GPUIndex, int64(v.GPU))
	a.PutStr(semconv.Policy, v.Policy)
	if v.Policy == "xid" {
		a.PutInt(semconv.XIDCode, v.Code)
	} else {
		a.PutInt(semconv.Count, v.Code)
	}
	lr.Body().SetStr(fmt.Sprintf("DCGM policy %s violated by GPU %d (%s): %d", v.Policy, v.GPU, d.id(), v.Code))
	return ld
}
