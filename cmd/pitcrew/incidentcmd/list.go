package incidentcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/connect"
	"github.com/pitcrew/pitcrew/remediator/incident"
)

// filter selects incidents. Empty fields select all.
type filter struct {
	open, person            bool
	node, job, signal, rule string
	since                   connect.Age
	limit                   int
}

func (f *filter) register(c *cobra.Command) {
	p := c.Flags()
	p.BoolVar(&f.open, "open", false, "only incidents that have not ended")
	p.BoolVar(&f.person, "needs-person", false, "only incidents that need an operator")
	p.StringVar(&f.node, "node", "", "only incidents about this node")
	p.StringVar(&f.job, "job", "", "only incidents of this job: NAME or NAMESPACE/NAME")
	p.StringVar(&f.signal, "signal", "", "only incidents with this signal, such as xid/79; a trailing * matches the rest")
	p.StringVar(&f.rule, "rule", "", "only incidents decided by this rule: RULE or POLICY/RULE")
	p.Var(&f.since, "since", "only incidents opened in the last `AGE`: 90m, 36h, 7d, 2w")
	p.IntVar(&f.limit, "limit", 0, "at most so many, newest first; 0: all")
}

// tests are the conditions of a filter; each holds if its field is empty.
var tests = []func(f *filter, i *incident.Incident, now time.Time) bool{
	func(f *filter, i *incident.Incident, _ time.Time) bool { return !f.open || i.Open() },
	func(f *filter, i *incident.Incident, _ time.Time) bool {
		return !f.person || i.Open() && i.NeedsPerson()
	},
	func(f *filter, i *incident.Incident, now time.Time) bool {
		return f.since == 0 || i.Opened.After(now.Add(-time.Duration(f.since)))
	},
	func(f *filter, i *incident.Incident, _ time.Time) bool {
		return f.node == "" || slices.ContainsFunc(i.Faults, func(x incident.Fault) bool { return x.Node == f.node }) || i.Group != nil && slices.Contains(i.Group.Nodes(), f.node)
	},
	func(f *filter, i *incident.Incident, _ time.Time) bool {
		return f.signal == "" || slices.ContainsFunc(i.Faults, func(x incident.Fault) bool { return matches(f.signal, x.Signal) })
	},
	func(f *filter, i *incident.Incident, _ time.Time) bool {
		return f.job == "" || i.Job != nil && named(f.job, i.Job.Namespace, i.Job.Name)
	},
	func(f *filter, i *incident.Incident, _ time.Time) bool {
		return f.rule == "" || i.Plan != nil && named(f.rule, i.Plan.Policy, i.Plan.Rule)
	},
}

// matches compares a name with a pattern that may end in *.
func matches(pattern, name string) bool {
	if prefix, wild := strings.CutSuffix(pattern, "*"); wild {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// named compares NAME or SPACE/NAME.
func named(want, space, name string) bool {
	return want == name || want == space+"/"+name
}

func (f *filter) of(all []incident.Incident, now time.Time) []incident.Incident {
	out := make([]incident.Incident, 0, len(all))
	for k := range all {
		if !slices.ContainsFunc(tests, func(holds func(*filter, *incident.Incident, time.Time) bool) bool { return !holds(f, &all[k], now) }) {
			out = append(out, all[k])
		}
	}
	if f.limit > 0 && len(out) > f.limit {
		out = out[:f.limit]
	}
	return out
}

// hint helps with a signal that no incident has, such as xid in place of xid/79. It is empty otherwise.
func (f *filter) hint(all []incident.Incident) string {
	if f.signal == "" {
		return ""
	}
	seen := map[string]bool{}
	for k := range all {
		for _, x := range all[k].Faults {
			if matches(f.signal, x.Signal) {
				return ""
			}
			seen[x.Signal] = true
		}
	}
	out := fmt.Sprintf("no incident has signal %q; a signal is KIND/NAME, such as xid/79 or rank/dead, and xid/* matches all of a kind", f.signal)
	if names := slices.Sorted(maps.Keys(seen)); len(names) > 0 {
		out += "; recorded: " + strings.Join(names[:min(len(names), 8)], ", ")
	}
	return out
}

// newest lists all incidents, newest first.
func newest(ctx context.Context, s store) ([]incident.Incident, error) {
	all, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b bus.Change[incident.Incident]) int { return b.Value.Opened.Compare(a.Value.Opened) })
	out := make([]incident.Incident, 0, len(all))
	for _, x := range all {
		out = append(out, x.Value)
	}
	return out, nil
}

func list(f *connect.Flags) *cobra.Command {
	var want filter
	c := &cobra.Command{
		Use: "list", Short: "Incidents, newest first, and what those that are open wait for", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.Open(c.Context(), func(ctx context.Context, b *bus.Bus) error {
				all, err := newest(ctx, bus.NewBucket[incident.Incident](b, bus.IncidentBucket))
				if err != nil {
					return err
				}
				out := want.of(all, time.Now())
				if hint := want.hint(all); hint != "" && !f.Structured() {
					fmt.Fprintln(c.ErrOrStderr(), hint)
				}
				if done, err := f.Encode(c.OutOrStdout(), out); done {
					return err
				}
				if err := table(c.OutOrStdout(), out, f.Wide()); err != nil {
					return err
				}
				if hidden := len(all) - len(out); hidden > 0 {
					fmt.Fprintf(c.OutOrStdout(), "%d of %d incidents; the others do not match the flags\n", len(out), len(all))
				}
				k, _, err := b.Control().Get(ctx, bus.KillKey)
				if errors.Is(err, bus.ErrNotFound) || err == nil && !k.On {
					return nil
				}
				if err == nil {
					fmt.Fprintf(c.OutOrStdout(), "\nPitcrew is %s\n", k)
				}
				return err
			})
		},
	}
	want.register(c)
	return c
}

func table(out io.Writer, all []incident.Incident, wide bool) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(out, "No incident.")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	head := "INCIDENT\tOPENED (UTC)\tSIGNAL\tNODE\tJOB\tSTATE\tOUTCOME"
	if wide {
		head += "\tTOOK\tRULE\tMOVED TO\tSTEPS LOST\tREASON"
	}
	fmt.Fprintln(w, head)
	for _, i := range nested(all) {
		job := "-"
		if i.Job != nil {
			job = i.Job.Namespace + "/" + i.Job.Name
		}
		outcome := string(i.Outcome)
		if i.Open() && i.Waiting != "" {
			outcome = "waits: " + i.WaitsFor()
		}
		node := i.Faults[0].Node
		if g := i.Group; g != nil {
			node, job = fmt.Sprintf("%d nodes of %s", len(g.Nodes()), g.Domain), fmt.Sprintf("%d incidents", len(g.Children))
		}
		row := []string{i.ID, i.Opened.UTC().Format(time.DateTime), i.Faults[0].Signal, node, job, string(i.State), outcome}
		if wide {
			row = append(row, more(&i)...)
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// more are the columns of -o wide.
func more(i *incident.Incident) []string {
	row := []string{"-", "-", "-", "-", "-"}
	if !i.ClosedAt.IsZero() {
		row[0] = fmt.Sprintf("%.1f s", i.ClosedAt.Sub(i.Opened).Seconds())
	}
	if i.Plan != nil && i.Plan.Rule != "" {
		row[1] = i.Plan.Policy + "/" + i.Plan.Rule
	}
	var to []string
	for _, m := range i.Moves {
		if m.To != "" {
			to = append(to, m.To)
		}
	}
	if len(to) > 0 {
		row[2] = strings.Join(to, ",")
	}
	if i.LostSteps != nil {
		row[3] = fmt.Sprint(*i.LostSteps)
	}
	if i.Reason != "" {
		row[4] = i.Reason
	}
	return row
}

// nested puts children behind their parent, and leaves everything else in order. A child's id is indented.
func nested(all []incident.Incident) (out []incident.Incident) {
	of := map[string][]incident.Incident{}
	for _, i := range all {
		if i.Group != nil {
			of[i.ID] = nil
		}
	}
	for _, i := range all {
		if _, listed := of[i.Parent]; listed && i.Parent != "" {
			child := i
			child.ID = "  " + i.ID
			of[i.Parent] = append(of[i.Parent], child)
		}
	}
	for _, i := range all {
		if _, listed := of[i.Parent]; i.Parent == "" || !listed {
			out = append(append(out, i), of[i.ID]...)
		}
	}
	return out
}
