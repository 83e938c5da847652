package placement

import (
	"fmt"
	"strings"
)

// String is one line for a person: how far the node is, and why it was or was not taken.
func (c Candidate) String() string {
	out := fmt.Sprintf("%-13s distance %d", c.Reason, c.MaxDistance)
	if c.TierLoss > 0 {
		out += fmt.Sprintf(", %d tiers lost", c.TierLoss)
	}
	if c.Detail != "" {
		out += ": " + c.Detail
	}
	return strings.TrimSpace(out)
}
