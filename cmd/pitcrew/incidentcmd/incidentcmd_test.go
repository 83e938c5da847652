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

func TestAParentIsListedWithItsCountShownWithItsChildrenAndHeldForAll(t *testing.T) {
	b, say := newBus(t)
	store := bus.NewBucket[incident.Incident](b, bus.IncidentBucket)
	put := func(i incident.Incident) {
		t.Helper()
		if _, err := store.Put(t.Context(), i.ID, i, 0); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Date(2026, 11, 22, 4, 0, 0, 0, time.UTC)
	group := &incident.Group{Domain: incident.Domain{Kind: incident.RackDomain, Name: "pitcrew.dev/rack=r7"}, First: "inc-a"}
	for k, id := range []string{"inc-a", "inc-b"} {
		f := incident.Fault{Signal: "xid/79", Node: "node-" + id, Sev: event.Critical, At: began}
		put(incident.Incident{ID: id, State: incident.Closed, Outcome: incident.Quarantined, Opened: began.Add(time.Duration(k) * time.Second), Parent: "inc-p", Faults: []incident.Fault{f}})
		group.Children = append(group.Children, incident.Child{ID: id, Node: f.Node})
	}
	put(incident.Incident{ID: "inc-p", State: incident.Grouped, Opened: began.Add(2 * time.Second), Group: group, Faults: []incident.Fault{{Signal: "xid/79", Node: "node-inc-a"}}})
	put(incident.Incident{ID: "inc-z", State: incident.Closed, Opened: began.Add(-time.Second), Faults: []incident.Fault{{Signal: "xid/79", Node: "n9"}}})

	out, err := say("list")
	lines := strings.Split(out, "\n")
	if err != nil || len(lines) < 5 || !strings.Contains(lines[1], "2 nodes of rack pitcrew.dev/rack=r7") || !strings.Contains(lines[1], "2 incidents") ||
		!strings.HasPrefix(lines[2], "  inc-b") || !strings.HasPrefix(lines[3], "  inc-a") || !strings.HasPrefix(lines[4], "inc-z") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err = say("show", "inc-p"); err != nil || !strings.Contains(out, "one cause  rack pitcrew.dev/rack=r7: 2 incidents on 2 nodes") ||
		!strings.Contains(out, "inc-a  node-inc-a  -    closed  quarantined") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err = say("show", "inc-a"); err != nil || !strings.Contains(out, "parent     inc-p") {
		t.Errorf("%v\n%s", err, out)
	}
	var p incident.Incident
	if out, err = say("show", "inc-p", "-o", "json"); err != nil || json.Unmarshal([]byte(out), &p) != nil || len(p.Group.Children) != 2 {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err = say("hold", "inc-a"); err == nil || !strings.Contains(err.Error(), "not the parent of others") {
		t.Errorf("%v", err)
	}
	if _, err = say("approve", "inc-p"); err == nil || !strings.Contains(err.Error(), "does not wait for an answer") {
		t.Errorf("%v", err)
	}
	if out, err = say("hold", "inc-p", "--reason", "RMA 4711"); err != nil || !strings.HasPrefix(out, "inc-p: held by ") || !strings.Contains(out, "RMA 4711") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err = say("reject", "inc-p"); err == nil || !strings.Contains(err.Error(), "has not taken the last answer in yet") {
		t.Errorf("%v", err)
	}
}
