package policycmd

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus/bustest"
	"github.com/pitcrew/pitcrew/event"
)

var monday = time.Date(2026, 11, 16, 8, 0, 0, 0, time.UTC)

func said(n int, at time.Time, node, code string) event.Event {
	return event.Event{ID: fmt.Sprintf("e%d", n), Source: event.Source("c", node, "xid"), Type: event.Fault, Time: at,
		Data: event.Data{Target: event.Target{Node: node, GPU: "GPU-1"}, Cause: event.Cause{Kind: "xid", Code: code}, Severity: event.Fatal}}
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func lines(t *testing.T, events ...event.Event) string {
	t.Helper()
	var b strings.Builder
	for _, e := range events {
		raw, err := event.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(raw)
		b.WriteString("\n")
	}
	return b.String()
}

func TestAWeekIsSimulatedAndHeldAgainstWhatPeopleDid(t *testing.T) {
	week := lines(t, said(1, monday, "a1", "79"), said(2, monday.Add(time.Minute), "a1", "79"), said(3, monday.Add(24*time.Hour), "a2", "79"),
		said(4, monday.Add(48*time.Hour), "a3", "79"), said(5, monday.Add(50*time.Hour), "a4", "31")) + "not an event\n"
	done := file(t, "done.csv", "node, action, time\na1,cordon,2026-11-16T08:10:00Z\na2,reset-gpu,2026-11-17T08:00:30Z\na3,cordon,2026-11-18T20:00:00Z\n")
	out, errs, err := run(t, week, "simulate", "--policy", shipped, "--events", "-", "--compare", done, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var got simulation
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Events != 5 || got.Refused != 1 || !strings.Contains(errs, "-:6: ") || len(got.Incidents) != 3 || !strings.Contains(got.Unknown, "a node for it was free") {
		t.Fatalf("%s\n%s", errs, out)
	}
	if i := got.Incidents[0]; i.Node != "a1" || i.Decision != "observe" || i.Events != 2 || i.Policy != "gpu-hardware" || !strings.Contains(strings.Join(i.Actions, " "), "cordon") {
		t.Errorf("%+v", i)
	}
	c := got.Compared
	if len(c.Agree) != 1 || c.Agree[0].People.Node != "a1" || len(c.Differ) != 1 || c.Differ[0].People.Action != "reset-gpu" || len(c.OnlyPitcrew) != 1 ||
		c.OnlyPitcrew[0].Node != "a3" || len(c.OnlyPeople) != 1 || c.OnlyPeople[0].Node != "a3" {
		t.Errorf("%+v", c)
	}
	text, _, err := run(t, week, "simulate", "--policy", shipped, "--events", "-", "--compare", done)
	for _, want := range []string{"5 events judged, 3 incidents", "1 agree, 1 differ, 1 only Pitcrew, 1 only people", "only people   2026-11-18T20:00:00Z  a3", "Not known, and assumed"} {
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("%v: %q is missing from\n%s", err, want, text)
		}
	}
}

func TestASimulationPricesFindingsAndSumsThemUp(t *testing.T) {
	rank := 3
	slow := event.Event{ID: "slow", Source: event.GatewaySource("c", "gw", "detector"), Type: event.Anomaly, Time: monday.Add(2 * time.Second), Data: event.Data{
		Target: event.Target{Node: "a1", PodUID: "p", GPU: "GPU-1", Rank: &rank, WorldSize: 4, Job: &event.Job{Kind: "Job", Namespace: "ml", Name: "llm", UID: "j"}},
		Cause:  event.Cause{Kind: "rank", Name: "straggler"}, Severity: event.Warning, Onset: monday, Evidence: event.Evidence{DurationS: 2, LostGPUSeconds: 4}}}
	hot := event.Event{ID: "hot", Source: event.Source("c", "a1", "detector"), Type: event.Anomaly, Time: monday.Add(time.Second), Data: event.Data{
		Target: event.Target{Node: "a1", GPU: "GPU-1", PodUID: "p"}, Cause: event.Cause{Kind: "anomaly", Name: "throttle-hw-thermal"}, Severity: event.Info, Onset: monday,
		Evidence: event.Evidence{Signal: "pitcrew.gpu.throttle{hw_thermal}"}}}
	over := slow
	over.ID, over.Type, over.Time = "over", event.Recovery, monday.Add(time.Hour)
	over.Data.Evidence.LostGPUSeconds = 7200
	week := lines(t, slow, hot, over)
	out, _, err := run(t, week, "simulate", "--policy", shipped, "--events", "-")
	for _, want := range []string{"observe", "GPU-HOURS LOST", "2026-11-16T08:00:15Z", "1 move for 1 finding: 2 GPU-hours were lost, the restarts would have cost 0.133, and 1.86 would have been saved"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%v: %q is missing from\n%s", err, want, out)
		}
	}
	out, _, err = run(t, lines(t, slow, over), "simulate", "--policy", shipped, "--events", "-") // nothing confirms it
	for _, want := range []string{"never", "second-signal", "0 moves for 1 finding"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%v: %q is missing from\n%s", err, want, out)
		}
	}
}

func TestASimulationReadsTheBusFromWhereItIsTold(t *testing.T) {
	s := bustest.Server(t)
	b := bustest.Connect(t, s.URL())
	p, err := b.NewPublisher("", nil)
	if err != nil {
		t.Fatal(err)
	}
	const events = 1203 // more than one read
	for n := range events {
		if err := p.Publish(said(n, time.Now(), fmt.Sprintf("a%d", n%3), "79")); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for since, want := range map[string]string{"1d": "1203 events judged, 3 incidents", "1ns": "0 events judged, 0 incidents"} {
		out, _, err := run(t, "", "simulate", "--policy", shipped, "--nats", s.URL(), "--cluster", "c", "--since", since)
		if err != nil || !strings.HasPrefix(out, want) {
			t.Errorf("since %s: %v\n%.300s", since, err, out)
		}
	}
}

func TestASimulationSaysWhatIsWrongWithItsFiles(t *testing.T) {
	week := lines(t, said(1, monday, "a1", "79"))
	for name, args := range map[string][]string{
		`no column "action"`:    {"--compare", file(t, "a.csv", "time,node\n2026-11-16T08:10:00Z,a1\n")},
		`line 3: it wants`:      {"--compare", file(t, "b.csv", "time,node,action\n2026-11-16T08:10:00Z,a1,cordon\n2026-11-16T08:10:00Z,,cordon\n")},
		`line 2: parsing time`:  {"--compare", file(t, "c.csv", "time,node,action\nyesterday,a1,cordon\n")},
		`entry 2`:               {"--compare", file(t, "d.jsonl", `{"time":"2026-11-16T08:10:00Z","node":"a1","action":"cordon"}`+"\n{\n")},
		"it is empty":           {"--compare", file(t, "e.csv", "")},
		"it names no node":      {"--nodes", file(t, "n.json", "{}")},
		`unknown mode "enfroce`: {"--mode", "enfroce"},
	} {
		if _, _, err := run(t, week, append([]string{"simulate", "--policy", shipped, "--events", "-"}, args...)...); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := days("7d"); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"0d", "d", "-3d", "week", "1e99d", "-5m", ""} {
		if _, err := days(bad); err == nil {
			t.Errorf("%q is no time", bad)
		}
	}
}
