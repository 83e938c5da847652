package event

import (
	"errors"
	"testing"
	"time"
)

func TestAMessageIsItsEvent(t *testing.T) {
	e := Event{
		ID: "1", Source: Source("c", "n1", "xid"), Type: Fault, Time: time.Unix(1_800_000_000, 7).UTC(),
		Data: Data{Target: Target{Node: "n1"}, Cause: Cause{Kind: "xid", Code: "79"}, Severity: Fatal},
	}
	m, err := NewMessage(e)
	if err != nil || m.ID != e.ID || m.Source != e.Source || m.Type != e.Type || !m.Time.Equal(e.Time) || m.Node != "n1" {
		t.Fatalf("%v %+v", err, m)
	}
	back, err := ReadMessage(m.Raw)
	if err != nil || back.ID != m.ID || back.Source != m.Source || back.Type != m.Type || !back.Time.Equal(m.Time) || back.Node != m.Node || string(back.Raw) != string(m.Raw) {
		t.Errorf("%v: %+v, want %+v", err, back, m)
	}
	e.Source = ""
	if _, err := NewMessage(e); err == nil {
		t.Error("an event without a source became a message")
	}
	if _, err := ReadMessage([]byte(`{"specversion":"1.0","id":"1","source":"s","type":"dev.pitcrew.fault.v2","data":{}}`)); !errors.Is(err, ErrMajor) {
		t.Errorf("another major version: %v", err)
	}
}
