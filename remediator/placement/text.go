package placement

import (
	"fmt"
	"strings"
)

// String is one line for a person: how far the node is, and why it was or was not taken.
func (c Candidate) String() string {
	out := fmt.Sprintf("%-13s distance %d", c.Reason, c.MaxDistance)
	if c.TierLoss > 0 && !strings.Contains(c.Detail, "tier") {
		out += ", " + tiers(c.TierLoss) + " lost"
	}
	if c.Detail != "" {
		out += ": " + c.Detail
	}
	return strings.TrimSpace(out)
}

func tiers(n int) string {
	if n == 1 {
		return "1 tier"
	}
	return fmt.Sprintf("%d tiers", n)
}
