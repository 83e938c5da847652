package findings

import (
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

func found() finding.Finding {
	return finding.Finding{
		Key: "xid/79 gpu/GPU-1", BootID: "boot-1", Active: true,
		Event: event.Event{
			ID: "1", Source: event.Source("c", "n1", "xid"), Type: event.Fault, Time: time.Unix(1_800_000_000, 7),
			Data: event.Data{Target: event.Target{Node: "n1"}, Cause: event.Cause{Kind: "xid", Code: "79"}, Severity: event.Fatal},
		},
	}
}

func records(t *testing.T, all ...finding.Finding) plog.LogRecordSlice {
	t.Helper()
	logs, err := Records(all)
	if err != nil {
		t.Fatal(err)
	}
	return logs.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords()
}

func TestARecordIsReadAsItWasWritten(t *testing.T) {
	only := found()
	only.ConditionOnly, only.Active, only.Key = true, false, ""
	for i, f := range []finding.Finding{found(), only} {
		got, err := Read(records(t, f).At(0))
		if err != nil {
			t.Fatal(err)
		}
		want, err := event.ReadMessage(got.Raw)
		if err != nil {
			t.Fatal(err)
		}
		if got.ID != want.ID || got.Source != want.Source || got.Type != want.Type || got.Node != want.Node || !got.Time.Equal(want.Time) {
			t.Errorf("%d: the record says %+v, its event %+v", i, got.Message, want)
		}
		if got.Key != f.Key || got.BootID != f.BootID || got.Active != f.Active || got.ConditionOnly != f.ConditionOnly {
			t.Errorf("%d: %+v", i, got)
		}
	}
}

func TestAFindingThatIsNoEventIsLeftOutAndNamed(t *testing.T) {
	bad := found()
	bad.Event.Data.Severity = ""
	logs, err := Records([]finding.Finding{bad, found()})
	if err == nil || !strings.Contains(err.Error(), bad.Key) || logs.LogRecordCount() != 1 {
		t.Errorf("%v, %d records", err, logs.LogRecordCount())
	}
}

func TestARecordOfSomethingElseIsRefused(t *testing.T) {
	for name, change := range map[string]func(plog.LogRecord){
		"text":           func(r plog.LogRecord) { r.Body().SetStr("NVRM: …") },
		"no id":          func(r plog.LogRecord) { r.Attributes().Remove(semconv.CloudeventsEventID) },
		"no source":      func(r plog.LogRecord) { r.Attributes().Remove(semconv.CloudeventsEventSource) },
		"another name":   func(r plog.LogRecord) { r.SetEventName("pitcrew.kernel.xid") },
		"another major":  func(r plog.LogRecord) { r.SetEventName("dev.pitcrew.fault.v2") },
		"far too large":  func(r plog.LogRecord) { r.Body().SetEmptyBytes().FromRaw(make([]byte, event.MaxBytes+1)) },
		"nothing at all": func(r plog.LogRecord) { plog.NewLogRecord().CopyTo(r) },
	} {
		r := records(t, found()).At(0)
		change(r)
		if got, err := Read(r); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func BenchmarkRecord(b *testing.B) {
	all := []finding.Finding{found()}
	b.ReportAllocs()
	for b.Loop() {
		logs, err := Records(all)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := Read(logs.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0)); err != nil {
			b.Fatal(err)
		}
	}
}
