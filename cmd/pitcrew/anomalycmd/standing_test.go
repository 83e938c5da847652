package anomalycmd

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/detector/statement"
	"github.com/pitcrew/pitcrew/event"
)

const behind = "rank/straggler job/job-1/rank/5/attempt/0"

// found lets a gateway list a finding; told is what it heard of it.
func (d *desk) found(gateway, key, node string, told ...string) {
	d.t.Helper()
	signal, _, _ := strings.Cut(key, " ")
	kind, name, _ := strings.Cut(signal, "/")
	rank, now := 5, time.Now().Add(d.ahead)
	e := event.Event{
		ID: gateway + key, Source: event.GatewaySource("c", gateway, "detector"), Type: event.Anomaly, Time: now, Data: event.Data{
			Target: event.Target{Node: node, PodUID: "pod-1", Rank: &rank, Job: &event.Job{UID: "job-1"}}, Cause: event.Cause{Kind: kind, Name: name},
			Severity: event.Warning, Onset: now.Add(-time.Minute),
			Evidence: event.Evidence{State: event.StateOpen, Raw: "rank 5 fell behind", LostGPUSeconds: 240, Told: told},
		},
	}
	if err := d.bus.SetCondition(d.t.Context(), bus.Condition{Node: node, Gateway: gateway, Key: key, Active: true, Event: &e}); err != nil {
		d.t.Fatal(err)
	}
}

func TestAGatewaysFindingsAreListedWithTheAgents(t *testing.T) {
	d := newDesk(t)
	d.stands("n1", "anomaly/temperature gpu/GPU-1", event.Info, true)
	d.found("gw-0", behind, "n1")
	d.found("gw-0", "torch/desync job/job-1/rank/5/attempt/0", "n2")
	out := d.must("list")
	for _, want := range []string{"SOURCE", "gateway gw-0", "agent", behind, "240", "rank 5 fell behind", "open"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if out := d.must("list", "--node", "n2"); strings.Contains(out, behind) || !strings.Contains(out, "desync") {
		t.Errorf("of n2:\n%s", out)
	}
	mute := bus.Statement{Verb: bus.StateMute, Key: "rank/*", By: "ada", Reason: "known", At: time.Now(), Until: time.Now().Add(time.Hour)}
	if _, err := d.bus.Statements().Put(t.Context(), mute.ID(), mute, 0); err != nil {
		t.Fatal(err)
	}
	if out := d.must("list"); !strings.Contains(out, "muted by ada until") || !strings.Contains(out, "(gw-0 has not heard it yet)") {
		t.Errorf("muted:\n%s", out)
	}
	heard := statement.Statement{Verb: statement.Mute, By: "ada", Reason: "known", Until: mute.Until}
	d.found("gw-0", behind, "n1", heard.Words())
	if out := d.must("list"); strings.Contains(out, "has not heard it") || !strings.Contains(out, "open, muted by ada until ") {
		t.Errorf("heard:\n%s", out)
	}
	var got struct{ Findings []finding }
	if err := json.Unmarshal([]byte(d.must("list", "-o", "json", "--node", "n1")), &got); err != nil {
		t.Fatal(err)
	}
	f := got.Findings[0]
	if len(got.Findings) != 2 || f.Source != gateway || f.Gateway != "gw-0" || f.Job != "job-1" || *f.Rank != 5 || f.Signal != "rank/straggler" || f.Lost != 240 || !f.Muted ||
		len(f.Said) != 1 || f.Said[0].By != "ada" || f.Said[0].Until.IsZero() || f.Onset.IsZero() || f.Heard.IsZero() {
		t.Errorf("json %+v", got.Findings)
	}
}

func TestAGatewayThatDoesNotAnswerIsNamedWithWhatToDoAndTheWordIsKept(t *testing.T) {
	d := newDesk(t)
	d.ahead = time.Minute // the gateway's clock
	d.found("gw-0", behind, "n1")
	out, err := d.say("ack", behind, "--wait", "300ms")
	if err == nil || !strings.Contains(err.Error(), "nobody answered within 300ms: gateway gw-0 (which told of it last ") || !strings.Contains(err.Error(), "look whether the gateway runs") {
		t.Errorf("%q, %v", out, err)
	}
	all, err := d.bus.Statements().List(t.Context())
	if err != nil || len(all) != 1 || !all[0].Value.At.After(time.Now().Add(50*time.Second)) {
		t.Errorf("kept %+v, %v", all, err)
	}
	var p plan
	out, err = d.say("mute", "rank/*", "--for", "1h", "--wait", "300ms", "-o", "json")
	if i := strings.LastIndex(out, "}"); err == nil || json.Unmarshal([]byte(out[:i+1]), &p) != nil || len(p.Unanswered) != 1 || !p.Done {
		t.Errorf("%q, %v", out, err)
	}
	d.must("mute", "class/*", "--for", "1h") // nothing stands, and nobody is waited for
}

func TestWhatHasNoLevelIsNotAccepted(t *testing.T) {
	d := newDesk(t)
	d.found("gw-0", "torch/desync job/job-1/rank/5/attempt/0", "n1")
	if _, err := d.say("accept", "torch/desync"); err == nil || !strings.Contains(err.Error(), "no level") {
		t.Error(err)
	}
	if all, err := d.bus.Statements().List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	d.stands("n1", "anomaly/temperature gpu/GPU-1", event.Info, true)
	if out := d.must("accept", "*"); !strings.Contains(out, "(warning, open) stays: it has no level") {
		t.Errorf("plan:\n%s", out)
	}
}

func TestAForgedFindingIsTellingOnlyOfItself(t *testing.T) {
	d := newDesk(t)
	e := event.Event{ID: "x", Source: event.GatewaySource("c", "gw-0", "detector"), Type: event.Anomaly, Time: time.Now(), Data: event.Data{
		Target: event.Target{Node: "n1"}, Cause: event.Cause{Kind: "gpu", Name: "lost"}, Severity: event.Warning,
	}}
	if err := d.bus.SetCondition(t.Context(), bus.Condition{Node: "n1", Gateway: "gw-0", Key: "gpu/lost gpu/G", Active: true, Event: &e}); err != nil {
		t.Fatal(err)
	}
	if out := d.must("list"); !strings.Contains(out, "refused: ") || !strings.Contains(out, "only the node itself may") || !strings.Contains(out, "No finding stands") {
		t.Errorf("list:\n%s", out)
	}
}
