// Package findings is the form in which findings pass through a pipeline: a log record. Its body is the encoded event, and its attributes have
// what routes the event and what it does to a condition. Connectors write it, and the NATS exporter reads it. An event is encoded here and
// nowhere else; nobody in the process decodes it.
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
		m, err := event.NewMessage(f.Event)
		if err != nil {
			errs = append(errs, fmt.Errorf("finding %s: %w", f.Key, err))
			continue
		}
		write(recs.AppendEmpty(), m, &f)
	}
	return logs, errors.Join(errs...)
}

func write(r plog.LogRecord, m event.Message, f *finding.Finding) {
	r.SetEventName(string(m.Type))
	r.SetTimestamp(pcommon.NewTimestampFromTime(m.Time))
	r.Body().SetEmptyBytes().FromRaw(m.Raw)
	a := r.Attributes()
	a.EnsureCapacity(7)
	a.PutStr(semconv.CloudeventsEventID, m.ID)
	a.PutStr(semconv.CloudeventsEventSource, m.Source)
	if m.Node != "" {
		a.PutStr(semconv.K8sNodeName, m.Node)
	}
	if f.Key != "" { // what a rule found has none
		a.PutStr(semconv.ConditionKey, f.Key)
	}
	a.PutBool(semconv.ConditionActive, f.Active)
	a.PutStr(semconv.HostBootID, f.BootID)
	if f.ConditionOnly {
		a.PutBool(semconv.ConditionOnly, true)
	}
}

// Record is a finding as a pipeline carries it.
type Record struct {
	event.Message
	Key           string // of the condition; empty: the finding has none
	BootID        string
	Active        bool
	ConditionOnly bool // set the condition, publish no event
}

// Read reads a record. Its bytes are the message's own, and may be kept.
func Read(r plog.LogRecord) (Record, error) {
	if r.Body().Type() != pcommon.ValueTypeBytes {
		return Record{}, errors.New("its body is not an event's bytes")
	}
	a := r.Attributes()
	rec := Record{
		Message: event.Message{
			ID: text(a, semconv.CloudeventsEventID), Source: text(a, semconv.CloudeventsEventSource), Type: event.Type(r.EventName()),
			Time: r.Timestamp().AsTime(), Node: text(a, semconv.K8sNodeName), Raw: r.Body().Bytes().AsRaw(),
		},
		Key: text(a, semconv.ConditionKey), BootID: text(a, semconv.HostBootID), Active: flag(a, semconv.ConditionActive),
		ConditionOnly: flag(a, semconv.ConditionOnly),
	}
	switch {
	case rec.ID == "" || rec.Source == "":
		return Record{}, errors.New("it names no event")
	case !rec.Type.Known():
		return Record{}, fmt.Errorf("its name %q is not a type of event", r.EventName())
	case len(rec.Raw) > event.MaxBytes:
		return Record{}, fmt.Errorf("it has %d bytes, over the bound of %d", len(rec.Raw), event.MaxBytes)
	}
	return rec, nil
}

func text(a pcommon.Map, name string) string {
	if v, ok := a.Get(name); ok {
		return v.AsString()
	}
	return ""
}

func flag(a pcommon.Map, name string) bool {
	v, ok := a.Get(name)
	return ok && v.Type() == pcommon.ValueTypeBool && v.Bool()
}
