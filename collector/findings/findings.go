// Package findings is the form in which findings pass through a pipeline: a log record whose body is the event's bytes and whose
// attributes say what it does to a condition. Connectors write it, the NATS exporter reads it.
package findings

import (
	"errors"
	"fmt"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

// Records makes a record of each finding. A finding that is no valid event is left out, and named in the error.
func Records(found []finding.Finding) (plog.Logs, error) {
	logs := plog.NewLogs()
	recs := logs.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords()
	var errs []error
	for _, f := range found {
		raw, err := event.Encode(f.Event)
		if err != nil {
			errs = append(errs, fmt.Errorf("finding %s: %w", f.Key, err))
			continue
		}
		r := recs.AppendEmpty()
		r.SetEventName(string(f.Event.Type))
		r.SetTimestamp(pcommon.NewTimestampFromTime(f.Event.Time))
		r.Body().SetEmptyBytes().FromRaw(raw)
		a := r.Attributes()
		if f.Key != "" { // what a rule found has none
			a.PutStr(semconv.ConditionKey, f.Key)
		}
		a.PutBool(semconv.ConditionActive, f.Active)
		a.PutStr(semconv.HostBootID, f.BootID)
		if f.ConditionOnly {
			a.PutBool(semconv.ConditionOnly, true)
		}
	}
	return logs, errors.Join(errs...)
}
