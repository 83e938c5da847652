package incidentcmd

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/incident"
)

func newBus(t *testing.T) (*bus.Bus, func(args ...string) (string, error)) {
	t.Helper()
	s := bustest.Server(t)
	return bustest.Connect(t, s.URL()), func(args ...string) (string, error) {
		c := Command()
		var out bytes.Buffer
		c.SetOut(&out)
		c.SetErr(&out)
		c.SilenceUsage, c.SilenceErrors = true, true
		c.SetArgs(append(args, "--nats", s.URL(), "--cluster", "c"))
		err := c.ExecuteContext(t.Context())
		return out.String(), err
	}
}

func TestWhereThereIsNoIncidentTheListSaysSoAndIsAListInJSON(t *testing.T) {
	_, say := newBus(t)
	if out, err := say("list"); err != nil || out != "No incident.\n" {
		t.Errorf("%q, %v", out, err)
	}
	if out, err := say("list", "-o", "json"); err != nil || strings.TrimSpace(out) != "[]" {
		t.Errorf("%q, %v", out, err)
	}
	for _, args := range [][]string{{"show", "inc-7"}, {"approve", "inc-7"}, {"reject", "inc-7"}, {"show", "inc-7", "-o", "json"}} {
		if out, err := say(args...); err == nil || !strings.Contains(err.Error(), "`pitcrew incident list`") || out != "" {
			t.Errorf("%v: %q, %v", args, out, err)
		}
	}
}

func TestTheListSaysWhatAnIncidentWaitsForAndThatEverythingIsPaused(t *testing.T) {
	b, say := newBus(t)
	began := time.Date(2026, 11, 22, 4, 0, 0, 0, time.FixedZone("CET", 3600))
	i := incident.Incident{
		ID: "inc-1", Cluster: "c", State: incident.Correlated, Opened: began, Waiting: "guard breaker: refuses (1 of 1), nodes cordoned by Pitcrew",
		Faults: []incident.Fault{{Signal: "xid/48", Node: "a3", Sev: event.Critical, At: began}},
	}
	if _, err := bus.NewBucket[incident.Incident](b, bus.IncidentBucket).Put(t.Context(), i.ID, i, 0); err != nil {
		t.Fatal(err)
	}
	out, err := say("list")
	for _, want := range []string{"OPENED (UTC)", "2026-11-22 03:00:00", "waits: guard breaker\n"} {
		if err != nil || !strings.Contains(out, want) || strings.Contains(out, "paused") {
			t.Errorf("%q is not in %v\n%s", want, err, out)
		}
	}
	k := bus.KillSwitch{On: true, By: "ann", Reason: "RMA 4711", Since: began}
	if _, err := b.Control().Put(t.Context(), bus.KillKey, k, 0); err != nil {
		t.Fatal(err)
	}
	if out, err = say("list"); err != nil || !strings.HasSuffix(out, "\nPitcrew is paused by ann since 2026-11-22 03:00:00 UTC (RMA 4711): it changes nothing until `pitcrew resume`\n") {
		t.Errorf("%v\n%s", err, out)
	}
	var all []incident.Incident
	if out, err = say("list", "-o", "json"); err != nil || json.Unmarshal([]byte(out), &all) != nil || len(all) != 1 {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err = say("show", "inc-1"); err != nil || !strings.Contains(out, "ends by: repairing a node") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err = say("approve", "inc-1"); err == nil || !strings.Contains(err.Error(), "does not wait for an answer: it is correlated, waits: guard breaker") {
		t.Errorf("%v", err)
	}
}
