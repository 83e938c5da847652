package statuscmd

import (
	"context"
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
	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
)

// Command is `pitcrew status`.
func Command() *cobra.Command {
	var f connect.Flags
	c := &cobra.Command{
		Use: "status", Args: cobra.NoArgs,
		Short: "What Pitcrew sees, does and waits for: agents, conditions, incidents, limits, and whether it is paused",
		Long: `What Pitcrew sees, does and waits for, on one screen. It listens for agents for 1.6 s.

The exit code is 7 if something needs an operator, such as an incident that waits for a person, a pause, or no remediator.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.Open(c.Context(), func(ctx context.Context, b *bus.Bus) error {
				s := Collect(ctx, b, time.Now())
				if ctx.Err() != nil {
					return ctx.Err()
				}
				done, err := f.Encode(c.OutOrStdout(), s)
				if !done {
					err = s.Write(c.OutOrStdout())
				}
				if err == nil && len(s.Problems) > 0 {
					err = exit.With(exit.Unhealthy, fmt.Errorf("problems: %d; see the lines with ! above", len(s.Problems)))
				}
				return err
			})
		},
	}
	f.Register(c.Flags())
	return c
}

// Write prints the status as text.
func (s Status) Write(out io.Writer) error {
	for _, p := range s.Problems {
		fmt.Fprintln(out, "!", p)
	}
	if len(s.Problems) > 0 {
		fmt.Fprintln(out)
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	row := func(part, name, format string, args ...any) {
		if _, unknown := s.Unknown[part]; unknown {
			format, args = "unknown", nil
		}
		fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	acts := "not paused"
	if s.Paused != nil {
		acts = "paused: it changes nothing"
	}
	row("paused", "Actions", "%s", acts)
	consumes := map[bool]string{true: "consumes findings", false: "none consumes findings"}[s.Remediator.Consuming]
	row("remediator", "Remediator", "%s; %d findings wait", consumes, s.Remediator.Pending)
	row("", "Agents", "%d heard%s", s.Agents.Heard, silent(len(s.Agents.Silent)))
	row("conditions", "Conditions", "%s", counts(s.Conditions.Active, "none is open"))
	row("incidents", "Incidents", "%d open; in the last 24 h: %s", len(s.Incidents.Open), counts(s.Incidents.LastDay, "none ended"))
	row("limits", "Limits", "%d incidents act, %d nodes cordoned by them, %d reserved", s.Limits.Acting, s.Limits.Cordoned, len(s.Limits.Reserved))
	if err := w.Flush(); err != nil {
		return err
	}
	if err := s.writeOpen(out); err != nil {
		return err
	}
	return s.writeWorst(out)
}

func silent(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d silent", n)
}

func (s Status) writeOpen(out io.Writer) error {
	if len(s.Incidents.Open) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "OPEN INCIDENT\tFOR\tSIGNAL\tNODE\tJOB\tSTATE\tWAITS FOR")
	for _, i := range s.Incidents.Open {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i.ID, s.age(i.Opened), i.Signal, dash(i.Node), dash(i.Job), i.State, dash(i.WaitsFor))
	}
	return w.Flush()
}

func (s Status) writeWorst(out io.Writer) error {
	if len(s.Conditions.Worst) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "OPEN CONDITION\tNODE\tSEVERITY\tFOR")
	for _, c := range s.Conditions.Worst {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", c.Key, c.Node, dash(string(c.Severity)), s.age(c.Since))
	}
	return w.Flush()
}

func (s Status) age(since time.Time) time.Duration {
	return max(0, s.At.Sub(since)).Round(time.Second)
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// counts are "3 recovered, 1 failed", in the order of the names.
func counts[K ~string](by map[K]int, none string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(by)) {
		out = append(out, fmt.Sprintf("%d %s", by[k], dash(string(k))))
	}
	if len(out) == 0 {
		return none
	}
	return strings.Join(out, ", ")
}
