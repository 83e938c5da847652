package incident

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/placement"
)

func remapped() Incident {
	one, none := 1.0, 0.0
	began := time.Date(2026, 11, 22, 3, 0, 0, 0, time.FixedZone("CET", 3600))
	return Incident{
		ID: "inc-1", State: Closed, Outcome: Recovered, Reason: "all step", Opened: began, ClosedAt: began.Add(2750 * time.Millisecond), WorldSize: 1, Path: launcherPath,
		Job: &event.Job{Kind: "Job", Namespace: "train", Name: "llm"}, Cordons: []string{"a1"},
		Faults: []Fault{{Signal: "gpu/row-remap", Node: "a1", Sev: event.Critical, At: began, Event: event.Event{Data: event.Data{
			Advice: "reset-gpu", Evidence: event.Evidence{Signal: "pitcrew.gpu.row_remap.pending", Value: &one, Upper: &none}}}}},
		Plan: &Plan{Policy: "gpu-hardware", Rule: "gpu-counters", Mode: "enforce", Decision: json.RawMessage(
			`{"policies":[{"policy":"gpu-hardware","rules":[{"rule":"gpu-gone","detail":"no"},{"rule":"gpu-counters","matched":true,"detail":"severity critical"}]}]}`)},
		Moves: []Move{{From: "a1", To: "a-node-with-a-long-name", Decision: &placement.Decision{Candidates: []placement.Candidate{
			{Node: "a-node-with-a-long-name", Chosen: true, Reason: placement.Chosen}, {Node: "a1", Reason: placement.Faulty}}}}},
		Notes: []Note{{At: began.Add(4 * time.Millisecond), State: Correlated, TookS: 0.004, Text: "2 ranks"}},
	}
}

func written(i Incident) string {
	var b strings.Builder
	i.Write(&b)
	return b.String()
}

func TestTheStorySaysWhenWhatWasSeenWhyTheRuleFiredAndWhatIsLeftToDo(t *testing.T) {
	got := written(remapped())
	for _, want := range []string{
		"opened     2026-11-22 02:00:00 UTC, closed 2.8 s later",
		"train/llm, 1 rank, brought back by its launcher",
		"saw pitcrew.gpu.row_remap.pending = 1, at most 0\n",
		"because: severity critical\n",
		"left       a1 was cordoned and stays cordoned: repair it (reset-gpu), then run `pitcrew node uncordon a1`",
		"✓ a-node-with-a-long-name chosen",
		"✗ a1                      faulty",
		"+0.004 s  correlated    0.004 s  2 ranks",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the story does not say %q:\n%s", want, got)
		}
	}
}

func TestAStoryOfAnotherVersionOrWithoutEvidenceIsToldAllTheSame(t *testing.T) {
	i := remapped()
	i.Plan.Decision, i.Faults[0].Event, i.Job, i.Cordons = json.RawMessage(`{"policies":7}`), event.Event{}, nil, nil
	for _, not := range []string{"because", "saw", "left", "%!"} {
		if got := written(i); strings.Contains(got, not) {
			t.Errorf("%q in\n%s", not, got)
		}
	}
}

func TestEachWaitThatAPersonCanEndSaysHow(t *testing.T) {
	i := Incident{ID: "inc-1", State: Correlated}
	for waiting, want := range map[string][2]string{
		meanings[ReasonApproval].begins + "cordon a1":                   {"a person's yes", "`pitcrew incident approve inc-1`"},
		meanings[ReasonNode].begins + "; nothing is stopped. 3 too-far": {"no equivalent node is free", "repaired or uncordoned"},
		meanings[ReasonBudget].begins + "pdb train/llm":                 {"a PodDisruptionBudget forbids it", "budget"},
		meanings[ReasonRest].begins + "pdb train/llm":                   {"a PodDisruptionBudget forbids the rest", "the job is down"},
		meanings[ReasonFails].begins + "Job train/llm":                  {"the Job would end by the eviction", "backoffLimit"},
		waitTurn + "max-concurrent-incidents (2 of 2)":                  {"its turn: max-concurrent-incidents", ""},
		"the API server": {"the API server", ""},
		waitGuard + "kill-switch: refuses (on), why: so": {"guard kill-switch", "`pitcrew resume`"},
	} {
		i.Waiting = waiting
		if i.WaitsFor() != want[0] || !strings.Contains(i.remedy(), want[1]) || want[1] == "" && i.remedy() != "" {
			t.Errorf("%q: waits for %q, ends by %q", waiting, i.WaitsFor(), i.remedy())
		}
		if got := written(i); !strings.HasPrefix(got, "inc-1  correlated, waits: "+want[0]+"\n") {
			t.Errorf("headline of %q:\n%s", waiting, got)
		}
	}
	for g := range passing {
		i.Waiting, i.Wait = waitGuard+string(g)+": refuses", &Wait{Reason: guardReason(g)}
		if i.remedy() == "" {
			t.Errorf("nothing says what ends a wait for guard %s", g)
		}
	}
}
