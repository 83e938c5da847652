package policy

import (
	"fmt"
	"strings"
)

var outcomeWords = map[Outcome]string{
	Act:     "act",
	Ask:     "ask a person before each step",
	Record:  "record only (mode observe): this is what would be done",
	Tell:    "notify",
	Nothing: "nothing",
}

func list(s Signals) string {
	const most = 6
	if len(s) > most {
		return strings.Join(s[:most], ", ") + fmt.Sprintf(" and %d more", len(s)-most)
	}
	return strings.Join(s, ", ")
}

// String prints the whole judgement for a person.
func (j Judgement) String() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("event     %s  %s, %s", j.Event, j.Signal, j.Severity)
	line("about     %s%s%s", j.Subject, field("  node ", j.Node), field("  job ", j.Job))
	line("outcome   %s%s", outcomeWords[j.Outcome], field(": ", j.Detail))
	if j.Rule != "" {
		line("by        policy %s (%s), rule %s", j.Policy, j.Hash, j.Rule)
	}
	for i, s := range j.Steps {
		line("  %d. %s", i+1, s)
	}
	if j.Verify != nil {
		line("  healed when %s within %s", j.Verify.Signal, j.Verify.Within)
	}
	if j.Guards != nil {
		g := j.Guards
		line("bounds    %d incidents at once; nodes cordoned %s; %s per node; %d actions per %s; events up to %s old; held back for up to %s", g.MaxConcurrentIncidents,
			g.MaxNodesQuarantined, g.CooldownPerNode, g.ActionBudget.Count, g.ActionBudget.Per, g.MaxEventAge, g.TakeUpWithin)
		line("          approvals valid for %s; waits reported after %s, given up after %s, after %s once ranks are stopped; counts per %s", g.ApprovalWithin,
			g.Deadlines.Report, g.Deadlines.Wait, g.Deadlines.Stopped, g.Scope)
		for _, w := range g.Blackout {
			line("          not in %s", w)
		}
	}
	line("looked at")
	for _, p := range j.Policies {
		mark := " "
		if p.Chosen {
			mark = "*"
		}
		line("%s %5d  %s, mode %s%s%s", mark, p.Order, p.Policy, p.Mode, field(": ", string(p.Why)), field(", ", p.Detail))
		for _, r := range p.Rules {
			sign := "✗"
			if r.Matched {
				sign = "✓"
			}
			line("         %s %s%s%s", sign, r.Rule, field(": ", string(r.Why)), field(", ", r.Detail))
		}
	}
	return b.String()
}

// String prints a step with its options.
func (s PlannedStep) String() string {
	out := string(s.Do)
	if w := s.With; w != nil {
		out += fmt.Sprintf(" (%s", w.Placement)
		if w.Placement == Equivalent {
			out += fmt.Sprintf(", at most %d tiers farther", w.MaxTierLoss)
		}
		out += fmt.Sprintf(", at most %d a day for one job", w.MaxPerJob)
		if w.FastReplace {
			out += ", fast replace"
		}
		out += ")"
	}
	if s.NeedsApproval {
		out += ", after approval"
	}
	if s.Recommendation {
		out += ", as a recommendation"
	}
	return out
}

func field(label, value string) string {
	if value == "" {
		return ""
	}
	return label + value
}
