package remediator

import (
	"testing"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// What policy.Facts declares as read from the job and its pods is filled by jobFacts: an expression over an empty fact never matches, and
// nobody notices.
func TestEveryFactOfAJobThatIsDeclaredIsFilled(t *testing.T) {
	some := map[string]string{"team": "research"}
	g := &cluster.Gang{
		Job: event.Job{APIVersion: "batch/v1", Kind: "Job", Namespace: "ml", Name: "llm", UID: "u"}, Launcher: true, OptIn: true,
		Labels: some, Annotations: some, NamespaceLabels: some, PriorityClass: "high",
	}
	j := jobFacts(g, &incident.Incident{WorldSize: 16, Attempt: 1, Restarts: 1}, incident.Cost{})
	if empty := policy.Empty(policy.Node{}, j, policy.Incident{}, policy.FromJob, policy.FromPods); len(empty) > 0 {
		t.Errorf("declared in the table of facts and not filled: %v", empty)
	}
	if j.Labels["team"] != "research" || j.NamespaceLabels["team"] != "research" || j.Annotations["team"] != "research" {
		t.Errorf("%+v", j)
	}
}
