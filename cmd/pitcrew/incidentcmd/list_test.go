package incidentcmd

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/answer"
	"github.com/pitcrew/pitcrew/remediator/incident"
)

func fill(t *testing.T, b *bus.Bus) {
	t.Helper()
	now, lost := time.Now(), int64(10)
	for _, i := range []incident.Incident{
		{ID: "inc-aa1", State: incident.Correlated, Opened: now.Add(-time.Hour), Faults: []incident.Fault{{Signal: "xid/79", Node: "a1"}}},
		{ID: "inc-aa2", State: incident.Closed, Outcome: incident.Recovered, Reason: "stepping again", Opened: now.Add(-30 * time.Hour), ClosedAt: now.Add(-30*time.Hour + 2500*time.Millisecond),
			Faults: []incident.Fault{{Signal: "xid/48", Node: "a2"}}, Job: &event.Job{Namespace: "train", Name: "llm"},
			Plan: &incident.Plan{Policy: "gpu-hardware", Rule: "gpu-gone"}, Moves: []incident.Move{{To: "b1"}}, LostSteps: &lost},
		{ID: "inc-b1", State: incident.Closed, Outcome: incident.Failed, Opened: now.Add(-9 * 24 * time.Hour), Faults: []incident.Fault{{Signal: "rank/dead", Node: "a3"}}},
	} {
		if _, err := bus.NewBucket[incident.Incident](b, bus.IncidentBucket).Put(t.Context(), i.ID, i, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func TestASignalThatNoIncidentHasIsExplained(t *testing.T) {
	all := []incident.Incident{{Faults: []incident.Fault{{Signal: "xid/79"}}}, {Faults: []incident.Fault{{Signal: "rank/dead"}}}}
	for signal, want := range map[string]string{"": "", "xid/79": "", "xid/*": "", "xid": "KIND/NAME, such as xid/79", "xid/97": "recorded: rank/dead, xid/79"} {
		if got := (&filter{signal: signal, open: true}).hint(all); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: got %q, want %q", signal, got, want)
		}
	}
}

func TestTheListShowsWhatTheFlagsSelect(t *testing.T) {
	b, say := newBus(t)
	fill(t, b)
	for args, want := range map[string]string{
		"":                                     "inc-aa1 inc-aa2 inc-b1",
		"--open":                               "inc-aa1",
		"--needs-person":                       "",
		"--node a2":                            "inc-aa2",
		"--signal xid/*":                       "inc-aa1 inc-aa2",
		"--signal xid/7":                       "",
		"--job llm":                            "inc-aa2",
		"--job train/llm":                      "inc-aa2",
		"--job other/llm":                      "",
		"--rule gpu-gone":                      "inc-aa2",
		"--rule gpu-hardware/gpu-gone":         "inc-aa2",
		"--since 1w":                           "inc-aa1 inc-aa2",
		"--since 2h --signal xid/79":           "inc-aa1",
		"--limit 2":                            "inc-aa1 inc-aa2",
		"--open --node a2":                     "",
		"--since 2w --signal rank/dead --open": "",
	} {
		out, err := say(append([]string{"list", "-o", "json"}, strings.Fields(args)...)...)
		var all []incident.Incident
		if err != nil || json.Unmarshal([]byte(out), &all) != nil || all == nil {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
		var got []string
		for _, i := range all {
			got = append(got, i.ID)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", args, got, want)
		}
	}
	if out, err := say("list", "--open"); err != nil || !strings.Contains(out, "\n1 of 3 incidents; the others do not match the flags\n") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, age := range []string{"x", "-1h", "0d", "1y", ""} {
		if _, err := say("list", "--since", age); err == nil || !strings.Contains(err.Error(), "is not an age; examples: 90m") {
			t.Errorf("--since %q: %v", age, err)
		}
	}
}

func TestAWideListHasTimeRuleNodeStepsAndReason(t *testing.T) {
	b, say := newBus(t)
	fill(t, b)
	out, err := say("list", "--node", "a2", "-o", "wide")
	lines := strings.Split(out, "\n")
	if err != nil || !strings.HasSuffix(strings.TrimSpace(lines[0]), "TOOK   RULE                   MOVED TO  STEPS LOST  REASON") ||
		!strings.Contains(lines[1], "2.5 s  gpu-hardware/gpu-gone  b1        10          stepping again") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestYAMLHasTheFieldsOfJSON(t *testing.T) {
	b, say := newBus(t)
	fill(t, b)
	out, err := say("show", "inc-aa2", "-o", "yaml")
	if err != nil || !strings.Contains(out, "\nlost_steps: 10\n") || !strings.Contains(out, "\nid: inc-aa2\n") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := say("show", "inc-aa2", "-o", "xml"); exit.Code(err) != exit.Usage || !strings.Contains(err.Error(), "one of: text, table, wide, json, yaml") {
		t.Errorf("%d: %v", exit.Code(err), err)
	}
}

func TestAnIncidentIsFoundByTheBeginningOfItsID(t *testing.T) {
	b, say := newBus(t)
	fill(t, b)
	for _, id := range []string{"inc-b1", "inc-b", "b", "b1"} {
		if out, err := say("show", id); err != nil || !strings.Contains(out, "inc-b1") {
			t.Errorf("%s: %v\n%s", id, err, out)
		}
	}
	for id, says := range map[string]string{"inc-a": `2 incidents begin with "inc-a"`, "inc-c": `no incident "inc-c"`, "inc-b12": `no incident "inc-b12"`, "": `no incident ""`} {
		if out, err := say("show", id); exit.Code(err) != exit.NotFound || !strings.Contains(err.Error(), says) || out != "" {
			t.Errorf("%q: %d, %v\n%s", id, exit.Code(err), err, out)
		}
	}
	if _, err := say("approve", "b1"); exit.Code(err) != exit.Refused {
		t.Errorf("%d: %v", exit.Code(err), err)
	}
}

func TestAnAnswerToAQuestionThatHasChangedIsRefused(t *testing.T) {
	b, _ := newBus(t)
	s := bus.NewBucket[incident.Incident](b, bus.IncidentBucket)
	i := one(1, incident.Planned, asking)
	seen := answer.Question(&i)
	i.Plan.Rule = "another"
	if err := s.Set(t.Context(), i.ID, i); err != nil {
		t.Fatal(err)
	}
	_, err := respond(t.Context(), s, i.ID, answer.Answer{Word: incident.Approves, Check: answer.Still(seen)})
	if now, _, _ := s.Get(t.Context(), i.ID); exit.Code(err) != exit.Refused || now.Approval != "" {
		t.Errorf("%v, %q", err, now.Approval)
	}
	if _, err := respond(t.Context(), s, i.ID, answer.Answer{Word: incident.Approves, Check: answer.Still(answer.Question(&i))}); err != nil {
		t.Error(err)
	}
}
