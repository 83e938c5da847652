package incident

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// Write prints the incident for a person: what happened, what was seen and expected, what was decided and why, which nodes were
// considered, where every second went, and what is left to do by hand. On a terminal long texts are folded.
func (i Incident) Write(w io.Writer) { i.WriteFolded(w, Columns(w)) }

// WriteFolded is Write for so many columns; 0 leaves lines whole.
func (i Incident) WriteFolded(w io.Writer, columns int) {
	at := func(hang int, format string, a ...any) {
		fmt.Fprintln(w, Fold(fmt.Sprintf(format, a...), columns, hang))
	}
	p := func(format string, a ...any) { at(textAt, format, a...) }
	p("%s  %s", i.ID, i.Headline())
	p("  opened     %s UTC%s", i.Opened.UTC().Format(time.DateTime), i.closed())
	if i.Job != nil {
		p("  job        %s %s/%s, %s%s", i.Job.Kind, i.Job.Namespace, i.Job.Name, count(i.WorldSize, "rank"), paths[i.Path])
	}
	if i.Parent != "" {
		p("  parent     %s: it has its cause in common with others", i.Parent)
	}
	if i.Group != nil {
		i.Group.write(p, i.ID)
	}
	for _, f := range i.Faults {
		p("  fault      %s on %s%s (%s)%s", f.Signal, f.Node, about(f), f.Sev, seen(f))
	}
	if i.Plan != nil {
		p("  decided    policy %s, rule %s, mode %s", i.Plan.Policy, i.Plan.Rule, i.Plan.Mode)
		if why := i.Plan.because(); why != "" {
			p("             because: %s", why)
		}
		for _, r := range i.Plan.Recommended() {
			p("             for a person: %s", r)
		}
	}
	for _, g := range i.Guards {
		p("  guard      %s", g)
	}
	if c := i.Checkpoint; c != nil && (c.Taken || c.Why != "") {
		if c.Taken {
			p("  checkpoint step %d in %s, %d bytes, %.3f s", c.Save.Step, c.Save.Dir, c.Save.Bytes, c.Save.Seconds)
		} else {
			p("  checkpoint none taken: %s", c.Why)
		}
	}
	for _, m := range i.Moves {
		i.writeMove(p, m)
	}
	if i.ResumedStep != nil {
		p("  resumed    from step %d, %s lost", *i.ResumedStep, count(*i.LostSteps, "step"))
	}
	if i.Waiting != "" {
		p("  waiting    %s", i.Waiting)
		if how := i.remedy(); how != "" {
			p("             ends by: %s", how)
		}
	}
	if i.State == Closed && i.Outcome != Gone {
		for _, n := range i.Cordons {
			p("  left       %s was cordoned and stays cordoned: repair it%s, then run `pitcrew node uncordon %s`", n, i.advice(n), n)
		}
	}
	p("")
	for _, n := range i.Notes {
		at(2+noteAt, "  %s", i.Line(n))
	}
	if len(i.Writes) > 0 {
		p("\n  changes to the cluster")
		for _, c := range i.Writes {
			fault := ""
			if c.Error != "" {
				fault = "  " + c.Error
			}
			at(writeAt, "  %9s  %-7s %s  %.0f ms%s", since(i.Began(), c.At), c.Verb, c.Object, 1000*c.TookS, fault)
		}
	}
}

func (i Incident) writeMove(p func(string, ...any), m Move) {
	if m.Decision == nil {
		p("  pod %d      %s replaced where the scheduler puts it", m.Index, m.OldPod)
		return
	}
	p("  pod %d      %s → %s (%s)", m.Index, m.From, or(m.To, "nowhere"), m.Decision.Reason)
	width := 10
	for _, c := range m.Decision.Candidates {
		width = max(width, len(c.Node))
	}
	for _, c := range m.Decision.Candidates {
		mark := "✗"
		if c.Chosen {
			mark = "✓"
		}
		p("             %s %-*s %s", mark, width, c.Node, c)
	}
}

// Headline is how the incident stands: its outcome and why, or its state and what it waits for.
func (i Incident) Headline() string {
	if i.State == Closed {
		return string(i.Outcome) + ": " + i.Reason
	}
	if i.Waiting != "" {
		return string(i.State) + ", waits: " + i.WaitsFor()
	}
	return string(i.State)
}

// WaitsFor is what the incident waits for, in a few words; empty if it does not wait.
func (i Incident) WaitsFor() string {
	short, _, _ := strings.Cut(i.Waiting, ": ")
	if rest, ok := strings.CutPrefix(i.Waiting, waitTurn); ok {
		short, _, _ = strings.Cut(waitTurn+rest, " (")
	}
	short, _, _ = strings.Cut(short, ";")
	return short
}

// paths says how a gang is brought back.
var paths = map[string]string{
	launcherPath: ", brought back by its launcher: only pods that have to move are replaced", recreatePath: ", brought back by replacing every pod",
}

func (i Incident) closed() string {
	if i.State != Closed || i.ClosedAt.IsZero() {
		return ""
	}
	return fmt.Sprintf(", closed %.1f s later", i.ClosedAt.Sub(i.Opened).Seconds())
}

// advice is what the fault that had a node cordoned asks for.
func (i Incident) advice(node string) string {
	for _, f := range i.Faults {
		if a := f.Event.Data.Advice; f.Node == node && a != "" && a != "none" {
			return " (" + a + ")"
		}
	}
	return ""
}

// because is the part of the judgement that says what made the chosen rule match.
func (p *Plan) because() string {
	var j struct {
		Policies []struct {
			Policy string `json:"policy"`
			Rules  []struct {
				Rule    string `json:"rule"`
				Matched bool   `json:"matched"`
				Detail  string `json:"detail"`
			} `json:"rules"`
		} `json:"policies"`
	}
	_ = json.Unmarshal(p.Decision, &j) // a record of another version says no reason
	for _, of := range j.Policies {
		for _, r := range of.Rules {
			if of.Policy == p.Policy && r.Rule == p.Rule && r.Matched {
				return r.Detail
			}
		}
	}
	return ""
}

// count is a number with its noun, which takes an s.
func count[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Line is one line of the timeline: seconds since the fault, state, how long the step took, what it did.
func (i Incident) Line(n Note) string {
	took := ""
	if n.TookS > 0 {
		took = fmt.Sprintf("%.3f s", n.TookS)
	}
	return fmt.Sprintf("%9s  %-12s %8s  %s", since(i.Began(), n.At), n.State, took, n.Text)
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

// seen is the evidence: the line as it was read, and the value that was seen beside what was expected.
func seen(f Fault) string {
	const indent = "\n             "
	e, out := f.Event.Data.Evidence, ""
	if e.Raw != "" {
		out = indent + e.Raw
	}
	if e.Signal == "" || e.Value == nil || e.Expected == nil && e.Lower == nil && e.Upper == nil {
		return out
	}
	out += fmt.Sprintf("%ssaw %s = %g", indent, e.Signal, *e.Value)
	for _, bound := range []struct {
		is string
		v  *float64
	}{{"expected", e.Expected}, {"at least", e.Lower}, {"at most", e.Upper}} {
		if bound.v != nil {
			out += fmt.Sprintf(", %s %g", bound.is, *bound.v)
		}
	}
	return out
}

func or(s, instead string) string {
	if s == "" {
		return instead
	}
	return s
}
