package incident

import "strings"

// How a wait begins that only a person can end. Other waits are retries.
const (
	waitApproval = "a person's yes: "
	waitGuard    = "guard "
	waitNode     = "no equivalent node is free"
	waitBudget   = "a PodDisruptionBudget forbids it; nothing is stopped: "
	waitRest     = "a PodDisruptionBudget forbids the rest; what was begun goes on when it allows it: "
	waitFails    = "the Job would end by the eviction; nothing is stopped: "
	waitFailRest = "the Job would end by the eviction of the rest; what was begun goes on when it would not: "
)

// NeedsPerson reports whether nothing goes on, or nothing did, without a person: an approval, a guard that holds an incident back, no
// node to go to, a budget that forbids the eviction or a Job that would end by it, a refusal, tries that are used up, a policy that only observes.
func (i *Incident) NeedsPerson() bool {
	if i.State == Closed {
		return i.Outcome == Failed || i.Outcome == Refused || i.Outcome == Observed
	}
	for _, begins := range []string{waitApproval, waitGuard, waitNode, waitBudget, waitRest, waitFails, waitFailRest} {
		if strings.HasPrefix(i.Waiting, begins) {
			return true
		}
	}
	return false
}
