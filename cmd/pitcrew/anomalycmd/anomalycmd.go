// Package anomalycmd is `pitcrew anomaly`: look at the statistical findings that stand, acknowledge, mute and accept them.
package anomalycmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/connect"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
)

// Command is `pitcrew anomaly`.
func Command() *cobra.Command {
	var f connect.Flags
	c := &cobra.Command{Use: "anomaly", Aliases: []string{"anomalies"}, Short: "Look at statistical findings; acknowledge, mute or accept them"}
	f.Register(c.PersistentFlags())
	c.AddCommand(list(&f), ack(&f), mute(&f), unmute(&f), accept(&f))
	return c
}

// prefix of the keys of what agents find.
const prefix = "anomaly/"

func statements(ctx context.Context, b *bus.Bus, now time.Time) ([]bus.Statement, error) {
	all, err := b.Statements().List(ctx)
	if err != nil {
		return nil, err
	}
	var out []bus.Statement
	for _, c := range all {
		if c.Value.Verb != bus.StateMute || c.Value.Until.After(now) {
			out = append(out, c.Value)
		}
	}
	slices.SortFunc(out, func(a, b bus.Statement) int { return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.ID(), b.ID())) })
	return out, nil
}

func list(f *connect.Flags) *cobra.Command {
	var node string
	c := &cobra.Command{
		Use: "list", Short: "Findings of agents and gateways that are open or accepted, worst first, and what people said of them", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.Open(c.Context(), func(ctx context.Context, b *bus.Bus) error {
				fs, refused, err := standing(ctx, b)
				if err != nil {
					return err
				}
				warn(c.ErrOrStderr(), refused)
				now := time.Now()
				said, err := statements(ctx, b, now)
				if err != nil {
					return err
				}
				if node != "" {
					fs = slices.DeleteFunc(fs, func(f finding) bool { return f.Node != node })
					said = slices.DeleteFunc(said, func(s bus.Statement) bool { return !s.Of(node) })
				}
				heed(fs, said, now)
				if done, err := f.Encode(c.OutOrStdout(), map[string]any{"findings": nonNil(fs), "statements": nonNil(said)}); done {
					return err
				}
				return table(c.OutOrStdout(), b.Cluster(), fs, said, now)
			})
		},
	}
	c.Flags().StringVar(&node, "node", "", "of this node only: of the GPU or rank that is found")
	return c
}

// warn tells of records that are not listed.
func warn(out io.Writer, refused []error) {
	for _, err := range refused {
		fmt.Fprintln(out, "refused:", err)
	}
}

func nonNil[T any](v []T) []T {
	if v == nil {
		return []T{}
	}
	return v
}

// late is after how long a gateway that is there would have told again of what it found.
const late = 90 * time.Second

func table(out io.Writer, cluster string, fs []finding, said []bus.Statement, now time.Time) error {
	if len(fs) == 0 {
		fmt.Fprintf(out, "No finding stands in cluster %s.\n", cluster) // of another name none ever does
	} else {
		w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "SOURCE\tNODE\tFINDING\tSEVERITY\tSTATE\tSINCE\tFOR\tGPU-SECONDS LOST\tWHAT")
		for _, f := range fs {
			state := f.words()
			if silent := now.Sub(f.Heard); f.Source == gateway && silent > late {
				state += fmt.Sprintf(", not heard of for %s", silent.Round(time.Second))
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.0f\t%s\n", f.from(), cmp.Or(f.Node, "-"), f.Key, f.Severity, state,
				f.Onset.UTC().Format(time.RFC3339), now.Sub(f.Onset).Round(time.Second), f.Lost, f.Raw.Evidence.Raw)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	mutes := slices.DeleteFunc(slices.Clone(said), func(s bus.Statement) bool { return s.Verb != bus.StateMute })
	if len(mutes) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "MUTED\tON\tUNTIL\tBY\tREASON")
	for _, s := range mutes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Key, cmp.Or(s.Node, "all nodes"), s.Until.Format(time.RFC3339), s.By, s.Reason)
	}
	return w.Flush()
}

var errNothing = exit.With(exit.NotFound, errors.New("no such finding is open; `pitcrew anomaly list` names them"))
