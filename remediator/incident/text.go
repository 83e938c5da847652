package incident

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Write prints the incident for a person: what happened, what was decided and why, which nodes were considered, and where every
// second went.
func (i Incident) Write(w io.Writer) {
	p := func(format string, a ...any) { fmt.Fprintf(w, format+"\n", a...) }
	p("%s  %s", i.ID, i.headline())
	if i.Job != nil {
		p("  job        %s %s/%s, %d ranks, %s", i.Job.Kind, i.Job.Namespace, i.Job.Name, i.WorldSize, i.Path)
	}
	for _, f := range i.Faults {
		p("  fault      %s on %s%s (%s)%s", f.Signal, f.Node, about(f), f.Sev, raw(f))
	}
	if i.Plan != nil {
		p("  decided    policy %s, rule %s, mode %s", i.Plan.Policy, i.Plan.Rule, i.Plan.Mode)
		for _, r := range i.Plan.Recommend {
			p("             for a person: %s", r)
		}
	}
	for _, g := range i.Guards {
		p("  guard      %s", g)
	}
	if c := i.Checkpoint; c != nil {
		if c.Taken {
			p("  checkpoint step %d in %s, %d bytes, %.2f s", c.Save.Step, c.Save.Dir, c.Save.Bytes, c.Save.Seconds)
		} else {
			p("  checkpoint none taken: %s", c.Why)
		}
	}
	for _, m := range i.Moves {
		i.writeMove(p, m)
	}
	if i.ResumedStep != nil {
		p("  resumed    from step %d, %d steps lost", *i.ResumedStep, *i.LostSteps)
	}
	if i.Waiting != "" {
		p("  waiting    %s", i.Waiting)
	}
	p("")
	for _, n := range i.Notes {
		p("  %s", i.Line(n))
	}
	if len(i.Writes) > 0 {
		p("\n  changes to the cluster")
		for _, c := range i.Writes {
			fault := ""
			if c.Error != "" {
				fault = "  " + c.Error
			}
			p("  %9s  %-7s %s  %.0f ms%s", since(i.start(), c.At), c.Verb, c.Object, 1000*c.TookS, fault)
		}
	}
}

func (i Incident) writeMove(p func(string, ...any), m Move) {
	if m.Decision == nil {
		p("  pod %d      %s replaced where the scheduler puts it", m.Index, m.OldPod)
		return
	}
	p("  pod %d      %s → %s (%s)", m.Index, m.From, or(m.To, "nowhere"), m.Decision.Reason)
	for _, c := range m.Decision.Candidates {
		mark := "✗"
		if c.Chosen {
			mark = "✓"
		}
		p("             %s %-10s %s", mark, c.Node, c)
	}
}

func (i Incident) headline() string {
	if i.State == Closed {
		return string(i.Outcome) + ": " + i.Reason
	}
	return string(i.State)
}

// start is when the fault happened at its source.
func (i Incident) start() time.Time {
	if len(i.Faults) > 0 && i.Faults[0].At.Before(i.Opened) {
		return i.Faults[0].At
	}
	return i.Opened
}

// Line is one line of the timeline: seconds since the fault, state, how long the step took, what it did.
func (i Incident) Line(n Note) string {
	took := ""
	if n.TookS > 0 {
		took = fmt.Sprintf("%.2f s", n.TookS)
	}
	return fmt.Sprintf("%9s  %-12s %8s  %s", since(i.start(), n.At), n.State, took, n.Text)
}

func since(start, at time.Time) string { return fmt.Sprintf("+%.3f s", at.Sub(start).Seconds()) }

func about(f Fault) string {
	var parts []string
	if f.GPU != "" {
		parts = append(parts, f.GPU)
	}
	if f.Rank != nil {
		parts = append(parts, fmt.Sprintf("rank %d", *f.Rank))
	}
	if len(parts) == 0 {
		return ""
	}
	return " " + strings.Join(parts, ", ")
}

func raw(f Fault) string {
	if r := f.Event.Data.Evidence.Raw; r != "" {
		return "\n             " + r
	}
	return ""
}

func or(s, instead string) string {
	if s == "" {
		return instead
	}
	return s
}
